"""Chooses a layout and refuses those that cannot start: the whole answer before any pod exists.

All layouts with a valid shape are judged by the engine's start-up rules and by memory, then ranked
(:mod:`.ranking`). What is pinned is kept; what cannot work is refused with all that is wrong at once, so a
user mends it in one edit. The answer depends on nothing but the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from moe_operator.checkpoint.cache import FP8_BYTES
from moe_operator.checkpoint.model import Checkpoint
from moe_operator.planning.assess import NO_JUDGES, Judges, assess, budget_bytes
from moe_operator.planning.assumed import GIB, TOLERANCE
from moe_operator.planning.kv_cache import element_bytes
from moe_operator.planning.layouts import candidates, propose, shape_refusals
from moe_operator.planning.overhead import batched_tokens
from moe_operator.planning.plan import Assessment, Layout, Pinned, Plan, Refusal, Request, Row
from moe_operator.planning.ranking import MEMORY_CODES, ranked, why

UNKNOWN_MODEL = "the source gives no facts about the model: heads, experts and sizes are not checked"
NO_DOMAIN = "tensor parallelism may leave the NVLink domain (placement.policy: Preferred)"
UNKNOWN_MEMORY = "the GPU's memory is not known: whether the weights fit is not checked"
MAX_NODES = 512
PATIENCE = 16  # node counts beyond the lower bound that are tried when none is asked for
SHOWN = 8
KV_CACHE = "KV cache"


def plan(request: Request, judges: Judges = NO_JUDGES) -> Plan:
    """Answer ``request``; ``judges`` are the engine's own start-up checks."""
    checkpoint = request.checkpoint
    if checkpoint is None:
        return _without_facts(request)
    nodes = request.nodes or fewest_nodes(request, judges) or least_nodes(request)
    order = ranked(assess(layout, checkpoint, request, judges) for layout in candidates(request, nodes))
    if not order:
        order = [_misshapen(request, nodes, judges)]
    return _answer(request, checkpoint, order, judges)


def fewest_nodes(request: Request, judges: Judges = NO_JUDGES) -> int | None:
    """The smallest number of nodes with a layout that fits, or with a tight one where none nearby fits.

    None when no number up to ``PATIENCE`` beyond the lower bound will do.
    """
    checkpoint = request.checkpoint
    if checkpoint is None or not request.gpu_memory_bytes:
        return 1
    tight = None
    for nodes in range(least_nodes(request), min(least_nodes(request) + PATIENCE, MAX_NODES) + 1):
        verdicts = {
            assess(layout, checkpoint, request, judges).verdict for layout in candidates(request, nodes)
        }
        if "Fits" in verdicts:
            return nodes
        tight = tight or (nodes if "Tight" in verdicts else None)
    return tight


def least_nodes(request: Request) -> int:
    """Fewer cannot hold the weights, however they are spread."""
    budget = budget_bytes(request)
    if request.checkpoint is None or not budget:
        return 1
    size = request.checkpoint.weight_bytes
    return min(MAX_NODES, max(1, ceil(size / (budget * request.gpus_per_node))))


def _without_facts(request: Request) -> Plan:
    layout = propose(request, request.nodes or 1)
    refusals = tuple(shape_refusals(layout, request))
    assumptions = (UNKNOWN_MODEL, *_unknown_hardware(request))
    return Plan(
        layout,
        "Refused" if refusals else "Fits",
        max_model_len=request.max_model_len,
        assumptions=assumptions,
        refusals=refusals,
    )


def _misshapen(request: Request, nodes: int, judges: Judges) -> Assessment:
    """What is pinned does not go together: say everything that is wrong with it."""
    layout = propose(request, nodes)
    refusals = tuple(shape_refusals(layout, request))
    checkpoint = request.checkpoint
    if checkpoint and not refusals:
        return assess(layout, checkpoint, request, judges)
    return Assessment(layout, "Refused", refusals=refusals)


def _answer(request: Request, checkpoint: Checkpoint, order: list[Assessment], judges: Judges) -> Plan:
    chosen = order[0]
    return Plan(
        layout=chosen.layout,
        verdict=chosen.verdict,
        rows=rows_of(chosen),
        max_model_len=chosen.max_model_len,
        concurrency=chosen.max_concurrency,
        assumptions=tuple(_assumptions(request, checkpoint, chosen.layout)),
        refusals=_with_nodes(request, chosen, judges),
        cautions=chosen.cautions,
        chosen=chosen,
        alternatives=tuple(order[:SHOWN]),
        why=why(order),
        considered=len(order),
    )


def _with_nodes(request: Request, chosen: Assessment, judges: Judges) -> tuple[Refusal, ...]:
    """Refusals for want of memory, with the number of nodes that would do."""
    refusals, nodes = chosen.refusals, chosen.layout.nodes
    if all(r.code not in MEMORY_CODES for r in refusals):
        return refusals
    enough = fewest_nodes(replace(request, nodes=None, pinned=Pinned()), judges)
    if enough is None or enough <= nodes:
        return refusals
    return tuple(
        replace(r, fix=f"nodes: {enough} or more; or {r.fix.removeprefix('more nodes, ')}")
        if r.code in MEMORY_CODES
        else r
        for r in refusals
    )


def rows_of(assessment: Assessment) -> tuple[Row, ...]:
    """The worst rank's memory, KV cache included; nothing when its memory was not judged."""
    if not assessment.stages:
        return ()
    stage = assessment.stages[assessment.worst]
    return (*stage.rows, Row(KV_CACHE, max(0, stage.pool_bytes)))


def _assumptions(request: Request, checkpoint: Checkpoint, layout: Layout) -> Iterator[str]:
    yield from checkpoint.assumptions
    yield from _unknown_hardware(request)
    if request.gpu_memory_bytes:
        yield (
            "memory beside weights and KV cache is estimated from public runs, "
            f"±{TOLERANCE / GIB:.0f} GiB per GPU"
        )
    if request.max_num_batched_tokens is None:
        yield f"the engine's default of {batched_tokens(request)} tokens per step"
    kind = "FP8" if element_bytes(checkpoint, request) == FP8_BYTES else "BF16"
    if request.kv_cache_dtype == "Auto":
        yield f"KV cache in {kind}, which the checkpoint's own settings make the engine choose"
    if any(layer.weights for layer in checkpoint.draft_layers) and not request.draft_tokens:
        yield "MTP layers are not loaded: speculative decoding is off"


def _unknown_hardware(request: Request) -> Iterator[str]:
    if request.gpu_memory_bytes is None:
        yield UNKNOWN_MEMORY
    if request.domain_gpus is None:
        yield NO_DOMAIN
