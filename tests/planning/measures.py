"""Numbers that single runs published, each with how the planner says the same.

A row is (what, published, unit, tolerance in that unit, measure). Tolerances: weights 1 %, KV bytes exact or
as far as the log rounds, other memory the declared ±4 GiB per GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from moe_operator.planning.assess import budget_bytes
from moe_operator.planning.assumed import GIB, TOLERANCE
from moe_operator.planning.kv_cache import StageCache, stage_cache
from moe_operator.planning.overhead import batched_tokens
from moe_operator.planning.plan import Assessment, Request, Stage
from moe_operator.planning.stages import partition

GB = 1e9
LOOSE = TOLERANCE / GIB
Measure = Callable[[Request, Assessment], float]


def _stage_of(chosen: Assessment) -> Stage:
    return chosen.stages[chosen.worst]


def weights(_: Request, chosen: Assessment) -> float:
    """GiB that a rank holds, without kernel padding."""
    stage = _stage_of(chosen)
    padding = sum(row.size for row in stage.rows if row.name == "kernel padding")
    return float(stage.weight_bytes - padding) / GIB


def file_weights(_: Request, chosen: Assessment) -> float:
    """GiB of a rank that come from the files."""
    return float(_stage_of(chosen).file_bytes) / GIB


def per_gpu(unit: float) -> Measure:
    """The checkpoint over the GPUs."""

    def measure(request: Request, chosen: Assessment) -> float:
        assert request.checkpoint
        return request.checkpoint.weight_bytes / chosen.layout.gpus / unit

    return measure


def drafter(_: Request, chosen: Assessment) -> float:
    """GiB of MTP layers as SGLang loads them: with embedding and head of their own."""
    rows = {row.name: row.size for row in _stage_of(chosen).rows}
    return float(rows["MTP layers"] + rows["embedding and head"]) / GIB


def without_drafter(request: Request, chosen: Assessment) -> float:
    """GiB that a rank holds, without kernel padding and MTP layers."""
    rows = {row.name: row.size for row in _stage_of(chosen).rows}
    return weights(request, chosen) - rows["MTP layers"] / GIB


def beside_weights(request: Request, chosen: Assessment) -> float:
    """GB of all GPUs that the engine may use and the files do not take."""
    left = budget_bytes(request) - _stage_of(chosen).file_bytes
    return left * chosen.layout.gpus / GB


def pool(_: Request, chosen: Assessment) -> float:
    """GiB left for KV cache."""
    return float(_stage_of(chosen).pool_bytes) / GIB


def pool_at(utilization: float) -> Measure:
    """GiB left for KV cache under another share of the GPU."""

    def measure(request: Request, chosen: Assessment) -> float:
        more = budget_bytes(replace(request, memory_utilization=utilization)) - budget_bytes(request)
        return float(_stage_of(chosen).pool_bytes + more) / GIB

    return measure


def needed(_: Request, chosen: Assessment) -> float:
    """GiB of one request of the asked length."""
    return chosen.kv_request_bytes / GIB


def needed_mib(_: Request, chosen: Assessment) -> float:
    """MiB of one request of the asked length."""
    return chosen.kv_request_bytes / (1 << 20)


def token_bytes(ranks: int) -> Measure:
    """Bytes per token, over ``ranks`` ranks."""
    return lambda _, chosen: chosen.kv_token_bytes * ranks


def average_token_bytes(request: Request, chosen: Assessment) -> float:
    """Bytes per token of one request of the asked length, its state included."""
    return chosen.kv_request_bytes / (request.max_model_len or 1)


def block(request: Request, chosen: Assessment) -> float:
    """Tokens of an attention block."""
    return float(_cache(request, chosen).block)


def longest(gib: float) -> Measure:
    """Tokens of the longest request in a pool of ``gib``."""
    return lambda request, chosen: float(_cache(request, chosen).longest(int(gib * GIB), 1, 1 << 25))


def _cache(request: Request, chosen: Assessment) -> StageCache:
    assert request.checkpoint
    stage = partition(len(request.checkpoint.order), chosen.layout.pipeline)[chosen.worst]
    return stage_cache(request.checkpoint, chosen.layout, stage, request, batched_tokens(request))


# case → (what, published, unit, tolerance in that unit, how the planner says it)
MEASURES: dict[str, tuple[tuple[str, float, str, float, Measure], ...]] = {
    "W001": (
        ("KV cache per GPU", 42.23, "GiB", LOOSE, pool),
        ("bytes per token incl. state", 42.23 * GIB / 3_249_215, "B", 14, average_token_bytes),
    ),
    "W004": (("weights per GPU", 195, "GB", 1.95, per_gpu(GB)),),
    "W021": (
        ("weights per rank", 168.89, "GiB", 1.69, weights),
        ("attention block", 1056, "tokens", 0, block),
        ("KV per request of 10,240", 1233, "MiB", 0.5, needed_mib),
        ("KV cache per GPU", 46.5, "GiB", LOOSE, pool),
    ),
    "W022": (("KV cache per GPU", 70, "GiB", LOOSE, pool),),
    "W041": (
        ("weights from files per rank", 703.75 / 8, "GiB", 0.88, file_weights),
        ("weights per rank", 94.46, "GiB", 0.94, weights),
        ("KV bytes per token, 8 ranks", 59_763_793_920 / 138_496, "B", 0, token_bytes(8)),
    ),
    "W042": (("weights per GPU", 54, "GiB", 0.54, file_weights),),
    "W045": (("left beside the files, 4 GPUs", 787, "GB", 7.87, beside_weights),),
    "W052": (("KV cache per GPU", 509_000 * 70_272 / GIB, "GiB", LOOSE, pool),),
    "W075": (
        ("KV cache per GPU", 8.11, "GiB", LOOSE, pool),
        ("KV bytes per token", 94 * 2 * 128 * 2, "B", 0, token_bytes(1)),
    ),
    "W076": (
        ("K and V of 367,404 tokens", 2 * 8.234, "GiB", 0.001, lambda _, c: c.kv_token_bytes * 367_404 / GIB),
        ("KV cache per GPU", 2 * 8.23, "GiB", LOOSE, pool),
    ),
    "W077": (("KV cache per GPU", 2.3, "GiB", LOOSE, pool),),
    "F001": (("weights per GPU", 390, "GB", 3.9, per_gpu(GB)),),
    "F032": (
        ("KV of one request", 62.00, "GiB", 0.005, needed),
        ("longest in 48.66 GiB", 205_728, "tokens", 16, longest(48.66)),
        ("longest in 55.65 GiB", 235_296, "tokens", 16, longest(55.65)),
        ("KV cache per GPU at 0.95", 55.65, "GiB", LOOSE, pool),
        ("KV cache per GPU at 0.90", 48.66, "GiB", LOOSE, pool_at(0.9)),
    ),
    "F035": (("KV cache per GPU", 5.44, "GiB", LOOSE, pool),),
    "F044": (
        ("weights per rank", 56.12, "GiB", 0.56, without_drafter),
        ("drafter per rank", 4.05, "GiB", 0.04, drafter),
    ),
    "F033": (
        ("KV of one request", 37.62, "GiB", 0.006, needed),
        ("longest in 31.72 GiB", 883_840, "tokens", 256, longest(31.72)),
        ("KV cache per GPU", 31.72, "GiB", LOOSE, pool),
    ),
    "F050": (("weights per rank", 125.65, "GiB", 1.26, weights),),
    "F064": (("weights per rank", 57.75, "GiB", 0.58, weights),),
}
