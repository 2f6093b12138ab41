"""Number formats × GPUs × communication backends: what has no kernel, and what runs only by detours.

FP8 below Ada/Hopper and FP4 below Blackwell are weight-only (Marlin): correct, same memory, slower prefill.
Communication libraries have their own terrain (reference in docs/planner.md, section Fabric).
"""

from __future__ import annotations

from moe_operator.checkpoint.model import Checkpoint
from moe_operator.hardware.catalogue import UNKNOWN, Generation
from moe_operator.planning.plan import Layout, Refusal, Request

FP4_NAMES = frozenset({"mxfp4", "nvfp4"})
FP8_NAMES = frozenset({"fp8", "mxfp8"})
NIXL_HIDDEN = frozenset({2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192})  # vllm nixl_ep
DEEPEP = frozenset({"deepep_high_throughput", "deepep"})
NVLINK_ONLY = frozenset({"megamoe", "flashinfer_megamoe", "flashinfer_nvlink_one_sided"})
DEEPEP_NODE_GPUS = 8


def format_has_kernels(_: Layout, checkpoint: Checkpoint, request: Request) -> Refusal | None:
    """NVFP4 exists on NVIDIA only (vllm: modelopt_fp4 is not supported in rocm)."""
    generation, names = _generation(request), {p.name for p in checkpoint.precisions}
    if generation.vendor == "amd" and "nvfp4" in names:
        return Refusal(
            "PRECISION_UNSUPPORTED",
            "modelopt_fp4 quantization is currently not supported in rocm.",
            "an MXFP4 or FP8 checkpoint",
        )
    return None


def integer_experts_split(layout: Layout, checkpoint: Checkpoint, request: Request) -> Refusal | None:
    """FlyDSL's INT4 MoE on AMD keeps all experts on every rank."""
    amd = _generation(request).vendor == "amd"
    if not (amd and layout.expert and layout.expert_ranks > 1):
        return None
    if checkpoint.expert_precision.name != "int4":
        return None
    return Refusal(
        "PRECISION_UNSUPPORTED",
        "FlyDSL INT4 MoE path does not support expert parallelism",
        "parallelism.expert: false, or an FP8 or MXFP4 checkpoint",
    )


def cache_type_has_kernels(_: Layout, __: Checkpoint, request: Request) -> Refusal | None:
    """FP8 KV cache needs FP8 conversion in the attention kernels (compute capability 8.9)."""
    generation = _generation(request)
    if request.kv_cache_dtype != "FP8" or generation.fp8:
        return None
    return Refusal(
        "KV_CACHE_DTYPE_UNSUPPORTED",
        f"FP8 KV cache is not supported on {generation.name} GPUs: type fp8e4nv not supported in this "
        "architecture",
        "engine.kvCacheDtype: BF16",
    )


def weight_only(_: Layout, checkpoint: Checkpoint, request: Request) -> Refusal | None:
    """Caution: the format is unpacked before every multiplication."""
    generation, names = _generation(request), {p.name for p in checkpoint.precisions}
    slow = (names & FP4_NAMES if not generation.fp4 else set()) | (
        names & FP8_NAMES if not generation.fp8 else set()
    )
    if not slow:
        return None
    detour = (
        "dequantized when loaded, so memory can double"
        if generation.vendor == "amd"
        else "Marlin, weight-only"
    )
    return Refusal(
        "PRECISION_WEIGHT_ONLY",
        f"{', '.join(sorted(slow))} has no native kernels on {generation.name} ({detour}): prefill gains "
        "nothing from it",
        "expect the memory of the format with the compute speed of BF16",
    )


def all_to_all_reaches(layout: Layout, checkpoint: Checkpoint, request: Request) -> Refusal | None:
    """A forced all-to-all backend must work on this fabric."""
    backend, spread = request.all_to_all, layout.expert_ranks > layout.gpus_per_node
    domain = request.domain_gpus or layout.gpus_per_node
    if backend == "nixl_ep" and checkpoint.hidden not in NIXL_HIDDEN:
        return Refusal(
            "ALL_TO_ALL_UNSUPPORTED",
            f"nixl_ep supports hidden sizes {sorted(NIXL_HIDDEN)}, the model has {checkpoint.hidden}",
            "the engine's default all-to-all",
        )
    if backend in NVLINK_ONLY and spread and layout.expert_ranks > domain:
        return Refusal(
            "ALL_TO_ALL_UNSUPPORTED",
            f"{backend} works inside one NVLink domain ({domain} GPUs), expert parallelism spans "
            f"{layout.expert_ranks}",
            "deepep_v2 or the engine's default over RDMA",
        )
    if backend in DEEPEP and domain > DEEPEP_NODE_GPUS:
        return Refusal(
            "ALL_TO_ALL_UNSUPPORTED",
            f"DeepEP's normal kernels take at most {DEEPEP_NODE_GPUS} GPUs per NVLink domain, not {domain}",
            "flashinfer_nvlink_one_sided",
        )
    return None


def _generation(request: Request) -> Generation:
    return request.gpu.generation if request.gpu else UNKNOWN
