"""Memory beside weights and KV cache: activations, CUDA graphs, communication, the runtime itself.

Only the largest terms, each from a source named in :class:`Assumed`. vLLM measures these by a profiling run
inside ``gpu_memory_utilization``; SGLang leaves them outside of ``mem_fraction_static``.
"""

from __future__ import annotations

from moe_operator.checkpoint.model import Checkpoint
from moe_operator.planning.assumed import GIB
from moe_operator.planning.plan import Layout, Request, Row

ACTIVATION = "activations"
GRAPHS = "CUDA graphs"
COMMUNICATION = "communication buffers"
RUNTIME = "CUDA runtime and workspaces"

# vllm/engine/arg_utils.py: tokens of one step by the GPU's memory
VLLM_BATCHED_TOKENS = ((160 * GIB, 16_384), (70 * GIB, 8_192), (0, 2_048))
# sglang/srt/server_args.py: chunked prefill size
SGLANG_CHUNK_TOKENS = ((160 * GIB, 16_384), (60 * GIB, 8_192), (0, 4_096))


def batched_tokens(request: Request) -> int:
    """Tokens of one forward step: as asked, else the engine's default for the GPU."""
    if request.max_num_batched_tokens:
        return request.max_num_batched_tokens
    table = VLLM_BATCHED_TOKENS if request.engine == "vLLM" else SGLANG_CHUNK_TOKENS
    memory = request.gpu_memory_bytes or 0
    return next(tokens for at_least, tokens in table if memory >= at_least)


def overhead_rows(checkpoint: Checkpoint, layout: Layout, stage: range, request: Request) -> tuple[Row, ...]:
    """Rows of the rank that holds the layers in ``stage``."""
    assumed = request.assumed
    graphs = 0 if request.eager else assumed.graph_bytes_per_layer * len(stage)
    alone = layout.world == 1
    return (
        Row(ACTIVATION, activation_bytes(checkpoint, layout, request)),
        Row(GRAPHS, graphs),
        Row(COMMUNICATION, 0 if alone else assumed.nccl_bytes),
        Row(RUNTIME, assumed.runtime_bytes + (assumed.workspace_bytes if checkpoint.is_moe else 0)),
    )


def activation_bytes(checkpoint: Checkpoint, layout: Layout, request: Request) -> int:
    """Peak of one step: hidden states, and the rows that experts of this rank work on.

    Routing is taken as even. With EP a rank sees TP·DP ranks' share of tokens × experts per token.
    """
    tokens = batched_tokens(request)
    hidden = tokens * request.assumed.activation_coefficient * checkpoint.hidden * 2
    if not checkpoint.is_moe:
        return hidden
    rows = tokens * layout.data * checkpoint.experts_per_token / max(1, layout.expert_ranks)
    width = checkpoint.expert_hidden + 3 * checkpoint.expert_inner / layout.expert_slices
    return hidden + int(rows * width * 2)
