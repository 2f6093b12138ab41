"""SGLang 0.5.23: a layout becomes argv and environment; its start-up checks become refusals.

SGLang counts differently: ``--tp-size`` is the whole world of one pipeline stage, attention runs
data-parallel inside it (``--attn-dp-size``) and experts spread over ``--ep-size`` ≤ tp
(sglang/srt/server_args.py). So the layout TP8·DP4·EP32 is ``--tp-size 32 --attn-dp-size 4 --ep-size 32``.
"""

from __future__ import annotations

from moe_operator.api.names import PORT_ENGINE_HTTP, PORT_SGLANG_DIST
from moe_operator.engines import divisibility, kernels, quantized_shapes
from moe_operator.engines.launch import Engine, Launch, RankCommand
from moe_operator.planning.assess import Judges

KV_CACHE_DTYPES = {"BF16": "bf16", "FP8": "fp8_e4m3"}


def rank_command(launch: Launch, rank: int) -> RankCommand:
    """argv and environment of one rank; ranks above 0 answer /health with a dummy server."""
    args = ["--model-path", launch.model_path, "--served-model-name", launch.served_name]
    args += ["--host", "0.0.0.0", "--port", str(PORT_ENGINE_HTTP), "--enable-metrics"]
    args += _parallelism(launch, rank)
    args += _engine_settings(launch)
    args += list(launch.engine.args)
    return RankCommand(("python3", "-m", "sglang.launch_server"), tuple(args), (("HF_HUB_OFFLINE", "1"),))


def _parallelism(launch: Launch, rank: int) -> list[str]:
    layout = launch.layout
    args = ["--tp-size", str(layout.tensor * layout.data)]
    if layout.pipeline > 1:
        args += ["--pp-size", str(layout.pipeline)]
    if layout.data > 1:
        args += ["--attn-dp-size", str(layout.data)]
    if layout.expert:
        args += ["--ep-size", str(layout.expert_ranks)]
    if layout.decode_context > 1:
        args += ["--dcp-size", str(layout.decode_context)]
    if layout.nodes > 1:
        args += ["--nnodes", str(layout.nodes), "--node-rank", str(rank)]
        args += ["--dist-init-addr", f"{launch.leader}:{PORT_SGLANG_DIST}"]
        args += ["--dist-timeout", str(launch.startup_seconds)]
    return args


def _engine_settings(launch: Launch) -> list[str]:
    engine = launch.engine
    args = ["--mem-fraction-static", engine.memory_utilization]
    for flag, value in (
        ("--context-length", launch.max_model_len),
        ("--max-running-requests", engine.max_num_seqs),
        ("--chunked-prefill-size", _prefill_chunk(launch)),
        ("--kv-cache-dtype", KV_CACHE_DTYPES.get(engine.kv_cache_dtype)),
    ):
        args += [flag, str(value)] if value is not None else []
    args += [] if engine.prefix_caching else ["--disable-radix-cache"]
    if engine.expert_balancing.enabled:
        args += [
            "--enable-eplb",
            "--ep-num-redundant-experts",
            str(engine.expert_balancing.redundant_experts),
        ]
    if engine.speculative:
        args += ["--speculative-algorithm", engine.speculative.method]
        args += ["--speculative-num-steps", str(engine.speculative.tokens)]
    return args + (["--trust-remote-code"] if launch.spec.model.trust_remote_code else [])


def _prefill_chunk(launch: Launch) -> int | None:
    return launch.engine.max_num_batched_tokens if launch.engine.chunked_prefill else -1


SGLANG = Engine(
    name="SGLang",
    rank_command=rank_command,
    judges=Judges(
        rules=(
            divisibility.heads_divide,
            divisibility.kv_heads_divide,
            divisibility.linear_heads_divide,
            divisibility.experts_exist,
            divisibility.experts_divide,
            divisibility.context_fits,
            divisibility.decode_context_divides,
            quantized_shapes.expert_blocks_whole,
            quantized_shapes.linear_blocks_whole,
            quantized_shapes.groups_whole,
            quantized_shapes.mx_groups_whole,
            kernels.format_has_kernels,
            kernels.integer_experts_split,
            kernels.cache_type_has_kernels,
            kernels.all_to_all_reaches,
        ),
        cautions=(kernels.weight_only,),
    ),
    aliases={
        "--tp": "--tp-size",
        "--tensor-parallel-size": "--tp-size",
        "--pp": "--pp-size",
        "--pipeline-parallel-size": "--pp-size",
        "--dp": "--dp-size",
        "--data-parallel-size": "--dp-size",
        "--ep": "--ep-size",
        "--expert-parallel-size": "--ep-size",
        "--model": "--model-path",
    },
    worker_drains=True,
    reserved=frozenset(
        {
            "--model-path", "--served-model-name", "--host", "--port", "--enable-metrics", "--tp-size",
            "--pp-size", "--dp-size", "--attn-dp-size", "--enable-dp-attention", "--ep-size", "--dcp-size",
            "--nnodes", "--node-rank", "--dist-init-addr", "--dist-timeout", "--mem-fraction-static",
            "--context-length", "--max-running-requests", "--chunked-prefill-size", "--kv-cache-dtype",
            "--disable-radix-cache", "--enable-eplb", "--ep-num-redundant-experts",
            "--speculative-algorithm", "--speculative-num-steps", "--trust-remote-code", "--api-key",
        }
    ),
)  # fmt: skip
