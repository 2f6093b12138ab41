"""A checkpoint as the planner sees it: layers with their weights and caches, and what lies around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from moe_operator.checkpoint.cache import StateCache, TokenCache
from moe_operator.checkpoint.precision import BF16, Precision
from moe_operator.checkpoint.weights import Part, Split, Weight


@dataclass(frozen=True)
class Layer:
    """One decoder layer; equal layers share one value."""

    weights: tuple[Weight, ...]
    caches: tuple[TokenCache, ...] = ()
    state: StateCache | None = None
    absorbed_bytes: int = 0  # bf16 copies of MLA's kv_b that engines make after loading, all ranks together
    unpacked_bytes: int = 0  # more that SGLang makes of DeepSeek-V4's wo_a, all ranks together

    @cached_property
    def nbytes(self) -> int:
        """Bytes in the checkpoint."""
        return sum(w.nbytes for w in self.weights)

    @cached_property
    def split_bytes(self) -> Mapping[Split, int]:
        """Bytes by how engines spread them."""
        sums = Counter[Split]()
        for weight in self.weights:
            sums[weight.split] += weight.nbytes
        return sums

    @cached_property
    def routed(self) -> tuple[Weight, ...]:
        """Matrices of its routed experts."""
        return tuple(w for w in self.weights if w.split is Split.EXPERTS)


@dataclass(frozen=True)
class Checkpoint:
    """A model's shape and size. Zero means that the config does not say.

    ``weight_bytes`` is what the index states, else what the arithmetic gives; ``computed_bytes`` always the
    latter. Weights that the index has and the arithmetic lacks are in ``outside`` as Part.OTHER.
    """

    architecture: str
    hidden: int
    vocabulary: int
    attention_heads: int
    kv_heads: int
    linear_heads: int
    routed_experts: int
    experts_per_token: int
    expert_hidden: int  # width that routed experts work on
    expert_inner: int
    max_positions: int
    quantization: str
    kv_fp8: bool
    kinds: tuple[Layer, ...]  # the distinct decoder layers
    order: tuple[int, ...]  # kind of each layer, first to last
    draft_layers: tuple[Layer, ...]
    outside: tuple[Weight, ...]
    weight_bytes: int
    computed_bytes: int
    min_expert_partition: int = 0  # the engine pads a rank's share of an expert's inner dimension to this
    known: bool = True  # whether the architecture has a reader of its own
    assumptions: tuple[str, ...] = ()
    contradiction: str = ""  # between config and index; "" = none

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Decoder layers, first to last."""
        return tuple(self.kinds[k] for k in self.order)

    @property
    def is_moe(self) -> bool:
        """Whether tokens are routed to experts."""
        return self.routed_experts > 1

    @cached_property
    def has_latent_cache(self) -> bool:
        """Whether some layer keeps one latent per token that tensor parallelism cannot split."""
        return any(c.is_latent and not c.fixed for kind in self.kinds for c in kind.caches)

    @cached_property
    def has_state(self) -> bool:
        """Whether some layer keeps a constant state per request."""
        return any(kind.state for kind in self.kinds)

    @cached_property
    def packs_cache(self) -> bool:
        """Whether engines keep its cache in a packed FP8 layout by default."""
        return any(c.packed for kind in self.kinds for c in kind.caches)

    @cached_property
    def expert_precision(self) -> Precision:
        """How routed experts are stored; bf16 when there are none."""
        routed = (w.precision for kind in self.kinds for w in kind.weights if w.part is Part.ROUTED)
        return next(routed, BF16)

    @cached_property
    def precisions(self) -> frozenset[Precision]:
        """Every quantized format that occurs in the layers."""
        weights = (w for kind in self.kinds for w in kind.weights)
        return frozenset(w.precision for w in weights if w.precision.is_quantized)

    @cached_property
    def split_mlps(self) -> tuple[Weight, ...]:
        """Quantized matrices of dense MLPs and shared experts that tensor parallelism cuts."""
        weights = (w for kind in self.kinds for w in kind.weights)
        return tuple(
            w for w in weights
            if w.part in {Part.DENSE, Part.SHARED} and w.split is Split.TENSOR and w.precision.is_quantized
        )  # fmt: skip

    @cached_property
    def parameters(self) -> int:
        """Weights in number, multi-token prediction included."""
        layers = (*self.layers, *self.draft_layers)
        weights = [*self.outside, *(w for layer in layers for w in layer.weights)]
        return sum(w.shape.copies * w.shape.out * w.shape.into for w in weights if w.part is not Part.OTHER)
