"""Weights of a checkpoint by what they are for and how engines split them over ranks.

A :class:`Shape` is what an architecture declares; a :class:`Weight` also knows how it is stored. Names are
relative to their layer, as the checkpoint spells them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from moe_operator.checkpoint.precision import Precision


class Part(Enum):
    """What a weight is for; the rows of the memory table."""

    ATTENTION = "attention"
    LINEAR_ATTENTION = "linear attention"
    INDEXER = "sparse attention index"
    DENSE = "dense MLP"
    SHARED = "shared experts"
    ROUTED = "routed experts"
    ROUTER = "router and latent projections"
    NORM = "norms"
    EMBEDDING = "embedding"
    HEAD = "output head"
    DRAFT = "MTP projections"
    VISION = "vision"
    OTHER = "not classified"


class Split(Enum):
    """How engines spread a weight (vllm/model_executor/layers/linear.py, fused_moe/layer.py)."""

    TENSOR = "over tensor-parallel ranks"
    KV_HEADS = "over tensor-parallel ranks, no further than there are KV heads"
    WHOLE = "on every rank"
    EXPERTS = "over expert-parallel ranks, or along the expert's inner dimension"


@dataclass(frozen=True, slots=True)
class Shape:
    """A matrix ``out`` × ``into``, ``copies`` times (one per routed expert, ``*`` in the name)."""

    name: str
    out: int
    into: int
    part: Part
    split: Split = Split.TENSOR
    copies: int = 1
    fixed: Precision | None = None  # stored so, whatever the quantization says


@dataclass(frozen=True, slots=True)
class Weight:
    """A :class:`Shape` as it is stored. ``nbytes`` counts all copies."""

    shape: Shape
    precision: Precision
    nbytes: int

    @classmethod
    def stored(cls, shape: Shape, precision: Precision) -> Weight:
        """With its size worked out."""
        return cls(shape, precision, shape.copies * precision.matrix_bytes(shape.out, shape.into))

    @property
    def part(self) -> Part:
        """What it is for."""
        return self.shape.part

    @property
    def split(self) -> Split:
        """How it is spread."""
        return self.shape.split
