"""Chooses a layout and refuses those that cannot start.

Order: shape (TP·PP·DP fills the GPUs, TP stays inside the NVLink domain, every node holds whole
data-parallel ranks or whole slices of one) → engine rules → memory. All that is refused is reported
together, so a user mends it in one edit.

Memory here is a lower bound: all weights spread evenly over all GPUs. A layout that fails it can never
load; one that passes it may still lack room for KV cache, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from moe_operator.checkpoint.model_facts import Checkpoint
from moe_operator.planning.plan import Layout, Plan, Refusal, Request, Row, Rule

GIB = 1 << 30
LOWER_BOUND = "weights are counted as spread evenly over all GPUs; KV cache is not counted yet"
UNKNOWN_MODEL = "the source gives no facts about the model: heads, experts and sizes are not checked"
NO_DOMAIN = "tensor parallelism may leave the NVLink domain (placement.policy: Preferred)"
UNKNOWN_MEMORY = "the GPU's memory is not known: whether the weights fit is not checked"
MAX_NODES = 512


def plan(request: Request, rules: Sequence[Rule] = ()) -> Plan:
    """Answer ``request``; ``rules`` are the engine's own start-up checks."""
    nodes = request.nodes or fewest_nodes(request)
    layout = propose(request, nodes)
    refusals = [*shape_refusals(layout, request)]
    if request.checkpoint and not refusals:
        refusals += _broken(rules, layout, request.checkpoint, request)
    memory = memory_refusal(layout, request)
    if memory:
        refusals.append(memory)
    return Plan(
        layout=layout,
        rows=_rows(layout, request),
        max_model_len=_model_len(request),
        assumptions=tuple(_assumptions(request)),
        refusals=tuple(refusals),
    )


def fewest_nodes(request: Request) -> int:
    """The smallest number of nodes whose GPUs can hold the weights; 1 when sizes are unknown."""
    usable = _usable_bytes(request)
    if not request.checkpoint or not usable:
        return 1
    return min(MAX_NODES, max(1, ceil(request.checkpoint.weight_bytes / (usable * request.gpus_per_node))))


def propose(request: Request, nodes: int) -> Layout:
    """Fill in what the user left open: TP as wide as heads and node allow, then DP over the rest."""
    pinned, gpus = request.pinned, nodes * request.gpus_per_node
    moe = request.checkpoint.is_moe if request.checkpoint else bool(pinned.expert)
    pipeline = pinned.pipeline or (1 if moe or pinned.data or pinned.tensor else nodes)
    tensor = pinned.tensor or _widest_tensor(request, gpus // (pipeline * (pinned.data or 1)))
    data = pinned.data or max(1, gpus // (tensor * pipeline))
    return Layout(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        expert=moe if pinned.expert is None else pinned.expert,
        nodes=nodes,
        gpus_per_node=request.gpus_per_node,
        decode_context=pinned.decode_context or 1,
    )


def shape_refusals(layout: Layout, request: Request) -> Iterable[Refusal]:
    """Does the split fill the GPUs, respect the NVLink domain and cut at node borders?"""
    if layout.world != layout.gpus:
        yield Refusal(
            "LAYOUT_GPU_MISMATCH",
            f"tensor {layout.tensor} × pipeline {layout.pipeline} × data {layout.data} = "
            f"{layout.world} ranks, but {layout.nodes} node(s) × {layout.gpus_per_node} GPUs = {layout.gpus}",
            _nearest_data(layout),
        )
    if request.domain_gpus and layout.tensor > request.domain_gpus:
        yield Refusal(
            "TP_BEYOND_NVLINK_DOMAIN",
            f"tensor parallel {layout.tensor} is wider than the NVLink domain of {request.domain_gpus} GPUs: "
            "every layer would wait for the network twice",
            f"tensor: {request.domain_gpus} or less and data or pipeline parallel over the nodes, or "
            "placement.policy: Preferred to accept it",
        )
    per_rank, node = layout.model_parallel, layout.gpus_per_node
    if per_rank <= node and node % per_rank:
        yield Refusal(
            "RANK_STRADDLES_NODES",
            f"a data-parallel rank of {per_rank} GPUs does not divide a node of {node}",
            f"choose tensor × pipeline among {_divisors(node)}",
        )
    if per_rank > node and per_rank % node:
        yield Refusal(
            "RANK_STRADDLES_NODES",
            f"a rank of {per_rank} GPUs does not fill whole nodes of {node}",
            f"choose tensor × pipeline as a multiple of {node}",
        )
    if per_rank > node and layout.data > 1:
        yield Refusal(
            "DP_OF_SPANNING_RANKS",
            f"data parallel {layout.data} of ranks that span {per_rank // node} nodes each "
            "is not supported yet",
            f"keep tensor × pipeline at {node} or less, or use replicas instead of data parallel",
        )


def memory_refusal(layout: Layout, request: Request) -> Refusal | None:
    """Refuse when even an even spread of the weights exceeds what the engine may use."""
    usable = _usable_bytes(request)
    if not request.checkpoint or not usable:
        return None
    share = request.checkpoint.weight_bytes / max(1, min(layout.world, layout.gpus))
    if share <= usable:
        return None
    return Refusal(
        "WEIGHTS_EXCEED_MEMORY",
        f"{request.checkpoint.weight_bytes / GIB:.1f} GiB of weights over {layout.gpus} GPUs is at least "
        f"{share / GIB:.1f} GiB per GPU, but the engine may use {usable / GIB:.1f} GiB",
        f"nodes: {fewest_nodes(request)} or more",
    )


def _broken(rules: Sequence[Rule], layout: Layout, checkpoint: Checkpoint, request: Request) -> list[Refusal]:
    return [refusal for rule in rules if (refusal := rule(layout, checkpoint, request))]


def _widest_tensor(request: Request, room: int) -> int:
    limit = max(1, min(request.gpus_per_node, room))
    heads = request.checkpoint.attention_heads if request.checkpoint else 0
    fitting = [t for t in _divisors(request.gpus_per_node) if t <= limit and heads % t == 0]
    return max(fitting, default=1)


def _model_len(request: Request) -> int | None:
    own = request.checkpoint.max_positions if request.checkpoint else 0
    return request.max_model_len or own or None


def _rows(layout: Layout, request: Request) -> tuple[Row, ...]:
    if not request.checkpoint:
        return ()
    return (Row("weights (lower bound)", ceil(request.checkpoint.weight_bytes / max(1, layout.gpus))),)


def _assumptions(request: Request) -> Iterable[str]:
    yield LOWER_BOUND if request.checkpoint else UNKNOWN_MODEL
    if request.gpu_memory_bytes is None:
        yield UNKNOWN_MEMORY
    if request.domain_gpus is None:
        yield NO_DOMAIN


def _usable_bytes(request: Request) -> int:
    return int((request.gpu_memory_bytes or 0) * request.memory_utilization)


def _nearest_data(layout: Layout) -> str:
    if layout.gpus % layout.model_parallel == 0:
        return f"data: {layout.gpus // layout.model_parallel}"
    return f"choose tensor × pipeline × data = {layout.gpus}"


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
