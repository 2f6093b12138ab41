"""What vLLM checks before it serves, and how it says that it cannot start.

Failures differ by where they happen: in the API server (an ordinary traceback), in a worker (its traceback,
then the engine core's, then the API server's) or in the engine core. All end with exit code 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .checkpoint import CheckpointError, read_config
from .memory import BLOCK_TOKENS, Facts, KvNeed
from .node import Node
from .parallel import Parallel, Rank
from .settings import GIB
from .vllm_flags import Serve
from .vllm_log import crash, log, say, traceback

CACHE_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "nvfp4": 1}  # every other kind of cache is 8 bits
MORE = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
Stage = Literal["config", "worker", "core"]


class StartFailure(Exception):
    """The engine cannot start; ``error`` is the last line of the traceback."""

    def __init__(self, stage: Stage, error: str) -> None:
        super().__init__(error)
        self.stage, self.error = stage, error


F03_KINDS: dict[str, tuple[Stage, str]] = {
    "cuda_oom": (
        "worker",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total "
        "capacity of "
        "{total:.2f} GiB of which 1.21 GiB is free. Including non-PyTorch memory, this process has "
        "{used:.2f} "
        "GiB memory in use.",
    ),
    "kv_cache_none": (
        "core",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        f"initializing the engine. {MORE}",
    ),
    "kv_cache_small": (
        "core",
        "ValueError: To serve at least one request with the model's max seq len ({max_len}), (52.3 GiB "
        "KV cache "
        "is needed, which is larger than the available KV cache memory (31.0 GiB). Based on the available "
        "memory, the estimated maximum model length is {shorter}. Try increasing `gpu_memory_utilization` "
        "(which also controls CPU memory on the CPU backend) or decreasing `max_model_len` when "
        "initializing "
        f"the engine. {MORE}",
    ),
    "gpu_busy": (
        "worker",
        "ValueError: Free memory on device cuda:0 (12.1/{total:.1f} GiB) on startup is less than desired GPU "
        "memory utilization ({utilization}, {wanted:.1f} GiB). Decrease GPU memory utilization or reduce GPU "
        "memory used by other processes.",
    ),
    "worker_proc_died": ("worker", ""),
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model that passed the checks of the command line."""

    config: dict[str, Any]
    facts: Facts
    max_len: int

    @property
    def architecture(self) -> str:
        """The class that would run it."""
        return str((self.config.get("architectures") or ["TransformersForCausalLM"])[0])


def check_model(serve: Serve, process: str) -> Model:
    """config.json and the limits that follow from it."""
    try:
        config = read_config(Path(serve.model))
        facts = Facts.of(config)
    except CheckpointError as error:
        raise StartFailure("config", str(error)) from None
    except KeyError as error:
        raise StartFailure("config", f"AttributeError: config has no attribute {error}") from None
    model = Model(config, facts, _max_len(serve, facts, process, config))
    log(process, "model.py:2152", f"Using max model len {model.max_len}")
    return model


def _max_len(serve: Serve, facts: Facts, process: str, config: dict[str, Any]) -> int:
    asked = serve.flags.max_model_len
    architecture = (config.get("architectures") or ["TransformersForCausalLM"])[0]
    log(process, "model.py:733", f"Resolved architecture: {architecture}")
    if asked is None or asked < 0:
        return facts.max_positions
    if asked > facts.max_positions:
        raise StartFailure(
            "config",
            _validation(
                "ModelConfig",
                f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
                f"(max_position_embeddings={float(facts.max_positions)} or model_max_length=None in model's "
                "config.json). To allow overriding this maximum, set the env var "
                "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with extreme "
                "caution. If the model uses relative position encoding (RoPE), positions exceeding "
                "derived_max_model_len lead to nan. If the model uses absolute position encoding, positions "
                "exceeding derived_max_model_len will cause a CUDA array out-of-bounds error.",
                "{'model': ...nderer_num_workers': 1}",
            ),
        )
    return int(asked)


