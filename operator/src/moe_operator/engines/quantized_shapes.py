"""Start-up checks of quantized kernels: blocks and groups must not be cut by a rank's share.

FP8 in 128×128 blocks: a rank's share must be whole blocks. vLLM from 0.33 refines the block to
gcd(128, share) ≥ 32, on the Triton backend only, so there it is a caution; SGLang 0.5.23 (fp8.py) and older
vLLM refuse. Grouped integers run on Marlin, whose tiles want K % 128 and N % 64
(quantization/utils/marlin_utils.py), and scale groups must not cross ranks. MX formats group by 32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, gcd

from moe_operator.checkpoint.model import Checkpoint
from moe_operator.checkpoint.weights import Weight
from moe_operator.planning.plan import Layout, Refusal, Request
from moe_operator.planning.rank_weights import expert_partition

REFINED_BLOCK = 32
REFINING_VLLM = (0, 33)
BLOCK_BOUND_BACKENDS = frozenset({"deep_gemm", "cutlass", "flashinfer_cutlass", "deep_gemm_mega_moe"})
MARLIN_K, MARLIN_N = 128, 64
MX_GROUP = 32
ROW_PARALLEL = ("o_proj", "down_proj", "out_proj", "wo_b")  # split along their input


def expert_blocks_whole(layout: Layout, checkpoint: Checkpoint, request: Request) -> Refusal | None:
    """Refuse a cut through an FP8 block of routed experts where the engine cannot refine it."""
    block, share = _cut_block(layout, checkpoint)
    if not block or (_refines(request) and gcd(block, share) >= REFINED_BLOCK):
        return None
    return Refusal(
        "FP8_BLOCK_NOT_DIVISIBLE",
        f"The output_size of gate's and up's weight = {share} is not divisible by weight quantization "
        f"block_n = {block}.",
        _cure(layout, checkpoint, lambda part: part % block == 0),
    )


def expert_blocks_refined(layout: Layout, checkpoint: Checkpoint, request: Request) -> Refusal | None:
    """Caution where vLLM can refine the block but loses its fast kernels."""
    block, share = _cut_block(layout, checkpoint)
    if not block or not _refines(request) or gcd(block, share) < REFINED_BLOCK:
        return None
    return Refusal(
        "FP8_BLOCK_REFINED",
        f"experts cut to {share} run with blocks of {gcd(block, share)} on the Triton kernels only",
        _cure(layout, checkpoint, lambda part: part % block == 0),
    )


def _cut_block(layout: Layout, checkpoint: Checkpoint) -> tuple[int, int]:
    """Block that a rank's share of an expert cuts, and the share; block 0 when none is cut."""
    block, share = checkpoint.expert_precision.block, expert_partition(checkpoint, layout)
    cut = bool(block) and layout.expert_slices > 1 and share % block != 0
    return (block if cut else 0), share


def _refines(request: Request) -> bool:
    old = request.engine_version != (0, 0) and request.engine_version < REFINING_VLLM
    return request.engine == "vLLM" and not old and request.moe_backend not in BLOCK_BOUND_BACKENDS


def linear_blocks_whole(layout: Layout, checkpoint: Checkpoint, _: Request) -> Refusal | None:
    """quantization/utils/fp8_utils.py: validate_fp8_block_shape, for dense MLPs and shared experts."""
    for weight in checkpoint.split_mlps:
        share, block = _share(weight, layout), weight.precision.block
        if block and layout.tensor > 1 and share % block:
            size = "input" if _is_row_parallel(weight) else "output"
            return Refusal(
                "FP8_BLOCK_NOT_DIVISIBLE",
                f"Weight {size}_size_per_partition = {share} is not divisible by weight quantization "
                f"block_{'k' if size == 'input' else 'n'} = {block} ({weight.shape.name}).",
                f"tensor: {_largest_tensor(layout, weight, block)}",
            )
    return None


def groups_whole(layout: Layout, checkpoint: Checkpoint, _: Request) -> Refusal | None:
    """Marlin's tiles and scale groups of integer weights, in dense layers and in experts."""
    for weight in checkpoint.split_mlps:
        share = _share(weight, layout)
        if weight.precision.name.startswith("int") and _is_row_parallel(weight) and share % MARLIN_K:
            return Refusal(
                "QUANT_GROUP_NOT_DIVISIBLE",
                f"Weight input_size_per_partition = {share} is not divisible by min_thread_k = {MARLIN_K}. "
                "Consider reducing tensor_parallel_size or running with --quantization gptq.",
                f"tensor: {_largest_tensor(layout, weight, MARLIN_K)}, or another quantization",
            )
    precision, share = checkpoint.expert_precision, expert_partition(checkpoint, layout)
    integer = precision.name.startswith("int") and layout.expert_slices > 1
    if not integer or (share % MARLIN_N == 0 and share % max(1, precision.group) == 0):
        return None
    return Refusal(
        "QUANT_GROUP_NOT_DIVISIBLE",
        f"experts cut to {share}: Scale groups would otherwise cross TP shard boundaries; use a compatible "
        "TP size or enable expert parallelism",
        _cure(layout, checkpoint, lambda p: p % MARLIN_N == 0 and p % max(1, precision.group) == 0),
    )


def mx_groups_whole(layout: Layout, checkpoint: Checkpoint, _: Request) -> Refusal | None:
    """MXFP4 and MXFP8 share an exponent over 32 inputs."""
    precision, share = checkpoint.expert_precision, expert_partition(checkpoint, layout)
    if not precision.name.startswith("mx") or layout.expert_slices == 1 or share % MX_GROUP == 0:
        return None
    return Refusal(
        "QUANT_GROUP_NOT_DIVISIBLE",
        f"intermediate_size_per_partition = {share} is not divisible by {MX_GROUP} ({precision.name})",
        _cure(layout, checkpoint, lambda part: part % MX_GROUP == 0),
    )


def _is_row_parallel(weight: Weight) -> bool:
    return weight.shape.name.endswith(ROW_PARALLEL)


def _share(weight: Weight, layout: Layout) -> int:
    return ceil((weight.shape.into if _is_row_parallel(weight) else weight.shape.out) / layout.tensor)


def _largest_tensor(layout: Layout, weight: Weight, multiple: int) -> int:
    size = weight.shape.into if _is_row_parallel(weight) else weight.shape.out
    return max((t for t in range(1, layout.tensor) if size % (t * multiple) == 0), default=1)


def _cure(layout: Layout, checkpoint: Checkpoint, holds: Callable[[int], bool]) -> str:
    inner, ranks = checkpoint.expert_inner, layout.expert_slices
    tensor = max((t for t in range(1, ranks) if inner % t == 0 and holds(inner // t)), default=1)
    return f"parallelism.expert: true, or experts over at most {tensor} ranks (tensor: {tensor})"
