"""The metric families of vLLM's ``/metrics``, filled from what the stub really did.

Names, types, labels and buckets are those of vllm/v1/metrics/loggers.py and of the instrumentator that
counts HTTP requests; families that a stub has nothing to say about stay at 0.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .exposition import Family, Labels, labels, render, steps_to
from .generation import Generator, Job, Observer

LATENCY = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
    640, 2560,
)  # fmt: skip
TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITERATION = tuple(float(1 << power) for power in (0, *range(3, 15)))
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
HTTP_FINE = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60,
)  # fmt: skip
HTTP_COARSE = (0.1, 0.5, 1)
UNCOUNTED = {"/metrics", "/health", "/load", "/ping", "/version", "/server_info"}

COUNTERS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (  # name, label, its values, help
    ("prefix_cache_queries", "", (), "Tokens looked up in the prefix cache."),
    ("prefix_cache_hits", "", (), "Tokens found in the prefix cache."),
    ("external_prefix_cache_queries", "", (), "Tokens looked up in a cache of other instances."),
    ("external_prefix_cache_hits", "", (), "Tokens found in a cache of other instances."),
    ("mm_cache_queries", "", (), "Items looked up in the multi-modal cache."),
    ("mm_cache_hits", "", (), "Items found in the multi-modal cache."),
    ("num_preemptions", "", (), "Requests that had to give back their cache."),
    ("prompt_tokens", "", (), "Prefill tokens processed."),
    (
        "prompt_tokens_by_source",
        "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
        "Prompt tokens by where they came from.",
    ),
    ("prompt_tokens_cached", "", (), "Prompt tokens that were cached."),
    (
        "prompt_tokens_cached_by_source",
        "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
        "Cached prompt tokens by cache tier.",
    ),
    ("generation_tokens", "", (), "Generated tokens."),
    (
        "request_success",
        "finished_reason",
        ("stop", "length", "abort", "error", "repetition"),
        "Requests that ended, by reason.",
    ),
)
HISTOGRAMS: tuple[tuple[str, tuple[float, ...] | None, str], ...] = (  # None: token steps to max_model_len
    ("request_prompt_tokens", None, "Prompt tokens of a request."),
    ("request_generation_tokens", None, "Generated tokens of a request."),
    ("iteration_tokens_total", ITERATION, "Tokens of one engine step."),
    ("request_max_num_generation_tokens", None, "Most tokens generated for one choice."),
    ("request_params_n", (1, 2, 5, 10, 20), "Parameter n."),
    ("request_params_max_tokens", None, "Parameter max_tokens."),
    ("time_to_first_token_seconds", FIRST_TOKEN, "Seconds to the first token."),
    ("inter_token_latency_seconds", TOKEN, "Seconds between tokens."),
    ("request_time_per_output_token_seconds", TOKEN, "Mean seconds per token of a request."),
    ("e2e_request_latency_seconds", LATENCY, "Seconds from arrival to end."),
    ("request_queue_time_seconds", LATENCY, "Seconds spent waiting."),
    ("request_inference_time_seconds", LATENCY, "Seconds spent running."),
    ("request_prefill_time_seconds", LATENCY, "Seconds spent on the prompt."),
    ("request_decode_time_seconds", LATENCY, "Seconds spent on tokens after the first."),
    ("request_num_preemptions", PREEMPTIONS, "Preemptions of a request."),
    ("request_prefill_kv_computed_tokens", None, "Prompt tokens computed, cached ones left out."),
)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What ``vllm:cache_config_info`` tells of the KV cache of one engine."""

    block_size: int
    blocks: int
    blocks_override: int | None
    dtype: str
    utilization: float
    prefix_caching: bool
    bytes: int
    tokens: int
    concurrency: float