def check_parallel(serve: Serve, facts: Facts, node: Node) -> None:
    """Does the model divide into the ranks, and has this node enough GPUs?"""
    parallel = node.parallel
    if facts.heads % parallel.tensor:
        raise _config_failure(
            f"Total number of attention heads ({facts.heads}) must be divisible by tensor parallel size "
            f"({parallel.tensor})."
        )
    if parallel.experts_whole and not facts.experts:
        raise _config_failure(
            "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
        )
    if parallel.world % parallel.nodes:
        raise _config_failure(
            f"tensor_parallel_size * pipeline_parallel_size ({parallel.world}) must be divisible by nnodes "
            f"({parallel.nodes})."
        )
    local = parallel.world // parallel.nodes
    if node.settings.gpus is not None and local > node.settings.gpus:
        raise _config_failure(
            f"World size ({local}) is larger than the number of available GPUs ({node.settings.gpus}) in "
            "this "
            "node. If this is intentional and you are using:\n- ray, set '--distributed-executor-backend "
            "ray'."
            "\n- multiprocessing, set '--nnodes' appropriately."
        )
    redundant = serve.flags.eplb_config.get("num_redundant_experts", 0) if serve.flags.enable_eplb else 0
    if serve.flags.enable_eplb and (facts.experts + redundant) % parallel.expert_ranks:
        raise StartFailure(
            "config",
            "AssertionError: EPLB currently only supports even distribution of experts across ranks.",
        )


def _config_failure(message: str) -> StartFailure:
    return StartFailure("config", _validation("VllmConfig", message, "{'model_co... 'shutdown_timeout': 0}"))


def _validation(model: str, message: str, given: str) -> str:
    return (
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {model}\n"
        f"  Value error, {message} [type=value_error, input_value=ArgsKwargs((), {given}), "
        "input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
    )


def measure(serve: Serve, model: Model, node: Node) -> tuple[KvNeed, int]:
    """Memory of this node's ranks; returns the need of one request and the tokens that the pool holds."""
    flags = serve.flags
    cache_bytes = CACHE_BYTES.get(flags.kv_cache_dtype, 1)
    need = node.measure(
        model.facts,
        flags.gpu_memory_utilization,
        cache_bytes,
        model.max_len,
        draft=flags.speculative_config is not None,
        overhead=int(node.settings.overhead_gib * GIB),
    )
    available, override = node.kv_available, flags.num_gpu_blocks_override
    block = flags.block_size or BLOCK_TOKENS
    if override is not None:
        blocks = available // max(1, need.per_token * block)
        message = f"Overriding num_gpu_blocks={blocks} with num_gpu_blocks_override={override}"
        log(core_name(node.parallel), "kv_cache_utils.py:2619", message)
        available = need.of((override - 1) * block)
    if available <= 0:
        raise StartFailure("core", F03_KINDS["kv_cache_none"][1])
    if need.of(model.max_len) > available:
        raise StartFailure("core", _too_small(model.max_len, need, available))
    pool = int(available / max(1, need.of(model.max_len)) * model.max_len)
    return need, pool


def _too_small(max_len: int, need: KvNeed, available: int) -> str:
    return (
        f"ValueError: To serve at least one request with the model's max seq len ({max_len}), "
        f"({need.of(max_len) / GIB:.1f} GiB KV cache is needed, which is larger than the available KV cache "
        f"memory ({available / GIB:.1f} GiB). Based on the available memory, the estimated maximum model "
        f"length is {need.longest(available)}. Try increasing `gpu_memory_utilization` (which also controls "
        "CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the engine. " + MORE
    )


def fail_by_fault(node: Node, serve: Serve, max_len: int, percent: float) -> None:
    """F03: raise the failure that was ordered, once loading has come as far as ``at_pct``."""
    fault = node.faults.active("F03")
    if fault is None or percent < float(fault.get("at_pct", 0)):
        return
    kind = fault.get("kind", "cuda_oom")
    if kind not in F03_KINDS:
        raise StartFailure(
            "config", f"stub: F03 has no kind {kind!r} for vLLM; known: {', '.join(F03_KINDS)}"
        )
    stage, text = F03_KINDS[kind]
    total, utilization = node.settings.gpu_memory_gib, serve.flags.gpu_memory_utilization
    raise StartFailure(
        stage,
        text.format(
            total=total,
            used=total - 1.21,
            utilization=utilization,
            wanted=total * utilization,
            max_len=max_len,
            shorter=max_len // 2,
        ),
    )


