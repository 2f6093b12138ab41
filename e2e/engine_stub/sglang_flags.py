"""``python3 -m sglang.launch_server``: the flags that SGLang 0.5 knows; others end with argparse's exit 2."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .parallel import Parallel

KV_CACHE_DTYPES = ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1")
MOE_A2A = (
    "none", "deepep", "deepep_v2", "mooncake", "nixl", "mori", "ascend_fuseep", "ascend_tp", "flashinfer",
    "flashinfer_megamoe", "megamoe", "pplx",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """A parsed command line."""

    flags: argparse.Namespace

    @property
    def model(self) -> str:
        """Model directory."""
        return str(self.flags.model_path)

    @property
    def served_name(self) -> str:
        """Name under which clients ask for the model."""
        return str(self.flags.served_model_name or self.flags.model_path)

    @property
    def parallel(self) -> Parallel:
        """The group; ``--tp-size`` is the world of one stage, attention is data-parallel inside it."""
        flags = self.flags
        data = flags.attn_dp_size if flags.attn_dp_size > 1 else 1
        if flags.enable_dp_attention:
            data = max(data, flags.dp_size)
        return Parallel(
            tensor=max(1, flags.tp_size // data),
            pipeline=flags.pp_size,
            data=data,
            experts_whole=flags.ep_size > 1 or flags.moe_a2a_backend != "none",
            nodes=flags.nnodes,
            node=flags.node_rank,
            pipeline_outermost=True,
        )

    @property
    def meeting_point(self) -> tuple[str, int]:
        """Where node 0 waits for the others; ValueError when the address is malformed."""
        host, _, port = (self.flags.dist_init_addr or "127.0.0.1:25000").rpartition(":")
        return host.strip("[]"), int(port)


def parse(arguments: Sequence[str]) -> Launch:
    """Parse what follows ``sglang.launch_server``; argparse exits with code 2 when it objects."""
    parser = argparse.ArgumentParser(
        prog="launch_server.py", allow_abbrev=False, usage="launch_server.py [-h] --model-path MODEL_PATH ..."
    )
    _add_server(parser)
    _add_memory(parser)
    _add_parallel(parser)
    return Launch(parser.parse_args(list(arguments)))


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model-path", "--model", required=True)
    for name in (
        "tokenizer-path", "revision", "dtype", "quantization", "load-format", "chat-template", "api-key",
        "admin-api-key", "reasoning-parser", "tool-call-parser", "attention-backend", "sampling-backend",
        "grammar-backend", "log-level", "log-level-http", "file-storage-path", "download-dir",
        "tokenizer-mode",
        "served-model-name", "speculative-algorithm", "speculative-draft-model-path", "weight-version",
        "disaggregation-transfer-backend", "disaggregation-ib-device", "dist-init-addr", "device",
        "moe-runner-backend", "fp8-gemm-backend", "cuda-graph-backend-decode", "cuda-graph-backend-prefill",
        "deepep-mode", "deepep-config", "preferred-sampling-params", "nccl-port", "schedule-policy",
        "mamba-ssm-dtype", "page-size", "watchdog-timeout", "dist-timeout", "random-seed", "stream-interval",
    ):  # fmt: skip
        add(f"--{name}", default=None)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--disaggregation-mode", default="null", choices=("null", "prefill", "decode"))
    for name in (
        "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens",
        "cuda-graph-max-bs",
        "max-queued-requests", "ep-num-redundant-experts", "eplb-rebalance-num-iterations",
    ):  # fmt: skip
        add(f"--{name}", type=int, default=None)
    for name in (
        "enable-metrics", "trust-remote-code", "skip-server-warmup", "log-requests", "enable-cache-report",
        "disable-radix-cache", "disable-cuda-graph", "disable-overlap-schedule", "disable-custom-all-reduce",
        "enable-eplb", "enable-dp-attention", "enable-dp-lm-head", "enable-torch-compile",
        "enable-mixed-chunk",
        "enable-hierarchical-cache", "enable-two-batch-overlap", "enable-symm-mem",
        "disable-chunked-prefix-cache",
        "enable-metrics-for-all-schedulers", "enable-p2p-check", "enable-memory-saver", "enable-multimodal",
    ):  # fmt: skip
        add(f"--{name}", action="store_true")
    add("--json-model-override-args", type=json.loads, default={})


def _add_memory(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--mem-fraction-static", type=float, default=0.88)
    add("--context-length", type=int, default=None)
    add("--max-running-requests", type=int, default=None)
    add("--max-total-tokens", type=int, default=None)
    add("--chunked-prefill-size", type=int, default=None)
    add("--max-prefill-tokens", type=int, default=16384)
    add("--kv-cache-dtype", default="auto", choices=KV_CACHE_DTYPES)
    add("--cpu-offload-gb", type=float, default=0)


def _add_parallel(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument
    add("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    add("--pp-size", "--pipeline-parallel-size", "--pp", type=int, default=1)
    add("--dp-size", "--data-parallel-size", "--dp", type=int, default=1)
    add("--ep-size", "--expert-parallel-size", "--ep", type=int, default=1)
    add("--attn-dp-size", type=int, default=1)
    add("--attn-cp-size", type=int, default=1)
    add("--moe-dp-size", type=int, default=1)
    add("--moe-dense-tp-size", type=int, default=None)
    add("--dcp-size", type=int, default=1)
    add("--nnodes", type=int, default=1)
    add("--node-rank", type=int, default=0)
    add("--moe-a2a-backend", default="none", choices=MOE_A2A)
