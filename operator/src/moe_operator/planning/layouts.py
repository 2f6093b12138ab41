"""Which layouts exist for so many nodes, and why a pinned one does not.

A layout fills all GPUs. Tensor parallelism stays inside the NVLink domain unless it may leave it. Engines
are started one pod per node, so a data-parallel rank (TP·PP GPUs) either divides a node, or fills whole
nodes and is the only one. Pipelines of more than ``DEEPEST`` stages, and of more than one per node, are
looked at only when pinned.
"""

from __future__ import annotations

from collections.abc import Iterator

from moe_operator.planning.plan import Layout, Refusal, Request

DEEPEST = 8


def candidates(request: Request, nodes: int) -> Iterator[Layout]:
    """Every layout of ``nodes`` with a valid shape that agrees with what is pinned."""
    gpus = nodes * request.gpus_per_node
    for tensor in _choices(request.pinned.tensor, gpus):
        for pipeline in _choices(request.pinned.pipeline, gpus // tensor if gpus % tensor == 0 else 0):
            if pipeline > max(DEEPEST, nodes) and not request.pinned.pipeline:
                continue
            data, rest = divmod(gpus, tensor * pipeline)
            if rest or data != (request.pinned.data or data):
                continue
            for layout in _variants(request, nodes, tensor, pipeline, data):
                if next(shape_refusals(layout, request), None) is None:
                    yield layout


def _choices(pinned: int | None, gpus: int) -> list[int]:
    return [pinned] if pinned else divisors(gpus)


def _variants(request: Request, nodes: int, tensor: int, pipeline: int, data: int) -> Iterator[Layout]:
    checkpoint, pinned = request.checkpoint, request.pinned
    moe = checkpoint.is_moe if checkpoint else bool(pinned.expert)
    parallel = tensor * data > 1
    if pinned.expert is not None:
        experts = [pinned.expert]
    elif request.balanced_experts or request.all_to_all:  # both are about expert parallelism
        experts = [True]
    else:
        experts = [True, False] if moe and parallel else [False]
    contexts = [pinned.decode_context] if pinned.decode_context else _contexts(request, tensor)
    for expert in experts:
        for context in contexts:
            yield Layout(tensor, pipeline, data, expert, nodes, request.gpus_per_node, context)


def _contexts(request: Request, tensor: int) -> list[int]:
    """Decode-context sizes worth a look: none, or as many ranks as hold copies of the same KV head."""
    checkpoint = request.checkpoint
    if checkpoint is None or request.engine != "vLLM":
        return [1]
    copies = tensor if checkpoint.has_latent_cache else tensor // checkpoint.kv_heads
    return [1, copies] if copies > 1 and tensor % copies == 0 else [1]


def propose(request: Request, nodes: int) -> Layout:
    """The layout nearest to what is pinned: TP as wide as heads and node allow, then DP over the rest."""
    pinned, gpus = request.pinned, nodes * request.gpus_per_node
    moe = request.checkpoint.is_moe if request.checkpoint else bool(pinned.expert)
    pipeline = pinned.pipeline or (1 if moe or pinned.data or pinned.tensor else nodes)
    tensor = pinned.tensor or _widest_tensor(request, gpus // (pipeline * (pinned.data or 1)))
    return Layout(
        tensor=tensor,
        pipeline=pipeline,
        data=pinned.data or max(1, gpus // (tensor * pipeline)),
        expert=moe if pinned.expert is None else pinned.expert,
        nodes=nodes,
        gpus_per_node=request.gpus_per_node,
        decode_context=pinned.decode_context or 1,
    )


def shape_refusals(layout: Layout, request: Request) -> Iterator[Refusal]:
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
            f"choose tensor × pipeline among {divisors(node)}",
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


def divisors(number: int) -> list[int]:
    """Divisors in ascending order; none of 0."""
    return [d for d in range(1, number + 1) if number % d == 0]


def _widest_tensor(request: Request, room: int) -> int:
    limit = max(1, min(request.gpus_per_node, room))
    heads = request.checkpoint.attention_heads if request.checkpoint else 0
    fitting = [t for t in divisors(request.gpus_per_node) if t <= limit and heads % t == 0]
    return max(fitting, default=1)


def _nearest_data(layout: Layout) -> str:
    if layout.gpus % layout.model_parallel == 0:
        return f"data: {layout.gpus // layout.model_parallel}"
    return f"choose tensor × pipeline × data = {layout.gpus}"


def family(layout: Layout) -> tuple[bool, bool, bool, bool, bool]:
    """What a layout splits by: the ways of splitting that people name, whatever their sizes."""
    return (
        layout.tensor > 1,
        layout.pipeline > 1,
        layout.data > 1,
        layout.expert,
        layout.decode_context > 1,
    )
