"""What the safetensors index, or the headers, say about a model's weights.

Format (huggingface/safetensors README): 8 bytes little-endian length N, N bytes of JSON
``{name: {dtype, shape, data_offsets: [begin, end]}}``, then the tensors back to back. The file ends
where the last tensor ends; anything else is a truncated or altered file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moe_operator.api.manifest import StageExit
from moe_operator.checkpoint.tensor_names import layer_of
from moe_operator.staging.failure import StageError
from moe_operator.staging.selection import INDEX, checked_path

LENGTH_BYTES = 8
HEADER_MAX = 100_000_000  # the limit of the safetensors library


@dataclass(frozen=True, slots=True)
class Index:
    """The index: how many tensors, in which shards; ``total_bytes`` None when it does not say.

    ``layers``: shard → the decoder layers it holds tensors of, None among them for tensors outside.
    """

    tensors: int
    shards: frozenset[str]
    total_bytes: int | None
    layers: Mapping[str, frozenset[int | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Header:
    """One shard's header; ``file_bytes`` is how long the file must be."""

    tensors: int
    tensor_bytes: int
    file_bytes: int


def parse_object(raw: bytes, path: str) -> dict[str, Any]:
    """A JSON object, or BAD_MANIFEST naming the file and where it breaks."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as fault:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"{path} is not JSON: {fault}",
            file=path,
            expected="a JSON object",
            actual=f"{len(raw)} bytes beginning with {raw[:40]!r}",
            hint="the file was cut or replaced (an error page?); upload it again",
        ) from fault
    if not isinstance(value, dict):
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"{path} holds no JSON object",
            file=path,
            expected="a JSON object",
            actual=type(value).__name__,
        )
    return value


def parse_index(raw: bytes) -> Index:
    """Read ``model.safetensors.index.json``."""
    weight_map = (document := parse_object(raw, INDEX)).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"{INDEX} has no weight_map",
            file=INDEX,
            expected="weight_map: {tensor: file}",
            actual=type(weight_map).__name__,
        )
    shards = set(weight_map.values()) if all(isinstance(v, str) for v in weight_map.values()) else {None}
    if None in shards or not all(str(shard).endswith(".safetensors") for shard in shards):
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"{INDEX} maps tensors to something that is no .safetensors file",
            file=INDEX,
        )
    named = frozenset(checked_path(str(s)) for s in shards)
    return Index(len(weight_map), named, _total(document), _layers(weight_map))


def _layers(weight_map: Mapping[str, str]) -> dict[str, frozenset[int | None]]:
    found: dict[str, set[int | None]] = {}
    for tensor, shard in weight_map.items():
        found.setdefault(shard, set()).add(layer_of(tensor))
    return {shard: frozenset(layers) for shard, layers in found.items()}


def _total(document: dict[str, Any]) -> int | None:
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    # Some exporters write the total as a float.
    return int(total) if isinstance(total, int | float) and 0 <= total < 2**63 else None


def header_length(head: bytes, path: str) -> int:
    """N from the first eight bytes."""
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    if len(head) < LENGTH_BYTES or not 2 <= length <= HEADER_MAX:
        raise _not_safetensors(path, f"header length {length}")
    return length


def parse_header(raw: bytes, path: str) -> Header:
    """Read the N bytes of JSON that follow the length."""
    try:
        entries = json.loads(raw)
        spans = [entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"]
        ends = [int(end) for _begin, end in spans]
        sizes = [int(end) - int(begin) for begin, end in spans]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise _not_safetensors(path, f"header unreadable ({fault})") from fault
    return Header(len(spans), sum(sizes), LENGTH_BYTES + len(raw) + max(ends, default=0))


def _not_safetensors(path: str, actual: str) -> StageError:
    return StageError(
        StageExit.BAD_MANIFEST,
        f"{path} is no safetensors file",
        file=path,
        expected="8-byte length and a JSON header",
        actual=actual,
        hint="the file was cut or replaced; upload it again",
    )
