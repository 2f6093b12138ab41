"""Weights that one rank of a pipeline stage holds.

What engines split and what they repeat (vLLM 0.33, model_executor/layers; SGLang alike):

- column- and row-parallel matrices: bytes / TP; every data-parallel rank has a copy of its own;
- K and V projections: no further than there are KV heads; latent down-projections, indexers, routers,
  projections into an expert latent, norms: whole on every rank;
- routed experts with EP: whole experts, the fullest rank has ceil((experts + redundant) / (TP·DP));
  without: every expert is cut along its inner dimension over TP·DP ranks, and kernels pad the cut;
- embedding on the first stage, output head on the last, MTP layers on the last and only when drafting.

Invariant: parts that are split, times the ranks that split them, plus one copy of the rest, over all
stages, is the checkpoint without its MTP layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

from moe_operator.checkpoint.model import Checkpoint, Layer
from moe_operator.checkpoint.precision import MXFP4
from moe_operator.checkpoint.weights import Part, Split, Weight
from moe_operator.planning.plan import Layout, Request

MXFP4_INNER_MULTIPLE = 128  # vllm fused_moe/oracle/mxfp4.py: a rank's share of the inner dimension
MXFP4_HIDDEN_MULTIPLE = 256  # Marlin and TRT-LLM kernels pad the width that experts work on

ROUTED = "routed experts"
REPLICATED = "replicated parts"
SHARDED = "attention and dense"
EMBEDDING = "embedding and head"
PADDING = "kernel padding"
COPIES = "copies made after loading"
DRAFTS = "MTP layers"
VISION = "vision tower"
OTHER = "not classified"
WEIGHT_ROWS = (ROUTED, REPLICATED, SHARDED, EMBEDDING, VISION, DRAFTS, OTHER)  # what the file holds

_ROW_OF_PART = {
    Part.EMBEDDING: EMBEDDING,
    Part.HEAD: EMBEDDING,
    Part.VISION: VISION,
    Part.OTHER: OTHER,
}
_FIRST_STAGE = frozenset({Part.EMBEDDING, Part.VISION, Part.OTHER})


def stage_weights(
    checkpoint: Checkpoint, layout: Layout, stages: Sequence[range], request: Request
) -> list[Counter[str]]:
    """Row name → bytes on the fullest rank of every stage, given the layers that each holds."""
    kinds = [layer_rows(checkpoint, kind, layout, request) for kind in checkpoint.kinds]
    rows = [_layers(checkpoint, kinds, stage) for stage in stages]
    for weight in checkpoint.outside:
        at = 0 if weight.part in _FIRST_STAGE else -1
        rows[at][_ROW_OF_PART.get(weight.part, REPLICATED)] += _rank_bytes(weight, layout)
    if request.draft_tokens:
        drafts = (layer_rows(checkpoint, layer, layout, request) for layer in checkpoint.draft_layers)
        rows[-1][DRAFTS] += sum(sum(draft.values()) for draft in drafts)
    return rows


def _layers(checkpoint: Checkpoint, kinds: Sequence[Counter[str]], stage: range) -> Counter[str]:
    rows: Counter[str] = Counter()
    for kind, count in Counter(checkpoint.order[stage.start : stage.stop]).items():
        for name, size in kinds[kind].items():
            rows[name] += count * size
    return rows


def layer_rows(checkpoint: Checkpoint, layer: Layer, layout: Layout, request: Request) -> Counter[str]:
    """Row name → bytes of one layer on the fullest rank."""
    rows: Counter[str] = Counter()
    by_split, kv_ranks = layer.split_bytes, min(layout.tensor, checkpoint.kv_heads)
    rows[REPLICATED] = by_split[Split.WHOLE]
    rows[SHARDED] = ceil(by_split[Split.TENSOR] / layout.tensor) + ceil(by_split[Split.KV_HEADS] / kv_ranks)
    copies = layer.absorbed_bytes + (layer.unpacked_bytes if request.engine == "SGLang" else 0)
    rows[COPIES] = ceil(copies / layout.tensor)
    for weight in layer.routed:
        size, padding = routed_bytes(weight, checkpoint, layout, request.redundant_experts)
        rows[ROUTED] += size
        rows[PADDING] += padding
    return rows


def routed_bytes(weight: Weight, checkpoint: Checkpoint, layout: Layout, redundant: int) -> tuple[int, int]:
    """Bytes of a routed matrix on the fullest rank, and what kernels add by padding."""
    experts = weight.shape.copies
    if layout.expert:
        local = ceil((experts + redundant) / layout.expert_ranks)
        size = ceil(weight.nbytes / experts * local)
    else:
        size = ceil(weight.nbytes / layout.expert_slices)
    return size, ceil(size * (_padding(weight, checkpoint, layout) - 1))


def expert_partition(checkpoint: Checkpoint, layout: Layout) -> int:
    """A rank's share of an expert's inner dimension."""
    return ceil(checkpoint.expert_inner / layout.expert_slices)


def touched_bytes(rows: Counter[str], share: float) -> float:
    """Bytes that a decode step reads: all but the embedding, and ``share`` of the routed experts."""
    routed = rows[ROUTED] + rows[PADDING]
    return sum(rows.values()) - rows[EMBEDDING] / 2 - rows[VISION] - rows[COPIES] - routed * (1 - share)


def file_bytes(rows: Counter[str]) -> int:
    """Bytes that come from the checkpoint's files, without padding and copies."""
    return sum(rows[name] for name in WEIGHT_ROWS)


def _padding(weight: Weight, checkpoint: Checkpoint, layout: Layout) -> float:
    """Padded size ÷ size."""
    inner = expert_partition(checkpoint, layout)
    padded_inner, hidden = inner, checkpoint.expert_hidden
    padded_hidden = hidden
    if weight.precision is MXFP4:
        padded_hidden = _round_up(hidden, MXFP4_HIDDEN_MULTIPLE)
        padded_inner = _round_up(inner, MXFP4_INNER_MULTIPLE) if layout.expert_slices > 1 else inner
    if layout.expert_slices > 1:
        padded_inner = max(padded_inner, checkpoint.min_expert_partition)
    return padded_inner / inner * padded_hidden / hidden


def _rank_bytes(weight: Weight, layout: Layout) -> int:
    return weight.nbytes if weight.split is Split.WHOLE else ceil(weight.nbytes / layout.tensor)


def _round_up(number: int, multiple: int) -> int:
    return ceil(number / multiple) * multiple
