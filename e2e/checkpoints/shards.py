"""Which tensor lies in which shard, and which experts a shrunk checkpoint keeps.

Invariant: tensors keep their file order, every shard gets at least one tensor, and a shrunk checkpoint
cuts where the full one would, because positions are counted in full bytes with all experts present.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from .architectures import Tensor
from .catalogue import Model

_LAYER = re.compile(r"\blayers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Placed:
    """One tensor of the built checkpoint; ``parameter`` has ``*`` where ``name`` has an expert's number."""

    name: str
    parameter: Tensor
    shard: int


def place(model: Model, tensors: Sequence[Tensor], kept_experts: int | None) -> tuple[Placed, ...]:
    """Give every tensor its shard; keep ``kept_experts`` of each layer, evenly spread (None: all)."""
    total = sum(tensor.nbytes * tensor.copies for tensor in tensors)
    cut = {"even": _even, "layer": _by_layer}[model.cut]
    return tuple(
        Placed(name, tensor, cut(model, name, position / total))
        for name, tensor, position in _expanded(tensors, kept_experts)
    )


def layer_of(name: str) -> int | None:
    """Decoder layer of a tensor, None for embeddings, heads and vision."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _expanded(tensors: Sequence[Tensor], kept: int | None) -> Iterator[tuple[str, Tensor, int]]:
    """(name, parameter, full bytes before it); experts in file order: expert 0 whole, then expert 1."""
    position = 0
    for copies, run in groupby(tensors, key=lambda tensor: tensor.copies):
        block = tuple(run)
        block_bytes = sum(tensor.nbytes for tensor in block)
        if copies == 1:
            for tensor in block:
                yield tensor.name, tensor, position
                position += tensor.nbytes
            continue
        for expert in _kept(copies, kept):
            at = position + expert * block_bytes
            for tensor in block:
                yield tensor.name.replace("*", str(expert)), tensor, at
                at += tensor.nbytes
        position += copies * block_bytes


def _kept(experts: int, kept: int | None) -> range:
    return range(experts) if kept is None or kept >= experts else range(0, experts, -(-experts // kept))


def _even(model: Model, name: str, fraction: float) -> int:
    return min(int(fraction * model.shards), model.shards - 1)


def _by_layer(model: Model, name: str, fraction: float) -> int:
    layer = layer_of(name)
    if layer is not None:
        return layer
    tail = {"embed_tokens": model.shards - 3, "mm_projector": model.shards - 1}
    return next((shard for part, shard in tail.items() if part in name), model.shards - 2)
