"""Weights by the names of their tensors: exact bytes for an architecture that has no reader.

safetensors headers give every tensor's name and size. What a tensor is for is taken from its name, by the
patterns that nearly all modelling code on the Hub shares; the first that matches decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from moe_operator.checkpoint.precision import Precision
from moe_operator.checkpoint.weights import Part, Shape, Split, Weight

BYTES = Precision("bytes", 8)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_RULES: tuple[tuple[re.Pattern[str], Part, Split], ...] = tuple(
    (re.compile(pattern), part, split)
    for pattern, part, split in (
        (r"visual|vision|image|audio|mm_projector|multi_modal", Part.VISION, Split.WHOLE),
        (r"embed_tokens|word_embeddings|\bwte\b|(^|\.)embed\b", Part.EMBEDDING, Split.TENSOR),
        (r"lm_head|(^|\.)(output|head)\.weight", Part.HEAD, Split.TENSOR),
        (r"\.experts\.", Part.ROUTED, Split.EXPERTS),
        (r"shared_expert_gate|\.(gate|router)\.(weight|bias|e_score)", Part.ROUTER, Split.WHOLE),
        (r"shared_expert", Part.SHARED, Split.TENSOR),
        (r"norm", Part.NORM, Split.WHOLE),
        (r"indexer|index_[qk]", Part.INDEXER, Split.WHOLE),
        (r"(kv_a|q_a|compress)", Part.ATTENTION, Split.WHOLE),
        (r"\.(k|v)_proj", Part.ATTENTION, Split.KV_HEADS),
        (r"linear_attn|mamba|conv1d|A_log|dt_bias|in_proj|out_proj", Part.LINEAR_ATTENTION, Split.TENSOR),
        (r"attn|attention", Part.ATTENTION, Split.TENSOR),
        (r"mlp|ffn|feed_forward|(up|down|gate)_proj", Part.DENSE, Split.TENSOR),
    )
)


@dataclass(frozen=True, slots=True)
class NamedWeights:
    """Weights by layer number, and those outside of the layers."""

    layers: Mapping[int, tuple[Weight, ...]]
    outside: tuple[Weight, ...]


def sort_tensors(tensors: Mapping[str, int], experts: int) -> NamedWeights:
    """Sort tensor name → bytes. ``experts``: routed experts per layer, which share their tensors' bytes."""
    sums: Counter[tuple[int | None, Part, Split]] = Counter()
    for name, nbytes in tensors.items():
        layer = _LAYER.search(name)
        sums[(int(layer[1]) if layer else None, *classify(name))] += nbytes
    layers: dict[int, list[Weight]] = {}
    outside: list[Weight] = []
    for (number, part, split), nbytes in sums.items():
        vision = part is Part.VISION or number is None
        target = outside if vision else layers.setdefault(number or 0, [])
        target.append(weight_of(part, split, nbytes, experts))
    return NamedWeights({n: tuple(weights) for n, weights in sorted(layers.items())}, tuple(outside))


def layer_of(name: str) -> int | None:
    """The decoder layer of the tensor ``name``; None for those outside, vision towers included."""
    found = _LAYER.search(name)
    return int(found[1]) if found and classify(name)[0] is not Part.VISION else None


def classify(name: str) -> tuple[Part, Split]:
    """What the tensor ``name`` is for."""
    for pattern, part, split in _RULES:
        if pattern.search(name):
            return part, split
    return Part.OTHER, Split.WHOLE


def weight_of(part: Part, split: Split, nbytes: int, experts: int) -> Weight:
    """``nbytes`` of one part, without a shape."""
    copies = experts if split is Split.EXPERTS and experts > 1 else 1
    return Weight(Shape(part.value, 1, nbytes // copies, part, split, copies), BYTES, nbytes)