def report_failure(failure: StartFailure, parallel: Parallel) -> int:
    """Print a failure as the engine would; returns the exit code."""
    core = core_name(parallel)
    if failure.stage == "config":
        crash(failure.error)
        return 1
    if failure.stage == "worker":
        _report_worker(failure.error, parallel, core)
    else:
        log(core, "core.py:1510", "EngineCore failed to start.", "ERROR")
        traceback(core, "core.py:1510", failure.error)
    say(f"Process {core}:")
    failed = "{'EngineCore': 1}" if failure.stage == "worker" else "{}"
    crash(
        "RuntimeError: Engine core initialization failed. See root cause above. "
        f"Failed core proc(s): {failed}"
    )
    return 1


def _report_worker(error: str, parallel: Parallel, core: str) -> None:
    if error:
        name = worker_name(parallel, parallel.local_ranks[0])
        log(name, "multiproc_executor.py:953", "WorkerProc failed to start.", "ERROR")
        traceback(name, "multiproc_executor.py:953", error)
    else:
        log(
            core,
            "multiproc_executor.py:315",
            f"Worker proc VllmWorker-{parallel.local_ranks[-1].number} died unexpectedly (exit code: -9), "
            "shutting down executor.",
            "ERROR",
        )
    count = len(parallel.local_ranks)
    log(core, "multiproc_executor.py:479", f"[shutdown] Executor: waiting for worker exit count={count}")
    log(core, "multiproc_executor.py:486", "[shutdown] Executor: all workers exited gracefully")
    log(core, "core.py:1510", "EngineCore failed to start.", "ERROR")
    traceback(
        core,
        "core.py:1510",
        "Exception: WorkerProc initialization failed due to an exception in a background process. "
        "See stack trace for root cause.",
    )


def core_name(parallel: Parallel) -> str:
    """The engine core's process name."""
    return "EngineCore" if parallel.data == 1 else f"EngineCore_DP{parallel.local_ranks[0].data}"


def worker_name(parallel: Parallel, rank: Rank) -> str:
    """A worker's process name once it knows its place."""
    parts = [
        (parallel.data > 1, f"DP{rank.data}"),
        (parallel.pipeline > 1, f"PP{rank.pipeline}"),
        (parallel.tensor > 1, f"TP{rank.tensor}"),
        (parallel.experts_whole, f"EP{rank.expert}"),
    ]
    return "_".join(["Worker", *(text for present, text in parts if present)])


def announce_ranks(parallel: Parallel) -> None:
    """Each local worker's place in the group, which it knows once all have met."""
    for rank in parallel.local_ranks:
        message = (
            f"rank {rank.number} in world size {parallel.world} is assigned as DP rank {rank.data}, "
            f"PP rank {rank.pipeline}, PCP rank 0, TP rank {rank.tensor}, ETP rank {rank.tensor}, "
            f"EP rank {rank.expert}, EPLB rank N/A"
        )
        log("Worker", "parallel_state.py:2350", message)


def announce_loaded(node: Node, seconds: float) -> None:
    """Each local worker's memory report."""
    for memory, rank in zip(node.memory, node.parallel.local_ranks, strict=True):
        name = worker_name(node.parallel, rank)
        log(name, "default_loader.py:501", f"Loading weights took {seconds:.2f} seconds")
        log(
            name,
            "gpu_model_runner.py:5128",
            f"Model loading took {memory.weights / GIB:.2f} GiB memory and {seconds:.6f} seconds",
        )
        log(
            name,
            "gpu_worker.py:520",
            f"Available KV cache memory: {memory.kv_available / GIB:.2f} GiB",
        )