class VllmMetrics(Observer):
    """All families of one API server; ``engines`` data-parallel ranks report separately."""

    def __init__(self, model: str, max_model_len: int, cache: CacheConfig, engines: int) -> None:
        self.model = model
        self.cache = cache
        self.engines = range(engines)
        self.generator: Generator | None = None
        self.utilization = [
            self._counter(f"estimated_{what}_per_gpu", "", (), "Estimate for utilization of a GPU.")
            for what in ("flops", "read_bytes", "write_bytes")
        ]
        self.counters = {entry[0]: self._counter(*entry) for entry in COUNTERS}
        self.rejections = Family("vllm:admission_rejections", "counter", "Requests refused by a queue limit.")
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            self.rejections.declare(labels(model_name=model, reason=reason))
        self.histograms = {
            name: self._histogram(name, steps_to(max_model_len) if buckets is None else buckets, text)
            for name, buckets, text in HISTOGRAMS
        }
        self.http = _HttpMetrics()

    def scheduled(self, job: Job) -> None:
        self._count("prompt_tokens", job, job.prompt_tokens)
        self._count("prefix_cache_queries", job, job.prompt_tokens)
        self._count("prompt_tokens_by_source", job, job.prompt_tokens, source="local_compute")
        self._observe("request_queue_time_seconds", job, job.scheduled - job.arrived)

    def token(self, job: Job, now: float, previous: float) -> None:
        self._count("generation_tokens", job, 1)
        self._observe("iteration_tokens_total", job, 1 if previous else 1 + job.prompt_tokens)
        if previous:
            self._observe("inter_token_latency_seconds", job, now - previous)
        else:
            self._observe("time_to_first_token_seconds", job, now - job.arrived)

    def finished(self, job: Job, reason: str) -> None:
        now = time.monotonic()
        first, last = job.first_token or now, job.last_token or now
        self._count("request_success", job, 1, finished_reason=reason)
        for name, value in (
            ("request_prompt_tokens", job.prompt_tokens),
            ("request_generation_tokens", job.generated),
            ("request_max_num_generation_tokens", job.generated / job.n),
            ("request_params_n", job.n),
            ("request_params_max_tokens", job.sampling.max_tokens),
            ("e2e_request_latency_seconds", now - job.arrived),
            ("request_inference_time_seconds", last - job.scheduled),
            ("request_prefill_time_seconds", first - job.scheduled),
            ("request_decode_time_seconds", last - first),
            ("request_time_per_output_token_seconds", (last - first) / max(1, job.generated - 1)),
            ("request_num_preemptions", 0),
            ("request_prefill_kv_computed_tokens", job.prompt_tokens),
        ):
            self._observe(name, job, value)

    def page(self) -> bytes:
        """The exposition."""
        return render(
            [
                *_process_families(),
                *self.utilization,
                *self._gauges(),
                *self.counters.values(),
                self.rejections,
                *self.histograms.values(),
                self._cache_config(),
                *self.http.families,
            ]
        )

    def _gauges(self) -> list[Family]:
        running, waiting = self._jobs(lambda one: one.running), self._jobs(lambda one: one.waiting)
        awake = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}
        used = {at: tokens / max(1, self.cache.tokens) for at, tokens in self._cached().items()}
        by_reason = {
            self._at(engine, reason=reason): waiting[self._at(engine)] if reason == "capacity" else 0.0
            for engine in self.engines
            for reason in ("capacity", "deferred")
        }
        sleep = {
            self._at(engine, sleep_state=state): on for engine in self.engines for state, on in awake.items()
        }
        return [
            _gauge("vllm:num_requests_running", "Requests in the running batch.", running),
            _gauge("vllm:num_requests_waiting", "Requests that wait.", waiting),
            _gauge("vllm:num_requests_waiting_by_reason", "Requests that wait, by reason.", by_reason),
            _gauge("vllm:engine_sleep_state", "Whether the engine sleeps, and how deep.", sleep),
            _gauge("vllm:kv_cache_usage_perc", "Used share of the KV cache, 1 is full.", used),
        ]

    def _jobs(self, listed: Callable[[Generator], list[Job]]) -> dict[Labels, float]:
        jobs = listed(self.generator) if self.generator else []
        return {self._at(engine): float(sum(job.engine == engine for job in jobs)) for engine in self.engines}

    def _cached(self) -> dict[Labels, float]:
        jobs = self.generator.running if self.generator else []
        return {
            self._at(engine): float(
                sum(job.prompt_tokens + job.generated for job in jobs if job.engine == engine)
            )
            for engine in self.engines
        }

    def _cache_config(self) -> Family:
        cache = self.cache
        facts = {
            "_block_size_resolved": True, "block_size": cache.block_size, "cache_dtype": cache.dtype,
            "cache_hit_alignment_tokens": None, "effective_attention_block_size": cache.block_size,
            "enable_mamba_shared_prefix_checkpoint": False, "enable_prefix_caching": cache.prefix_caching,
            "gpu_memory_utilization": cache.utilization, "hash_block_size": None, "is_attention_free": False,
            "kv_cache_dtype_skip_layers": [], "kv_cache_layout": None,
            "kv_cache_max_concurrency": cache.concurrency, "kv_cache_memory_bytes": cache.bytes,
            "kv_cache_size_tokens": cache.tokens, "kv_offloading_backend": "native",
            "kv_offloading_size": None, "kv_sharing_fast_prefill": False, "mamba_block_size": None,
            "mamba_cache_dtype": "auto", "mamba_cache_mode": "none", "mamba_page_size_padded": None,
            "mamba_ssm_cache_dtype": "float32", "num_cpu_blocks": None, "num_gpu_blocks": cache.blocks,
            "num_gpu_blocks_override": cache.blocks_override, "prefix_cache_retention_interval": 0,
            "prefix_caching_hash_algo": "sha256", "prefix_match_unit": None, "replayssm_buffer_len": 16,
            "skip_page_size_padded": None, "sliding_window": None, "swa_bounded_replay": True,
            "use_kda_recoverssm": False, "use_replayssm": False, "user_specified_block_size": False,
        }  # fmt: skip
        text = {name: str(value) for name, value in facts.items()}
        samples = {labels(engine=str(engine), **text): 1.0 for engine in self.engines}
        return _gauge("vllm:cache_config_info", "Configuration of the KV cache.", samples)

    def _at(self, engine: int, **more: str) -> Labels:
        return labels(engine=str(engine), model_name=self.model, **more)

    def _count(self, name: str, job: Job, amount: float, **more: str) -> None:
        self.counters[name].add(self._at(job.engine, **more), amount)

    def _observe(self, name: str, job: Job, amount: float) -> None:
        self.histograms[name].add(self._at(job.engine), amount)

    def _counter(self, name: str, label: str, values: tuple[str, ...], text: str) -> Family:
        family = Family(f"vllm:{name}", "counter", text)
        for engine in self.engines:
            for value in values or ("",):
                family.declare(self._at(engine, **({label: value} if label else {})))
        return family

    def _histogram(self, name: str, buckets: tuple[float, ...], text: str) -> Family:
        family = Family(f"vllm:{name}", "histogram", text, tuple(float(one) for one in buckets))
        for engine in self.engines:
            family.declare(self._at(engine))
        return family


