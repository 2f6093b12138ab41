"""vLLM 0.33: a layout becomes argv and environment; its start-up checks become refusals.

Two ways over nodes (vllm/config/parallel.py, vllm/entrypoints/cli/serve.py):
data-parallel ranks that fit into a node use ``--data-parallel-*`` with headless workers; one rank that
spans nodes by TP or PP uses ``--nnodes``. Only the leader opens HTTP, and only once every rank joined.
"""

from __future__ import annotations

import json

from moe_operator.api.names import PORT_ENGINE_HTTP, PORT_VLLM_DP_RPC, PORT_VLLM_MASTER
from moe_operator.engines import divisibility, kernels, quantized_shapes
from moe_operator.engines.launch import Engine, Launch, RankCommand
from moe_operator.planning.assess import Judges

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
        ("--max-model-len", launch.max_model_len),
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


VLLM = Engine(
    name="vLLM",
    rank_command=rank_command,
    judges=Judges(
        rules=(
            divisibility.heads_divide,
            divisibility.kv_heads_divide,
            divisibility.linear_heads_divide,
            divisibility.experts_exist,
            divisibility.balancing_possible,
            divisibility.balanced_experts_divide,
            divisibility.context_fits,
            divisibility.decode_context_divides,
            divisibility.decode_context_has_copies,
            quantized_shapes.expert_blocks_whole,
            quantized_shapes.linear_blocks_whole,
            quantized_shapes.groups_whole,
            quantized_shapes.mx_groups_whole,
            kernels.format_has_kernels,
            kernels.integer_experts_split,
            kernels.cache_type_has_kernels,
            kernels.all_to_all_reaches,
        ),
        cautions=(quantized_shapes.expert_blocks_refined, kernels.weight_only),
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
    worker_drains=False,  # it ends at once, or never when its leader went first: only SIGKILL helps then
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
