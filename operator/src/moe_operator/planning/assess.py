"""One layout, judged: engine rules, memory of every stage, what fits into the rest.

The rank that matters is the one whose stage leaves the smallest share of what a request needs; all others
get at least as much. Budgets are the engines': vLLM claims ``memory_utilization`` of the GPU for all it
does, SGLang of what is free before it loads, and for weights and caches only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil

from moe_operator.checkpoint.model import Checkpoint
from moe_operator.planning import memory_refusals as refuse
from moe_operator.planning.assumed import TIGHT
from moe_operator.planning.kv_cache import LONGEST, StageCache, stage_cache
from moe_operator.planning.overhead import batched_tokens, overhead_rows
from moe_operator.planning.plan import Assessment, Layout, Refusal, Request, Row, Rule, Stage, Verdict
from moe_operator.planning.rank_weights import file_bytes, stage_weights
from moe_operator.planning.speed import speed
from moe_operator.planning.stages import partition

# SGLang starts with a pool that cannot hold one request of the context length, and turns such requests away
TOLERATED = {"SGLang": frozenset({"KV_CACHE_TOO_SMALL"})}
WORTHWHILE_TOKENS = 32_768  # a plan whose longest request is shorter, and the model's own is not, is Tight


@dataclass(frozen=True, slots=True)
class Judges:
    """What an engine says about a layout: ``rules`` refuse, ``cautions`` warn."""

    rules: Sequence[Rule] = ()
    cautions: Sequence[Rule] = ()


NO_JUDGES = Judges()


@dataclass(frozen=True, slots=True)
class Ranks:
    """One rank of every stage: its memory and what a request takes of it."""

    stages: Sequence[Stage]
    caches: Sequence[StageCache]

    def __iter__(self) -> Iterator[tuple[Stage, StageCache]]:
        return zip(self.stages, self.caches, strict=True)

    def longest(self, requests: int, limit: int) -> int:
        """Most tokens that ``requests`` of one data-parallel rank can have at once."""
        for stage, cache in self:
            limit = cache.longest(stage.pool_bytes, requests, limit)
        return limit

    def worst(self, tokens: int) -> int:
        """The stage that limits requests of ``tokens``."""
        left = [stage.pool_bytes / max(1, cache.request_bytes(tokens)) for stage, cache in self]
        return left.index(min(left))


def assess(layout: Layout, checkpoint: Checkpoint, request: Request, judges: Judges) -> Assessment:
    """Judge ``layout``, whose shape must be valid for the nodes."""
    broken = _said(judges.rules, layout, checkpoint, request)
    if layout.pipeline > len(checkpoint.order):
        broken = (*broken, refuse.more_stages_than_layers(layout, len(checkpoint.order)))
        return Assessment(layout, "Refused", refusals=broken)
    cautions = _said(judges.cautions, layout, checkpoint, request)
    ranges = partition(len(checkpoint.order), layout.pipeline)
    weights = stage_weights(checkpoint, layout, ranges, request)
    in_flight = batched_tokens(request)
    caches = [stage_cache(checkpoint, layout, layers, request, in_flight) for layers in ranges]
    base = Assessment(
        layout,
        "Refused" if broken else "Fits",
        speed=speed(checkpoint, layout, request, weights, caches),
        refusals=broken,
        cautions=cautions,
        max_model_len=request.max_model_len or checkpoint.max_positions or None,
    )
    if not request.gpu_memory_bytes:
        return base
    stages = [
        _stage(number, layers, rows, overhead_rows(checkpoint, layout, layers, request), request)
        for number, (layers, rows) in enumerate(zip(ranges, weights, strict=True))
    ]
    return _judged(base, checkpoint, request, Ranks(stages, caches))


def _stage(
    number: int, layers: range, weights: Counter[str], overhead: tuple[Row, ...], request: Request
) -> Stage:
    held = sum(weights.values())
    claimed = sum(row.size for row in overhead) if request.engine == "vLLM" else 0
    return Stage(
        number=number,
        layers=len(layers),
        rows=(*(Row(name, size) for name, size in weights.items() if size), *overhead),
        weight_bytes=held,
        file_bytes=file_bytes(weights),
        pool_bytes=budget_bytes(request) - held - claimed,
    )


def budget_bytes(request: Request) -> int:
    """What the engine may use of a GPU.

    vLLM takes its share of all memory (vllm/v1/worker/utils.py: request_memory); SGLang of what is free
    before the weights load, when CUDA and NCCL are already there (sglang model_runner.py; InferenceX#2128:
    125.65 GiB of weights need 0.9113 of an H200 with 140.40 GiB, so 137.88 GiB were free).
    """
    memory, assumed = request.gpu_memory_bytes or 0, request.assumed
    if request.engine == "SGLang":
        memory = max(0, memory - assumed.runtime_bytes - assumed.nccl_bytes)
    return ceil(memory * request.memory_utilization)


def _judged(base: Assessment, checkpoint: Checkpoint, request: Request, ranks: Ranks) -> Assessment:
    """What fits into the pools, and whether that is enough."""
    layout = base.layout
    per_rank = ceil(request.concurrency / layout.data)
    own = checkpoint.max_positions or LONGEST
    longest = ranks.longest(
        per_rank, own if request.max_model_len is None else max(own, request.max_model_len)
    )
    length = request.max_model_len or longest
    worst = ranks.worst(max(length, 1))
    stage, cache = ranks.stages[worst], ranks.caches[worst]
    needed = cache.request_bytes(max(length, 1))
    fitting = min(s.pool_bytes // c.request_bytes(max(length, 1)) for s, c in ranks)
    slack = stage.pool_bytes - (per_rank * needed if request.max_model_len else 0)
    memory = _memory(request, stage, longest, needed)
    lasting = [m for m in memory if m.code not in TOLERATED.get(request.engine, ())]
    crowded = (refuse.nothing_beside_pool(request, stage) for stage in ranks.stages)
    minor = (*(m for m in memory if m not in lasting), *islice(filter(None, crowded), 1))
    refusals = (*base.refusals, *lasting)
    return replace(
        base,
        verdict=_verdict(refusals, slack, longest, own),
        cautions=(*base.cautions, *minor),
        stages=tuple(ranks.stages),
        worst=worst,
        kv_token_bytes=cache.token_bytes,
        state_bytes=cache.state_bytes,
        kv_request_bytes=needed,
        max_model_len=min(longest, length) if length else None,
        longest=longest,
        max_concurrency=max(0, fitting) * layout.data,
        slack_bytes=slack,
        refusals=refusals,
    )


def _memory(request: Request, stage: Stage, longest: int, needed: int) -> list[Refusal]:
    budget, memory = budget_bytes(request), request.gpu_memory_bytes or 0
    if stage.weight_bytes + request.assumed.runtime_bytes > memory:
        return [refuse.weights_exceed(stage, memory)]
    if stage.pool_bytes <= 0 or longest == 0:
        return [refuse.no_cache(request, stage, budget)]
    if request.max_model_len and longest < request.max_model_len:
        return [refuse.cache_too_small(request, stage, needed, longest)]
    return []


def _verdict(refusals: Sequence[Refusal], slack: int, longest: int, own: int) -> Verdict:
    if refusals:
        return "Refused"
    return "Tight" if slack < TIGHT or longest < min(own, WORTHWHILE_TOKENS) else "Fits"


def _said(
    rules: Sequence[Rule], layout: Layout, checkpoint: Checkpoint, request: Request
) -> tuple[Refusal, ...]:
    return tuple(said for rule in rules if (said := rule(layout, checkpoint, request)))
