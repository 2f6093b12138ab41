"""vLLM 0.33: a layout becomes argv and environment; its start-up checks become refusals.

Two ways over nodes (vllm/config/parallel.py, vllm/entrypoints/cli/serve.py):
data-parallel ranks that fit into a node use ``--data-parallel-*`` with headless workers; one rank that
spans nodes by TP or PP uses ``--nnodes``. Only the leader opens HTTP, and only once every rank joined.
"""

from __future__ import annotations

import json

from moe_operator.api.names import PORT_ENGINE_HTTP, PORT_VLLM_DP_RPC, PORT_VLLM_MASTER
from moe_operator.checkpoint.model_facts import Checkpoint
from moe_operator.engines.launch import Engine, Launch, RankCommand
from moe_operator.planning.plan import Layout, Refusal, Request

KV_CACHE_DTYPES = {"BF16": "bfloat16", "FP8": "fp8"}
EXECUTE_MODEL_SECONDS = 1800  # the first request compiles kernels


def rank_command(launch: Launch, rank: int) -> RankCommand:
    """argv and environment of one rank."""
    args = [launch.model_path]
    args += _http(launch) if rank == 0 else ["--headless"]
    args += _parallelism(launch, rank)
    args += _engine_settings(launch)
    args += _time_limits(launch)
    args += list(launch.engine.args)
    return RankCommand(("vllm", "serve"), tuple(args), _environment(launch))


def _http(launch: Launch) -> list[str]:
    return ["--served-model-name", launch.served_name, "--host", "0.0.0.0", "--port", str(PORT_ENGINE_HTTP)]


def _parallelism(launch: Launch, rank: int) -> list[str]:
    layout = launch.layout
    args = ["--tensor-parallel-size", str(layout.tensor)]
    if layout.pipeline > 1:
        args += ["--pipeline-parallel-size", str(layout.pipeline)]
    if layout.decode_context > 1:
        args += ["--decode-context-parallel-size", str(layout.decode_context)]
    if layout.expert:
        args += ["--enable-expert-parallel"]
    if layout.data > 1:
        return args + _data_parallel(launch, rank)
    return args + (_spanning(launch, rank) if layout.nodes > 1 else [])


def _data_parallel(launch: Launch, rank: int) -> list[str]:
    layout = launch.layout
    local = layout.gpus_per_node // layout.model_parallel
    args = ["--data-parallel-size", str(layout.data), "--data-parallel-size-local", str(local)]
    if layout.nodes > 1:
        args += ["--data-parallel-address", launch.leader, "--data-parallel-rpc-port", str(PORT_VLLM_DP_RPC)]
    if rank:
        args += ["--data-parallel-start-rank", str(rank * local)]
    return args


def _spanning(launch: Launch, rank: int) -> list[str]:
    return [
        "--nnodes", str(launch.layout.nodes),
        "--node-rank", str(rank),
        "--master-addr", launch.leader,
        "--master-port", str(PORT_VLLM_MASTER),
    ]  # fmt: skip


def _engine_settings(launch: Launch) -> list[str]:
    engine = launch.engine
    args = ["--gpu-memory-utilization", engine.memory_utilization]
    for flag, value in (
        ("--max-model-len", engine.max_model_len),
        ("--max-num-seqs", engine.max_num_seqs),
        ("--max-num-batched-tokens", engine.max_num_batched_tokens),
        ("--kv-cache-dtype", KV_CACHE_DTYPES.get(engine.kv_cache_dtype)),
    ):
        args += [flag, str(value)] if value is not None else []
    args += [] if engine.prefix_caching else ["--no-enable-prefix-caching"]
    args += [] if engine.chunked_prefill else ["--no-enable-chunked-prefill"]
    if engine.expert_balancing.enabled:
        extra = {"num_redundant_experts": engine.expert_balancing.redundant_experts}
        args += ["--enable-eplb", "--eplb-config", json.dumps(extra)]
    if engine.speculative:
        draft = {"method": engine.speculative.method, "num_speculative_tokens": engine.speculative.tokens}
        args += ["--speculative-config", json.dumps(draft)]
    return args + (["--trust-remote-code"] if launch.spec.model.trust_remote_code else [])


def _time_limits(launch: Launch) -> list[str]:
    limit = str(launch.startup_seconds)
    return [
        "--distributed-timeout-seconds", limit,
        "--cpu-distributed-timeout-seconds", limit,
        "--shutdown-timeout", str(launch.drain_seconds),
    ]  # fmt: skip


def _environment(launch: Launch) -> tuple[tuple[str, str], ...]:
    return (
        ("VLLM_HOST_IP", "$(POD_IP)"),
        ("VLLM_ENGINE_READY_TIMEOUT_S", str(launch.startup_seconds)),
        ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", str(EXECUTE_MODEL_SECONDS)),
        ("HF_HUB_OFFLINE", "1"),
    )


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


def narrower_tensor(layout: Layout, checkpoint: Checkpoint) -> int:
    """The widest tensor parallelism below the layout's that splits heads and nodes evenly; at least 1."""
    heads, kv_heads = checkpoint.attention_heads, checkpoint.kv_heads
    narrower = range(layout.tensor - 1, 0, -1)
    return next(
        t
        for t in narrower
        if heads % t == 0 and (kv_heads % t == 0 or t % kv_heads == 0) and layout.gpus_per_node % t == 0
    )


def experts_exist(layout: Layout, checkpoint: Checkpoint, _: Request) -> Refusal | None:
    """--enable-expert-parallel needs a model that routes to experts."""
    if not layout.expert or checkpoint.is_moe:
        return None
    return Refusal(
        "EXPERT_PARALLEL_WITHOUT_EXPERTS",
        f"{checkpoint.architecture} has no routed experts, but expert parallelism is on",
        "parallelism.expert: false",
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


VLLM = Engine(
    name="vLLM",
    rank_command=rank_command,
    rules=(
        heads_divide,
        kv_heads_divide,
        experts_exist,
        balanced_experts_divide,
        context_fits,
        decode_context_divides,
    ),
    aliases={
        "-tp": "--tensor-parallel-size",
        "-pp": "--pipeline-parallel-size",
        "-dcp": "--decode-context-parallel-size",
        "-dp": "--data-parallel-size",
        "-dpl": "--data-parallel-size-local",
        "-dpr": "--data-parallel-start-rank",
        "-dpa": "--data-parallel-address",
        "-dpp": "--data-parallel-rpc-port",
        "-ep": "--enable-expert-parallel",
        "-n": "--nnodes",
        "-r": "--node-rank",
    },
    reserved=frozenset(
        {
            "--model", "--served-model-name", "--host", "--port", "--headless", "--tensor-parallel-size",
            "--pipeline-parallel-size", "--decode-context-parallel-size", "--data-parallel-size",
            "--data-parallel-size-local", "--data-parallel-start-rank", "--data-parallel-address",
            "--data-parallel-rpc-port", "--data-parallel-rank", "--enable-expert-parallel", "--nnodes",
            "--node-rank", "--master-addr", "--master-port", "--max-model-len", "--max-num-seqs",
            "--max-num-batched-tokens", "--kv-cache-dtype", "--gpu-memory-utilization",
            "--enable-prefix-caching", "--enable-chunked-prefill", "--enable-eplb", "--eplb-config",
            "--speculative-config", "--trust-remote-code", "--shutdown-timeout",
            "--distributed-timeout-seconds", "--cpu-distributed-timeout-seconds", "--api-key",
        }
    ),
)  # fmt: skip
