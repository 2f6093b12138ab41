"""What a decode step costs at least, to rank layouts: weights read from memory, bytes over links and network.

The model is a roofline without compute. All layouts decode the same number of requests, which spread over
data-parallel ranks and over the stages of a pipeline. A step of all of them

- reads on every rank its dense weights, the touched share of its experts (1 − (1 − k/E)^tokens) and the
  cache of its requests; a pipeline does so stage by stage for every batch that is in flight;
- all-reduces hidden states twice per layer inside a tensor-parallel group (ring: 2(n−1)/n of the bytes);
- sends every token to its experts and back when experts lie on other data-parallel ranks;
- passes hidden states on between stages.

Every number is a lower bound on time, so tokens per second are ceilings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from moe_operator.checkpoint.model import Checkpoint
from moe_operator.hardware.catalogue import Gpu
from moe_operator.planning.kv_cache import StageCache
from moe_operator.planning.plan import Layout, Request, Speed
from moe_operator.planning.rank_weights import touched_bytes

COLLECTIVES_PER_LAYER = 2  # after attention, after the MLP (Megatron-LM)
SOME_GPU = Gpu("some GPU", 0)


def speed(
    checkpoint: Checkpoint,
    layout: Layout,
    request: Request,
    stages: Sequence[Counter[str]],
    caches: Sequence[StageCache],
) -> Speed:
    """``stages``: weight rows of every stage's fullest rank; ``caches``: what a request takes there."""
    gpu, assumed = request.gpu or SOME_GPU, request.assumed
    bandwidth = gpu.memory_gb_per_second * 1e9
    in_flight = assumed.sequences_per_gpu * layout.gpus / layout.pipeline
    sequences = in_flight / layout.data
    cached = sum(cache.request_bytes(assumed.compared_tokens) for cache in caches) / bandwidth
    full = _read_seconds(stages, _touched(checkpoint, in_flight), bandwidth) + sequences * cached
    alone = _read_seconds(stages, _touched(checkpoint, 1), bandwidth) + cached
    domain = request.domain_gpus or layout.gpus_per_node
    return Speed(
        communication_seconds=_communication(checkpoint, layout, request, gpu, sequences),
        step_seconds=full,
        stream_tokens_per_second=1 / (alone + _communication(checkpoint, layout, request, gpu, 1)),
        inner_pipeline=layout.pipeline > 1 and layout.model_parallel <= domain,
    )


def _read_seconds(stages: Sequence[Counter[str]], share: float, bandwidth: float) -> float:
    return sum(touched_bytes(rows, share) for rows in stages) / bandwidth


def _touched(checkpoint: Checkpoint, tokens: float) -> float:
    """Expected share of routed experts that ``tokens`` reach."""
    if not checkpoint.is_moe:
        return 1.0
    missed: float = (1 - checkpoint.experts_per_token / checkpoint.routed_experts) ** tokens
    return 1 - missed


def _communication(
    checkpoint: Checkpoint, layout: Layout, request: Request, gpu: Gpu, sequences: float
) -> float:
    assumed, layers = request.assumed, len(checkpoint.order)
    domain = request.domain_gpus or layout.gpus_per_node
    hidden = sequences * checkpoint.hidden * 2

    def over(ranks: int, nbytes: float) -> float:
        """One collective among ``ranks`` neighbouring GPUs."""
        if ranks <= domain:
            return nbytes / (gpu.link_gb_per_second * 1e9) + assumed.link_latency_seconds
        return nbytes / assumed.fabric_bytes_per_second + assumed.fabric_latency_seconds

    seconds = 0.0
    if layout.tensor > 1:
        ring = 2 * (layout.tensor - 1) / layout.tensor * hidden
        seconds += layers * COLLECTIVES_PER_LAYER * over(layout.tensor, ring)
    if layout.data > 1 and checkpoint.is_moe:
        ranks = layout.tensor * layout.data
        seconds += 2 * layers * over(ranks, _exchanged(checkpoint, layout, sequences, ranks, domain))
    if layout.pipeline > 1:
        seconds += (layout.pipeline - 1) * over(layout.model_parallel, hidden / layout.tensor)
    return seconds


def _exchanged(checkpoint: Checkpoint, layout: Layout, sequences: float, ranks: int, domain: int) -> float:
    """Bytes that a rank sends one way in one MoE layer and that leave its NVLink domain, if any do."""
    remote = 1 - min(1.0, domain / ranks) if ranks > domain else 1.0
    if layout.expert:
        return (
            sequences / layout.tensor * checkpoint.experts_per_token * checkpoint.expert_hidden * 2 * remote
        )
    return sequences * layout.data * checkpoint.hidden * 2 * remote  # every token to every rank
