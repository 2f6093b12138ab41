"""Where the planner's facts about a model come from, and which place it was.

In this order: files or a directory that were named; the manifest that the operator has collected; with
``--read-source`` the model's source itself; else the catalogue of published models that is shipped as data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from moe_operator.api.manifest import Manifest
from moe_operator.checkpoint.model import Checkpoint
from moe_operator.checkpoint.model_facts import checkpoint_from_config
from moe_operator.checkpoint.unreadable import UnreadableConfig
from moe_operator.reconcile.plan import checkpoint_of
from moe_operator.staging.failure import StageError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
QUANTIZATION = "hf_quant_config.json"
CATALOGUE_FILE = "published_models.json"
SINGLE_SHARD = "model.safetensors"
STALL_SECONDS = 30.0
PLAIN_HOSTS: tuple[str, ...] = ()  # hosts that may be spoken to without TLS
HEADER_LIMIT = 100_000_000
_HUB = re.compile(r"^hf://([^/]+/[^/@]+)(?:@(.*))?$")
Read = Callable[[str, int | None], bytes | None]  # (file, first bytes or all) → its bytes; None = not there


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``origin`` says in words where the facts are from."""

    name: str
    checkpoint: Checkpoint
    origin: str


class NoFacts(Exception):
    """Why no facts are to be had, in one line."""


def from_files(config: Path, index: Path | None, weights_bytes: int | None) -> ModelFacts:
    """From ``--config``, a file or a directory, and ``--index`` or ``--weights-bytes``."""
    if config.is_dir():
        return from_directory(config)
    parsed = _object(_bytes_of(config), str(config))
    total, origin = weights_bytes, f"{config}"
    if index:
        total, origin = _index_total(_bytes_of(index), str(index)), f"{config} and {index}"
    side = config.with_name(QUANTIZATION)
    quantization = _object(_bytes_of(side), str(side)) if side.exists() else None
    name = config.resolve().parent.name if config.name == CONFIG else config.name.removesuffix(".config.json")
    return _facts(name, parsed, total, quantization, origin)


def from_directory(directory: Path) -> ModelFacts:
    """From a checkpoint on disk: config, index, and the shards' headers where the architecture is new."""

    def read(name: str, length: int | None) -> bytes | None:
        path = directory / name
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(-1 if length is None else length)

    return _from_place(directory.resolve().name, read, str(directory))


def from_source(url: str) -> ModelFacts:
    """From the model's own source, over HTTP."""
    from moe_operator.staging.credentials import Credentials
    from moe_operator.staging.hosts import HostPolicy
    from moe_operator.staging.sources import source_for
    from moe_operator.staging.stop import Stop
    from moe_operator.staging.transport import Transport

    transport = Transport(HostPolicy.of(PLAIN_HOSTS), Stop(), stall_seconds=STALL_SECONDS)
    try:
        source = source_for(url, transport, Credentials())

        def read(name: str, length: int | None) -> bytes | None:
            if source.stat(name) is None:
                return None
            with closing(source.open(name)) as stream:
                return _drain(stream.readinto, length)

        return _from_place(url.rsplit("/", 1)[-1], read, url)
    except StageError as error:
        raise NoFacts(f"{url}: {error}") from error


def from_manifest(manifest: Manifest, origin: str) -> ModelFacts:
    """From what the operator's resolver collected, read as the operator reads it.

    The operator has accepted these files: a contradiction of config and weights is said, not refused.
    """
    checkpoint = checkpoint_of(manifest)
    assert checkpoint
    return ModelFacts(manifest.source, _mixture(checkpoint), origin)


def from_catalogue(source: str) -> ModelFacts:
    """From the published models that are shipped; the revision is not looked at, and the origin says so."""
    found = _HUB.match(source)
    catalogue = json.loads((resources.files("moe_operator.checkpoint") / CATALOGUE_FILE).read_text())
    entry = catalogue["models"].get(found[1]) if found else None
    if entry is None:
        raise NoFacts(
            f"{source} is not among the published models known here: give --config and --index, or "
            "--read-source to read it over the network"
        )
    origin = f"catalogue of published models, as of {catalogue['asOf']}"
    if found and found[2] and found[2] != "main":
        origin += f" (revision {found[2]} not looked at)"
    assert found
    return _facts(found[1], entry["config"], entry.get("totalBytes"), entry.get("quantizationFile"), origin)


def _from_place(name: str, read: Read, origin: str) -> ModelFacts:
    raw = read(CONFIG, None)
    if raw is None:
        raise NoFacts(f"{origin} holds no {CONFIG}")
    config = _object(raw, f"{origin}/{CONFIG}")
    side = read(QUANTIZATION, None)
    quantization = _object(side, QUANTIZATION) if side else None
    index = read(INDEX, None)
    total = _index_total(index, f"{origin}/{INDEX}") if index else None
    facts = _facts(name, config, total, quantization, origin)
    if total is not None and facts.checkpoint.known:
        return facts
    shards = sorted(set(_object(index, INDEX).get("weight_map", {}).values())) if index else [SINGLE_SHARD]
    tensors: dict[str, int] = {}
    for shard in shards:
        tensors |= _header(read, shard)
    return _facts(name, config, total, quantization, origin, tensors or None)


def _header(read: Read, shard: str) -> dict[str, int]:
    """Bytes by tensor of one shard, from the first bytes of the file."""
    head = read(shard, 8)
    if head is None:
        return {}
    length = int.from_bytes(head, "little")
    if len(head) < 8 or not 2 <= length <= HEADER_LIMIT:
        raise NoFacts(f"{shard} is no safetensors file: header length {length}")
    header = _object((read(shard, 8 + length) or b"")[8:], f"header of {shard}")
    try:
        return {
            name: int(entry["data_offsets"][1]) - int(entry["data_offsets"][0])
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise NoFacts(f"header of {shard} is unreadable: {error}") from error


def _facts(
    name: str,
    config: Mapping[str, Any],
    total: int | None,
    quantization: Mapping[str, Any] | None,
    origin: str,
    tensors: Mapping[str, int] | None = None,
) -> ModelFacts:
    checkpoint = checkpoint_from_config(config, total, quantization, tensors)
    if checkpoint.contradiction:
        raise UnreadableConfig(checkpoint.contradiction)
    return ModelFacts(name, _mixture(checkpoint), origin)


def _mixture(checkpoint: Checkpoint) -> Checkpoint:
    if not checkpoint.is_moe:
        raise NoFacts(
            f"{checkpoint.architecture} is a dense model: moe-operator serves Mixture-of-Experts models"
        )
    return checkpoint


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NoFacts(f"{path}: {error.strerror}") from error


def _object(raw: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise NoFacts(f"{name} is not JSON, or was cut off: {error}") from error
    if not isinstance(value, dict):
        raise NoFacts(f"{name} holds no JSON object")
    return value


def _index_total(raw: bytes, name: str) -> int:
    metadata = _object(raw, name).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < 1 << 60:
        raise NoFacts(f"{name} states no plausible metadata.total_size: {total!r}")
    return int(total)


def _drain(readinto: Callable[[memoryview], int], length: int | None) -> bytes:
    """All bytes, or the first ``length``."""
    parts, wanted = bytearray(), length
    buffer = memoryview(bytearray(1 << 20))
    while wanted is None or wanted > 0:
        count = readinto(buffer[: wanted if wanted is not None and wanted < len(buffer) else len(buffer)])
        if count == 0:
            break
        parts += buffer[:count]
        wanted = None if wanted is None else wanted - count
    return bytes(parts)
