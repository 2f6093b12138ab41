"""Which tensor goes into which file when a checkpoint is cut into groups of experts.

Rule: the weights of routed expert ``e`` go into group ``e // (experts // groups)``; everything else, and
every expert's scales, goes into ``common-…``, because vLLM reads the scales of all experts even where it
loads only its own (``--enable-ep-weight-filter``). A tensor that a node lacks is then absent from its index
and fails to load, where a file with holes would load zeros.

Inside a file, wider types come first, so that every tensor starts at a multiple of its own element size; the
rest keeps the order of the source, so that one pass over the source writes everything.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moe_operator.api.manifest import SHARD_SUFFIX, StageExit
from moe_operator.staging.failure import StageError
from moe_operator.staging.weights import LENGTH_BYTES

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.+)")
_FUSED = re.compile(r"\.experts\.(?!\d+\.)")
_SPLIT_SUFFIXES = (".weight", ".weight_packed")  # what vLLM's filter skips of experts that are not local
_WIDTHS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
}  # bytes per element; 1 for all others
COMMON = "common"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor where it lies in the source: ``begin`` is its byte in the file, header included."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: str
    begin: int
    length: int


@dataclass(frozen=True, slots=True)
class OutFile:
    """One file to write: its header, and where each tensor goes (bytes from the file's start)."""

    name: str
    header: bytes
    tensors: tuple[tuple[Tensor, int], ...]
    size: int


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """All files; ``experts`` routed experts per layer in ``groups`` groups."""

    files: tuple[OutFile, ...]
    experts: int
    groups: int

    @property
    def total_bytes(self) -> int:
        """Bytes to write."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """Changes when anything about the outcome does."""
        sha256 = hashlib.sha256()
        for file in self.files:
            sha256.update(file.name.encode() + file.header)
            for tensor, at in file.tensors:
                sha256.update(f"{tensor.path}:{tensor.begin}:{tensor.length}:{at}\n".encode())
        return sha256.hexdigest()

    def index(self) -> bytes:
        """``model.safetensors.index.json`` of the sliced model."""
        weight_map = {tensor.name: file.name for file in self.files for tensor, _at in file.tensors}
        total = sum(tensor.length for file in self.files for tensor, _at in file.tensors)
        document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        return json.dumps(document).encode()


def tensors_of(path: str, header: Mapping[str, Any], data_at: int) -> list[Tensor]:
    """The tensors that a safetensors header names; ``data_at`` is the byte behind the header."""
    found = []
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = map(int, entry["data_offsets"])
            shape = tuple(entry["shape"])
            found.append(Tensor(name, str(entry["dtype"]), shape, path, data_at + begin, end - begin))
    return found


def plan_slices(tensors: Sequence[Tensor], groups: int, shard_bytes: int) -> SlicePlan:
    """Decide; LAYOUT_INCOMPATIBLE when the experts cannot be told apart or do not divide evenly."""
    experts = _experts(tensors)
    if experts % groups:
        raise _incompatible(
            f"{experts} experts cannot be cut into {groups} equal groups",
            f"a divisor of {experts}",
            str(groups),
            "choose a number that every expert-parallel size you will use divides",
        )
    size = experts // groups
    placed: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        placed[_place(tensor.name, size)].append(tensor)
    files = [file for place in sorted(placed) for file in _files(place, placed[place], shard_bytes)]
    return SlicePlan(tuple(files), experts, groups)


def _experts(tensors: Iterable[Tensor]) -> int:
    """How many routed experts a layer has; every layer must have the same, numbered from 0."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for tensor in tensors:
        if match := _EXPERT.fullmatch(tensor.name):
            numbers[match[1]].add(int(match[2]))
        elif _FUSED.search(tensor.name):
            raise _incompatible(
                f"{tensor.name} holds all experts in one tensor",
                "one tensor per expert: ….experts.N.…",
                f"shape {list(tensor.shape)}",
                "such a model is staged whole",
            )
    if not numbers:
        raise _incompatible(
            "the model has no routed experts", "tensors named ….experts.N.…", "none", "stage it whole"
        )
    count = max(len(found) for found in numbers.values())
    for layer, found in sorted(numbers.items()):
        if found != set(range(count)):
            raise _incompatible(
                f"{layer} does not have the experts 0 to {count - 1}",
                f"{count} experts",
                f"{len(found)} experts",
                "the checkpoint is incomplete, or its layers differ; stage it whole",
            )
    return count


def _place(name: str, size: int) -> str:
    match = _EXPERT.fullmatch(name)
    if match is None or not name.endswith(_SPLIT_SUFFIXES):
        return COMMON
    low = int(match[2]) // size * size
    return f"experts-{low:04d}-{low + size - 1:04d}"


def _files(place: str, tensors: list[Tensor], shard_bytes: int) -> Iterable[OutFile]:
    """Cut a place into files of at most ``shard_bytes`` of tensors (one tensor may be longer)."""
    number, pending, held = 1, list[Tensor](), 0
    for tensor in sorted(tensors, key=lambda t: (t.path, t.begin)):
        if pending and held + tensor.length > shard_bytes:
            yield _file(f"{place}-{number:05d}{SHARD_SUFFIX}", pending)
            number, pending, held = number + 1, [], 0
        pending.append(tensor)
        held += tensor.length
    yield _file(f"{place}-{number:05d}{SHARD_SUFFIX}", pending)


def _file(name: str, tensors: list[Tensor]) -> OutFile:
    ordered = sorted(tensors, key=lambda t: (-_WIDTHS.get(t.dtype, 1), t.path, t.begin))
    entries: dict[str, Any] = {}
    offsets, at = [], 0
    for tensor in ordered:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.length],
        }
        offsets.append(at)
        at += tensor.length
    if len(entries) != len(ordered):
        raise _incompatible(f"{name}: a tensor is stored twice", "one copy", "two", "repair the checkpoint")
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    header = len(raw).to_bytes(LENGTH_BYTES, "little") + raw
    placed = tuple((tensor, len(header) + offset) for tensor, offset in zip(ordered, offsets, strict=True))
    return OutFile(name, header, placed, len(header) + at)


def _incompatible(message: str, expected: str, actual: str, hint: str) -> StageError:
    return StageError(StageExit.LAYOUT_INCOMPATIBLE, message, expected=expected, actual=actual, hint=hint)
