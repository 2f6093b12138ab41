"""Read a checkpoint as an engine does: config.json, the index, then every shard's header.

Nothing is taken on trust: shards must exist, headers must parse, tensors must lie end to end and fill the
file, and each tensor must be where the index says. Problems are raised as the exception types and messages
that the engines print. A shard that names the digest of its tensor bytes is hashed whole, which no engine
does: so the tests see when an altered file got past everybody. Sizes come from the tensors themselves, or
from a shard's own ``shrunk`` metadata (parameter → bytes in the published checkpoint, ``*`` for every routed
expert).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

INDEX_FILE = "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000
SAMPLE_BYTES = 65_536
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16,
    "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4,
}  # fmt: skip
_EXPERT = re.compile(r"\bexperts\.\d+\.")
_REPO_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$")


class CheckpointError(Exception):
    """What is wrong; ``kind`` is the exception class that the engine's traceback ends with."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")


@dataclass(frozen=True, slots=True)
class Weights:
    """What the shards hold. ``parameters`` maps a parameter (``*`` for experts) to its published bytes."""

    parameters: dict[str, int]
    shards: int
    stored_bytes: int
    identity: str  # changes when the bytes of any shard change


@dataclass(slots=True)
class _Gathered:
    parameters: dict[str, int] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)  # tensor → shard
    stored_bytes: int = 0


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of a local model directory."""
    if not directory.is_dir():
        raise _not_here(str(directory))
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            "ValueError", f"Invalid repository ID or local directory specified: '{directory}'."
        ) from None
    except ValueError:
        raise CheckpointError(
            "OSError", f"It looks like the config file at '{path}' is not a valid JSON file."
        ) from None
    if not isinstance(config, dict):
        raise CheckpointError(
            "OSError", f"It looks like the config file at '{path}' is not a valid JSON file."
        )
    return config


def shard_paths(directory: Path) -> tuple[list[Path], dict[str, str]]:
    """Shards in name order and the index's weight map (empty when the model has no index)."""
    index = directory / INDEX_FILE
    if not index.exists():
        found = sorted(directory.glob("*.safetensors"))
        if not found:
            raise CheckpointError("RuntimeError", f"Cannot find any model weights with `{directory}`")
        return found, {}
    try:
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(type(error).__name__, f"{index}: {error}") from None
    paths = [directory / file for file in sorted(set(weight_map.values()))]
    if missing := {str(path) for path in paths if not path.exists()}:
        raise CheckpointError("FileNotFoundError", f"Weight files referenced in index but missing: {missing}")
    return paths, weight_map


def read_shards(directory: Path) -> Iterator[tuple[int, int] | Weights]:
    """Read shard by shard: yields (done, all) after each, then the :class:`Weights` last."""
    paths, weight_map = shard_paths(directory)
    gathered, identity = _Gathered(), hashlib.sha256()
    for done, path in enumerate(paths, start=1):
        identity.update(_read_shard(path, gathered))
        yield done, len(paths)
    if lost := {name for name, file in weight_map.items() if gathered.stored.get(name) != file}:
        shown = ", ".join(repr(name) for name in sorted(lost)[:5])
        raise CheckpointError(
            "ValueError", f"Following weights were not initialized from checkpoint: {{{shown}}}"
        )
    yield Weights(gathered.parameters, len(paths), gathered.stored_bytes, identity.hexdigest()[:16])


def _read_shard(path: Path, gathered: _Gathered) -> bytes:
    """Check one shard and add what it holds; returns a digest of its header and of samples of its data."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header, text = _header(file.read(8), size, file.read)
        digest = hashlib.sha256(text)
        digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(8 + len(text), size - SAMPLE_BYTES))
        digest.update(file.read())
        metadata = header.pop("__metadata__", None) or {}
        gathered.stored_bytes += _check_layout(header, size - 8 - len(text))
        if "sha256" in metadata:
            file.seek(8 + len(text))
            _check_bytes(path, metadata["sha256"], hashlib.file_digest(file, "sha256").hexdigest())
    published: dict[str, int] = json.loads(metadata.get("shrunk", "{}"))
    for name, entry in header.items():
        gathered.stored[name] = path.name
        parameter = _EXPERT.sub("experts.*.", name) if ".experts." in name else name
        if parameter in published:
            gathered.parameters[parameter] = published[parameter]
        else:
            start, end = entry["data_offsets"]
            gathered.parameters[parameter] = gathered.parameters.get(parameter, 0) + end - start
    return digest.digest()


def _check_bytes(path: Path, expected: str, actual: str) -> None:
    if actual != expected:
        raise CheckpointError("ValueError", f"{path} was altered: sha256 {actual}, not {expected}")


def _header(prefix: bytes, size: int, read: Any) -> tuple[dict[str, Any], bytes]:
    if len(prefix) < 8:
        raise _bad_header("header too small")
    length = int.from_bytes(prefix, "little")
    if length > HEADER_LIMIT:
        raise _bad_header("header too large")
    if length > size - 8:
        raise _bad_header("invalid header length")
    text: bytes = read(length)
    try:
        header = json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise _bad_header(f"invalid UTF-8 in header: {error.reason}") from None
    except ValueError as error:
        raise _bad_header(f"invalid JSON in header: {error}") from None
    if not isinstance(header, dict):
        raise _bad_header("invalid JSON in header: expected a map")
    return header, text


def _check_layout(header: dict[str, Any], data_bytes: int) -> int:
    """Tensors lie end to end, each as long as dtype and shape say, and fill the file exactly."""
    at = 0
    try:
        entries = sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"]))
        for name, entry in entries:
            start, end = entry["data_offsets"]
            if start != at or end < start:
                raise _bad_header(f"invalid offset for tensor `{name}`")
            if (end - start) * 8 != prod(entry["shape"]) * BITS[entry["dtype"]]:
                raise _bad_header("info and data offsets mismatch")
            at = end
    except (KeyError, TypeError, ValueError) as error:
        raise _bad_header(f"invalid JSON in header: {error}") from None
    if at != data_bytes:
        raise _bad_header("incomplete metadata, file not fully covered")
    return at


def _bad_header(reason: str) -> CheckpointError:
    return CheckpointError(
        "safetensors._safetensors_rust.SafetensorError", f"Error while deserializing header: {reason}"
    )


def _not_here(name: str) -> CheckpointError:
    """A name that is no directory is taken for a repository on the hub, which cannot be reached."""
    if not _REPO_ID.match(name):
        return CheckpointError(
            "huggingface_hub.errors.HFValidationError",
            "Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' or "
            f"'.' and the maximum length is 96: '{name}'.",
        )
    return CheckpointError(
        "huggingface_hub.errors.LocalEntryNotFoundError",
        "Cannot find an appropriate cached snapshot folder for the specified revision on the local disk and "
        "outgoing traffic has been disabled. To enable repo look-ups and downloads online, pass "
        "'local_files_only=False' as input.",
    )
