"""Which files the node of each rank needs, from how the plan spreads layers and experts over ranks.

Whole files only: a pipeline stage needs the shards that hold tensors of its layers, expert parallelism needs
the expert groups that ``moestage slice`` cut. Shards with tensors of no layer (embedding, head, vision),
shards of which nobody knows, and the last stage's drafting layers are always taken, so a selection errs by
being too large. What cannot be worked out for sure is refused: an engine that finds a file missing fails to
start, one that spreads its experts otherwise than planned would not notice.

Ranks count as both engines do: data parallel outside, pipeline inside of it, tensor parallel innermost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from glob import escape

from moe_operator.api.manifest import (
    SHARD_SUFFIX,
    Manifest,
    ManifestFile,
    expert_patterns,
    select_files,
    view_digest,
)
from moe_operator.api.spec import MoESpec
from moe_operator.checkpoint.model import Checkpoint
from moe_operator.planning.plan import Layout, Refusal
from moe_operator.planning.stages import partition
from moe_operator.rollout.revision import NodeFiles

LAYERS_MAX = 1 << 20
MOVING_ARGS = ("--enable-eplb", "--ep-num-redundant-experts", "--init-expert-location")
PLACING_ARG = "--expert-placement-strategy"
CUTTING_VARIABLES = frozenset({"VLLM_PP_LAYER_PARTITION", "SGLANG_PP_LAYER_PARTITION"})
FUSED_MODELS = frozenset(
    {"gpt_oss", "llama4", "llama4_text", "dbrx"}
)  # one tensor holds all experts of a layer
WHOLE_FIX = "weights.selection: Whole"


def rank_files(
    spec: MoESpec, layout: Layout, checkpoint: Checkpoint, manifest: Manifest
) -> tuple[NodeFiles, ...] | Refusal:
    """The files of every rank; empty when every rank needs all of them."""
    refusal = unsafe(spec, layout, manifest)
    if refusal:
        return refusal
    found = tuple(_node(layout, checkpoint, manifest.files, node) for node in range(layout.nodes))
    return found if any(each.only for each in found) else ()


def unsafe(spec: MoESpec, layout: Layout, manifest: Manifest) -> Refusal | None:
    """Why files cannot be told apart by rank."""
    args = [arg.split("=", 1)[0] for arg in spec.engine.args]
    moving = [arg for arg in args if arg in MOVING_ARGS]
    if spec.engine.expert_balancing.enabled or moving:
        said = (
            "expert balancing moves experts between ranks while they serve, so every node needs all of them"
        )
        return Refusal("PER_RANK_EXPERT_BALANCING", said, f"{WHOLE_FIX}, or expertBalancing.enabled: false")
    if PLACING_ARG in args:
        said = f"{PLACING_ARG} spreads experts otherwise than in the linear order that files are selected by"
        return Refusal("PER_RANK_EXPERT_PLACEMENT", said, f"{WHOLE_FIX}, or remove {PLACING_ARG}")
    kind = str(manifest.config.get("model_type", ""))
    if kind in FUSED_MODELS and expert_patterns(manifest.files, 0, 1) is not None:
        said = f"{kind} keeps all experts of a layer in one tensor, of which no file can hold a part"
        return Refusal(
            "PER_RANK_FUSED_EXPERTS", said, f"{WHOLE_FIX}, with the checkpoint as it was published"
        )
    cut = [v.name for v in spec.engine.env if v.name in CUTTING_VARIABLES]
    if layout.pipeline > 1 and (cut or spec.engine.type != "vLLM"):
        how = f"{cut[0]} cuts" if cut else f"{spec.engine.type} cuts"
        said = f"{how} the pipeline's layers otherwise than files are selected by"
        return Refusal(
            "PER_RANK_PIPELINE_CUT", said, f"{WHOLE_FIX}" + (f", or remove {cut[0]}" if cut else "")
        )
    return None


def _node(layout: Layout, checkpoint: Checkpoint, files: Sequence[ManifestFile], node: int) -> NodeFiles:
    shards = [file for file in files if file.path.endswith(SHARD_SUFFIX)]
    stages, experts = _held_by(layout, node)
    cut = partition(len(checkpoint.order), layout.pipeline)
    ranges = [cut[stage] for stage in stages]
    if layout.pipeline - 1 in stages:
        ranges.append(range(len(checkpoint.order), LAYERS_MAX))
    fitting = {file.path for file in shards if _holds(file, ranges)}
    groups = _groups(layout, checkpoint, shards, experts)
    if groups is not None:
        fitting &= {file.path for file in select_files(shards, groups)}
    if len(fitting) == len(shards):
        return NodeFiles(view_digest(files))
    only = tuple(escape(path) for path in sorted(fitting))
    return NodeFiles(view_digest(select_files(files, only)), only)


def _held_by(layout: Layout, node: int) -> tuple[set[int], set[int]]:
    """Pipeline stages and expert-parallel ranks that a node's GPUs hold."""
    stages, experts = set(), set()
    for rank in range(node * layout.gpus_per_node, (node + 1) * layout.gpus_per_node):
        outer, tensor = divmod(rank, layout.tensor)
        data, stage = divmod(outer, layout.pipeline)
        stages.add(stage)
        experts.add(data * layout.tensor + tensor)
    return stages, experts


def _holds(file: ManifestFile, ranges: Iterable[range]) -> bool:
    """Whether a shard may hold tensors of these layers."""
    if file.outside or file.layers is None:
        return True
    first, last = file.layers
    return any(first < layers.stop and last >= layers.start for layers in ranges)


def _groups(
    layout: Layout, checkpoint: Checkpoint, shards: Sequence[ManifestFile], ranks: Iterable[int]
) -> list[str] | None:
    """Patterns of the expert groups that these expert-parallel ranks need; None = all of them."""
    if not layout.expert or not checkpoint.routed_experts:
        return None
    patterns: dict[str, None] = {}
    for rank in ranks:
        found = expert_patterns(shards, *local_experts(checkpoint.routed_experts, layout.expert_ranks, rank))
        if found is None:
            return None
        patterns |= dict.fromkeys(found)
    return list(patterns)


def local_experts(experts: int, ranks: int, rank: int) -> tuple[int, int]:
    """First and one past the last expert of a rank, linear placement (vllm determine_expert_map)."""
    base, more = divmod(experts, ranks)
    first = rank * base + min(rank, more)
    return first, first + base + (rank < more)