class _HttpMetrics:
    """What the instrumentator counts: requests by handler, their sizes and latencies."""

    def __init__(self) -> None:
        self.requests = Family("http_requests", "counter", "Requests by method, status and handler.")
        self.request_size = Family("http_request_size_bytes", "summary", "Bytes of requests by handler.")
        self.response_size = Family("http_response_size_bytes", "summary", "Bytes of responses by handler.")
        self.fine = Family("http_request_duration_highr_seconds", "histogram", "Latency.", HTTP_FINE)
        self.fine.declare(())
        self.coarse = Family("http_request_duration_seconds", "histogram", "Latency.", HTTP_COARSE)

    @property
    def families(self) -> list[Family]:
        return [self.requests, self.request_size, self.response_size, self.fine, self.coarse]

    def answered(self, path: str, method: str, status: int, sizes: tuple[int, int], seconds: float) -> None:
        """Count one answer."""
        if path in UNCOUNTED:
            return
        self.requests.add(labels(handler=path, method=method, status=f"{status // 100}xx"))
        self.request_size.add(labels(handler=path), sizes[0])
        self.response_size.add(labels(handler=path), sizes[1])
        self.fine.add((), seconds)
        self.coarse.add(labels(handler=path, method=method), seconds)


def _gauge(name: str, text: str, samples: dict[Labels, float]) -> Family:
    return Family(name, "gauge", text, read=lambda: samples)


def _process_families() -> list[Family]:
    """The families that a Python client always has."""
    import platform  # slow to import, and only a scrape needs it

    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    implementation = platform.python_implementation()
    major, minor, patch = sys.version_info[:3]
    info = labels(
        implementation=implementation,
        major=str(major),
        minor=str(minor),
        patchlevel=str(patch),
        version=platform.python_version(),
    )
    collections = {
        name: Family(f"python_gc_{name}", "counter", "Garbage collection.")
        for name in ("objects_collected", "objects_uncollectable", "collections")
    }
    for family in collections.values():
        for generation in "012":
            family.values[labels(generation=generation)] = 0.0
    cpu = Family("process_cpu_seconds", "counter", "CPU time.")
    cpu.values[()] = usage.ru_utime + usage.ru_stime
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return [
        *collections.values(),
        _gauge("python_info", "Python platform.", {info: 1.0}),
        _gauge(
            "process_virtual_memory_bytes", "Virtual memory.", {(): float(pages * os.sysconf("SC_PAGESIZE"))}
        ),
        _gauge("process_resident_memory_bytes", "Resident memory.", {(): usage.ru_maxrss * 1024.0}),
        _gauge("process_start_time_seconds", "Start of the process.", {(): _STARTED}),
        cpu,
        _gauge("process_open_fds", "Open files.", {(): float(len(list(Path("/proc/self/fd").iterdir())))}),
        _gauge("process_max_fds", "Most open files.", {(): float(soft)}),
    ]


_STARTED = time.time()
