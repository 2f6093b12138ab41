"""Start-up checks on what must divide: heads, experts, context.

Both engines cut alike; where they say different things, the rule carries both texts. Sources are named per
rule (vLLM 0.33.0, SGLang 0.5.23).
"""

from __future__ import annotations

from moe_operator.checkpoint.model import Checkpoint
from moe_operator.planning.plan import Layout, Refusal, Request


def heads_divide(layout: Layout, checkpoint: Checkpoint, _: Request) -> Refusal | None:
    """vllm/config/model.py: verify_with_parallel_config."""
    heads, tensor = checkpoint.attention_heads, layout.tensor
    if heads % tensor == 0:
        return None
    return Refusal(
        "HEADS_NOT_DIVISIBLE",
        f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({tensor}).",
        f"tensor: {narrower_tensor(layout, checkpoint)}",
    )


def kv_heads_divide(layout: Layout, checkpoint: Checkpoint, _: Request) -> Refusal | None:
    """vllm/distributed/utils.py: divide; KV heads are split or replicated evenly."""
    heads, tensor = checkpoint.kv_heads, layout.tensor
    if heads % tensor == 0 or tensor % heads == 0:
        return None
    return Refusal(
        "KV_HEADS_NOT_DIVISIBLE",
        f"{heads} KV heads neither divide nor are divided by tensor parallel size {tensor}",
        f"tensor: {narrower_tensor(layout, checkpoint)}",
    )


def linear_heads_divide(layout: Layout, checkpoint: Checkpoint, _: Request) -> Refusal | None:
    """Linear-attention layers split by head (vllm/model_executor/layers/mamba, kda.py: divide)."""
    heads, tensor = checkpoint.linear_heads, layout.tensor
    if heads == 0 or heads % tensor == 0:
        return None
    return Refusal(
        "LINEAR_HEADS_NOT_DIVISIBLE",
        f"{heads} is not divisible by {tensor} (heads of the linear-attention layers, tensor parallel size)",
        f"tensor: {narrower_tensor(layout, checkpoint)}",
    )


def experts_exist(layout: Layout, checkpoint: Checkpoint, _: Request) -> Refusal | None:
    """--enable-expert-parallel needs a model that routes to experts."""
    if not layout.expert or checkpoint.is_moe:
        return None
    return Refusal(
        "EXPERT_PARALLEL_WITHOUT_EXPERTS",
        "Number of experts in the model must be greater than 0 when expert parallelism is enabled. "
        f"({checkpoint.architecture} has no routed experts)",
        "parallelism.expert: false",
    )


def balancing_possible(layout: Layout, checkpoint: Checkpoint, request: Request) -> Refusal | None:
    """vllm/config/parallel.py: EPLB needs expert parallelism over more than one rank."""
    if not request.balanced_experts or (layout.expert and layout.expert_ranks > 1):
        return None
    return Refusal(
        "BALANCING_WITHOUT_EXPERT_PARALLEL",
        "enable_expert_parallel must be True to use EPLB."
        if not layout.expert
        else "EPLB requires tensor_parallel_size or data_parallel_size to be greater than 1.",
        "expertBalancing.enabled: false, or parallelism.expert: true over several ranks",
    )


def balanced_experts_divide(layout: Layout, checkpoint: Checkpoint, request: Request) -> Refusal | None:
    """vllm EPLB spreads logical plus redundant experts evenly; without EPLB an uneven split is fine."""
    if not (request.balanced_experts and layout.expert):
        return None
    total = checkpoint.routed_experts + request.redundant_experts
    if total % layout.expert_ranks == 0:
        return None
    missing = -total % layout.expert_ranks
    return Refusal(
        "EXPERTS_NOT_DIVISIBLE",
        "EPLB currently only supports even distribution of experts across ranks: "
        f"{checkpoint.routed_experts} experts + {request.redundant_experts} redundant "
        f"over EP {layout.expert_ranks}",
        f"expertBalancing.redundantExperts: {request.redundant_experts + missing}",
    )


def experts_divide(layout: Layout, checkpoint: Checkpoint, request: Request) -> Refusal | None:
    """sglang/srt/server_args.py: every expert rank holds the same number of experts."""
    total = checkpoint.routed_experts + request.redundant_experts
    if not layout.expert or total % layout.expert_ranks == 0:
        return None
    return Refusal(
        "EXPERTS_NOT_DIVISIBLE",
        f"{total} experts (routed {checkpoint.routed_experts} + redundant {request.redundant_experts}) "
        f"must be divisible by ep_size {layout.expert_ranks}",
        f"expertBalancing.redundantExperts: {request.redundant_experts + (-total % layout.expert_ranks)}, "
        "or a layout whose tensor × data divides the experts",
    )


def context_fits(_: Layout, checkpoint: Checkpoint, request: Request) -> Refusal | None:
    """vllm/config/model.py: a longer context than the model's own is refused at start."""
    asked, own = request.max_model_len, checkpoint.max_positions
    if not asked or not own or asked <= own:
        return None
    return Refusal(
        "MAX_MODEL_LEN_TOO_LONG",
        f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
        f"(max_position_embeddings={own})",
        f"engine.maxModelLen: {own} or less",
    )


def decode_context_divides(layout: Layout, _: Checkpoint, __: Request) -> Refusal | None:
    """vllm/config/parallel.py: DCP reuses the ranks of TP."""
    if layout.tensor % layout.decode_context == 0:
        return None
    return Refusal(
        "DCP_NOT_DIVISIBLE",
        f"tp_size={layout.tensor} must be divisible by dcp_size={layout.decode_context}.",
        "parallelism.decodeContext: a divisor of tensor",
    )


def decode_context_has_copies(layout: Layout, checkpoint: Checkpoint, _: Request) -> Refusal | None:
    """vllm/config/model.py: DCP spreads copies of KV heads, so there must be some."""
    if layout.decode_context == 1 or checkpoint.has_latent_cache:
        return None
    heads, tensor = checkpoint.kv_heads, layout.tensor
    if tensor > heads and layout.decode_context <= tensor // heads:
        return None
    return Refusal(
        "DCP_WITHOUT_COPIES",
        f"tensor parallel size {tensor} must be greater than total num kv heads {heads} when enable decode "
        f"context parallel for GQA/MQA, and dcp size {layout.decode_context} no larger than their quotient",
        f"parallelism.decodeContext: {max(1, tensor // heads)}",
    )


def narrower_tensor(layout: Layout, checkpoint: Checkpoint) -> int:
    """The widest tensor parallelism below the layout's that splits heads and nodes evenly; at least 1."""
    return next(t for t in range(layout.tensor - 1, 0, -1) if _splits_evenly(t, layout, checkpoint))


def _splits_evenly(tensor: int, layout: Layout, checkpoint: Checkpoint) -> bool:
    keys = checkpoint.kv_heads
    return (
        checkpoint.attention_heads % tensor == 0
        and checkpoint.linear_heads % tensor == 0
        and (keys % tensor == 0 or tensor % keys == 0)
        and layout.gpus_per_node % tensor == 0
    )
