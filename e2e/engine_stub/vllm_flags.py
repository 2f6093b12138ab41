"""``vllm serve``: the flags that vLLM 0.33 knows, and argparse's own words for those that it does not.

Underscores and dashes are the same in flag names, ``-tp=8`` is ``-tp 8``, and flags are never abbreviated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from .parallel import Parallel

SUBCOMMANDS = (
    "chat", "complete", "serve", "launch", "bench", "collect-env", "download-kernels", "preload", "run-batch",
    "snapshot",
)  # fmt: skip
KV_CACHE_DTYPES = (
    "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4",
)  # fmt: skip
LOAD_FORMATS = (
    "auto", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer", "runai_streamer_sharded",
    "sharded_state", "tensorizer", "mistral", "npcache", "pt", "dummy",
)  # fmt: skip
ALL2ALL = (
    "allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "deepep_v2",
    "mori_high_throughput", "mori_low_latency", "moonep", "nixl_ep", "flashinfer_nvlink_two_sided",
    "flashinfer_all2allv", "flashinfer_nvlink_one_sided",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Serve:
    """A parsed command line; every flag is an attribute of ``flags``."""

    flags: argparse.Namespace
    defaults: dict[str, Any]

    @property
    def model(self) -> str:
        """Model directory."""
        return str(self.flags.model_tag or self.flags.model)

    @property
    def served_names(self) -> list[str]:
        """Names under which clients may ask for the model; the first is the one that answers."""
        return self.flags.served_model_name or [self.model]

    @property
    def api_keys(self) -> tuple[str, ...]:
        """Keys of which clients must send one; none: the server is open."""
        key = os.environ.get("VLLM_API_KEY")
        return tuple(self.flags.api_key or ([key] if key else []))

    @property
    def parallel(self) -> Parallel:
        """The group that this process is one node of."""
        flags = self.flags
        data, local = flags.data_parallel_size, flags.data_parallel_size_local
        over_data = local is not None and 0 < local < data
        return Parallel(
            tensor=flags.tensor_parallel_size,
            pipeline=flags.pipeline_parallel_size,
            data=data,
            experts_whole=flags.enable_expert_parallel,
            nodes=data // local if over_data else flags.nnodes,
            node=flags.data_parallel_start_rank // local if over_data else flags.node_rank,
        )

    @property
    def spans_by_data(self) -> bool:
        """Whether nodes meet on the data-parallel RPC port instead of the master port."""
        return self.flags.nnodes == 1 and self.parallel.nodes > 1

    @property
    def meeting_point(self) -> tuple[str, int]:
        """Where node 0 waits for the others."""
        flags = self.flags
        if self.spans_by_data:
            return flags.data_parallel_address, flags.data_parallel_rpc_port
        return flags.master_addr, flags.master_port

    def non_default(self) -> dict[str, Any]:
        """What was given and differs from the default, as the engine logs it."""
        given = {name: value for name, value in vars(self.flags).items() if value != self.defaults.get(name)}
        tag = given.pop("model_tag", None)
        return {"model_tag": tag, **given, "model": tag} if tag else given


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse(arguments: Sequence[str]) -> Serve:
    """Parse what follows ``vllm``; argparse exits with code 2 when it objects."""
    top = _Parser(prog="vllm", allow_abbrev=False, usage=_usage())
    top.add_argument("-v", "--version", action="store_true")
    commands = top.add_subparsers(dest="subparser", required=False, metavar="")
    serve = commands.add_parser(
        "serve", prog="vllm serve", allow_abbrev=False, usage="vllm serve [model_tag] [options]"
    )
    _add_flags(serve)
    flags = top.parse_args([_normal(argument) for argument in arguments])
    if flags.subparser != "serve":
        top.error(f"this engine can only serve, not {' '.join(arguments) or 'nothing'!r}")
    defaults = vars(serve.parse_args([]))
    for name in ("subparser", "version"):
        vars(flags).pop(name)
    return Serve(flags, defaults)


def _usage() -> str:
    return f"vllm [-h] [-v]\n            {{{','.join(SUBCOMMANDS)}}}\n            ..."


def _normal(argument: str) -> str:
    if argument.startswith("--"):
        name, sign, value = argument.partition("=")
        return name.replace("_", "-") + sign + value
    return argument


def _human_int(text: str) -> int:
    """1k is 1000 and 1K is 1024, as vLLM reads lengths; auto and -1 mean what fits."""
    if text in {"auto", "-1"}:
        return -1
    units = {"k": 1000, "m": 1000**2, "K": 1024, "M": 1024**2}
    if text and text[-1] in units:
        return int(float(text[:-1]) * units[text[-1]])
    return int(text)


_human_int.__name__ = "human_readable_int_or_auto"


def _json(text: str) -> Any:
    return json.loads(text)


_json.__name__ = "loads"


def _add_flags(parser: argparse.ArgumentParser) -> None:
    _add_frontend(parser)
    _add_model(parser)
    _add_parallel(parser)
    _add_engine(parser)


def _add_frontend(parser: argparse.ArgumentParser) -> None:
    add, switch = parser.add_argument, _switch(parser)
    add("model_tag", nargs="?")
    add("--host", default=None)
    add("--port", type=int, default=8000)
    add("--uds", default=None)
    add("--headless", action="store_true")
    add("--api-server-count", "-asc", type=int, default=None)
    add("--api-key", nargs="*", default=None)
    add("--root-path", default=None)
    add("--middleware", action="append", default=[])
    add(
        "--uvicorn-log-level",
        default="info",
        choices=("debug", "info", "warning", "error", "critical", "trace"),
    )
    add("--chat-template", default=None)
    add("--chat-template-content-format", default="auto", choices=("auto", "openai", "string"))
    add("--response-role", default="assistant")
    add("--tool-call-parser", default=None)
    add("--tool-parser-plugin", default="")
    add("--reasoning-parser", default="")
    add("--ssl-keyfile", default=None)
    add("--ssl-certfile", default=None)
    add("--max-log-len", type=int, default=None)
    add("--shutdown-timeout", type=int, default=0)
    add("--sse-keep-alive-interval", type=float, default=None)
    for name in (
        "enable-auto-tool-choice", "enable-request-id-headers", "disable-log-requests", "enable-log-requests",
        "disable-uvicorn-access-log", "disable-log-stats", "disable-fastapi-docs",
        "enable-server-load-tracking", "enable-prompt-tokens-details", "enable-log-outputs",
        "enable-scale-out",
    ):  # fmt: skip
        switch(name)


def _add_model(parser: argparse.ArgumentParser) -> None:
    add, switch = parser.add_argument, _switch(parser)
    add("--model", default="Qwen/Qwen3-0.6B")
    add("--runner", default="auto", choices=("auto", "draft", "generate", "pooling"))
    add("--tokenizer", default=None)
    add("--tokenizer-mode", default="auto")
    add("--dtype", default="auto", choices=("auto", "bfloat16", "float", "float16", "float32", "half"))
    add("--seed", type=int, default=0)
    add("--revision", default=None)
    add("--tokenizer-revision", default=None)
    add("--max-model-len", type=_human_int, default=None)
    add("--quantization", "-q", default=None)
    add("--served-model-name", nargs="+", default=None)
    add("--generation-config", default="auto")
    add("--override-generation-config", type=_json, default={})
    add("--hf-overrides", type=_json, default={})
    add("--logits-processors", nargs="*", default=None)
    add("--load-format", default="auto", choices=LOAD_FORMATS)
    add("--safetensors-load-strategy", default=None, choices=("lazy", "eager", "prefetch", "torchao"))
    add("--model-loader-extra-config", type=_json, default={})
    add("--download-dir", default=None)
    add("--limit-mm-per-prompt", type=_json, default={})
    for name in ("trust-remote-code", "enforce-eager", "language-model-only", "enable-sleep-mode"):
        switch(name)


def _add_parallel(parser: argparse.ArgumentParser) -> None:
    add, switch = parser.add_argument, _switch(parser)
    add("--distributed-executor-backend", default=None, choices=("mp", "ray", "uni", "external_launcher"))
    add("--tensor-parallel-size", "-tp", type=int, default=1)
    add("--pipeline-parallel-size", "-pp", type=int, default=1)
    add("--decode-context-parallel-size", "-dcp", type=int, default=1)
    add("--prefill-context-parallel-size", "-pcp", type=int, default=1)
    add("--dcp-comm-backend", default="ag_rs", choices=("ag_rs", "a2a"))
    add("--nnodes", "-n", type=int, default=1)
    add("--node-rank", "-r", type=int, default=0)
    add("--master-addr", default="127.0.0.1")
    add("--master-port", type=int, default=29501)
    add("--data-parallel-size", "-dp", type=int, default=1)
    add("--data-parallel-size-local", "-dpl", type=int, default=None)
    add("--data-parallel-start-rank", "-dpr", type=int, default=0)
    add("--data-parallel-rank", "-dpn", type=int, default=None)
    add("--data-parallel-address", "-dpa", default="127.0.0.1")
    add("--data-parallel-rpc-port", "-dpp", type=int, default=29550)
    add("--data-parallel-backend", "-dpb", default="mp", choices=("mp", "ray"))
    add("--all2all-backend", default="allgather_reducescatter", choices=ALL2ALL)
    add("--expert-placement-strategy", default="linear", choices=("linear", "round_robin"))
    add("--eplb-config", type=_json, default={})
    add("--distributed-timeout-seconds", type=int, default=None)
    add("--cpu-distributed-timeout-seconds", type=int, default=None)
    for name, short in (
        ("data-parallel-hybrid-lb", "-dph"), ("data-parallel-external-lb", "-dpe"),
        ("data-parallel-multi-port-external-lb", "-dpm"), ("enable-expert-parallel", "-ep"),
        ("enable-ep-weight-filter", None), ("enable-eplb", None), ("enable-dbo", None),
        ("disable-custom-all-reduce", None),
    ):  # fmt: skip
        switch(name, short)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add, switch = parser.add_argument, _switch(parser)
    add("--block-size", type=int, default=None)
    add("--gpu-memory-utilization", type=float, default=0.92)
    add("--kv-cache-memory-bytes", type=_human_int, default=None)
    add("--kv-cache-dtype", default="auto", choices=KV_CACHE_DTYPES)
    add("--kv-offloading-size", type=float, default=None)
    add("--kv-transfer-config", type=_json, default=None)
    add("--num-gpu-blocks-override", type=int, default=None)
    add("--cpu-offload-gb", type=float, default=0)
    add("--mamba-ssm-cache-dtype", default="auto")
    add("--max-num-seqs", type=int, default=None)
    add("--max-num-batched-tokens", type=_human_int, default=None)
    add("--max-num-queued-reqs", type=int, default=None)
    add("--max-num-queued-tokens", type=int, default=None)
    add("--max-num-partial-prefills", type=int, default=1)
    add("--scheduling-policy", default="fcfs", choices=("fcfs", "priority"))
    add("--speculative-config", type=_json, default=None)
    add("--compilation-config", "-cc", type=_json, default={})
    add("--additional-config", type=_json, default={})
    add("--attention-backend", default=None)
    add("--moe-backend", default="auto")
    add(
        "--prefix-caching-hash-algo",
        default="sha256",
        choices=("sha256", "sha256_cbor", "xxhash", "xxhash_cbor"),
    )
    for name in ("async-scheduling", "enable-flashinfer-autotune", "enable-lora", "calculate-kv-scales"):
        switch(name)
    switch("enable-prefix-caching", default=True)
    switch("enable-chunked-prefill", default=True)


def _switch(parser: argparse.ArgumentParser) -> Any:
    def add(name: str, short: str | None = None, *, default: bool = False) -> None:
        names = [f"--{name}", *([short] if short else [])]
        parser.add_argument(*names, action=argparse.BooleanOptionalAction, default=default)

    return add
