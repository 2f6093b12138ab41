"""Refusals for want of memory, in the engines' own words.

vLLM: vllm/v1/core/kv_cache_utils.py (check_enough_kv_cache_memory); SGLang: the message of its memory hook.
"""

from __future__ import annotations

from math import floor

from moe_operator.planning.assumed import GIB
from moe_operator.planning.plan import Layout, Refusal, Request, Stage


def gib(size: float) -> str:
    """Two decimals, as the engines log."""
    return f"{size / GIB:.2f}"


def weights_exceed(stage: Stage, memory: int) -> Refusal:
    """The weights alone are more than a GPU holds beside the CUDA runtime."""
    return Refusal(
        "WEIGHTS_EXCEED_MEMORY",
        f"{gib(stage.weight_bytes)} GiB of weights on every rank of stage {stage.number}, but a GPU has "
        f"{gib(memory)} GiB: torch.OutOfMemoryError while loading",
        "more nodes, a smaller quantization, or larger GPUs",
    )


def no_cache(request: Request, stage: Stage, budget: int) -> Refusal:
    """The weights load, then nothing is left for the KV cache."""
    if request.engine == "vLLM":
        message = (
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            f"initializing the engine. (weights {gib(stage.weight_bytes)} GiB, other memory "
            f"{gib(budget - stage.weight_bytes - stage.pool_bytes)} GiB, budget {gib(budget)} GiB)"
        )
        fix = "more nodes, a higher memoryUtilization, or a smaller maxNumBatchedTokens"
    else:
        needed = stage.weight_bytes / budget * request.memory_utilization
        message = (
            "Loaded weights leave no GPU memory for the KV cache under "
            f"--mem-fraction-static={request.memory_utilization:g}; weights alone need {needed:.4f}"
        )
        fix = f"more nodes, or a memoryUtilization above {needed:.4f}"
    return Refusal("NO_KV_MEMORY", message, fix)


def cache_too_small(request: Request, stage: Stage, needed: int, longest: int) -> Refusal:
    """One request of the asked length does not fit."""
    many = f" for each of {request.concurrency} requests at once" if request.concurrency > 1 else ""
    return Refusal(
        "KV_CACHE_TOO_SMALL",
        f"To serve at least one request with the model's max seq len ({request.max_model_len}), "
        f"({gib(needed)} GiB KV cache is needed{many}, which is larger than the available KV cache memory "
        f"({gib(stage.pool_bytes)} GiB). Based on the available memory, the estimated maximum model length "
        f"is {longest}.",
        f"engine.maxModelLen: {longest} or less, kvCacheDtype: FP8, or parallelism.decodeContext or pipeline",
    )


def nothing_beside_pool(request: Request, stage: Stage) -> Refusal | None:
    """SGLang fills its static share whatever comes beside it; activations and graphs need the rest."""
    total = request.gpu_memory_bytes or 0
    left = total - stage.weight_bytes - stage.pool_bytes
    beside = sum(row.size for row in stage.rows) - stage.weight_bytes
    if request.engine != "SGLang" or stage.pool_bytes <= 0 or beside <= left:
        return None
    before_loading = total - request.assumed.runtime_bytes - request.assumed.nccl_bytes
    share = request.memory_utilization - (beside - left) / before_loading
    return Refusal(
        "STATIC_SHARE_TOO_LARGE",
        f"--mem-fraction-static={request.memory_utilization:g} leaves {gib(left)} GiB beside weights and KV "
        f"cache, but activations, graphs and runtime take about {gib(beside)} GiB: out of memory while "
        "graphs are captured or under load",
        f"engine.memoryUtilization: {floor(100 * share) / 100:.2f} or less, or a smaller maxNumBatchedTokens",
    )


def more_stages_than_layers(layout: Layout, layers: int) -> Refusal:
    """A stage would be empty."""
    return Refusal(
        "MORE_STAGES_THAN_LAYERS",
        f"pipeline parallel size {layout.pipeline} is larger than the number of layers ({layers})",
        f"parallelism.pipeline: {layers} or less",
    )
