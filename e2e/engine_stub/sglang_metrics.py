"""SGLang's ``/metrics``: the families that dashboards, autoscalers and an operator read."""

from __future__ import annotations

import time

from .exposition import Family, Labels, labels, render
from .generation import Generator, Job, Observer

LATENCY = (
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    2.0,
    4.0,
    6.0,
    8.0,
    10.0,
    20.0,
    40.0,
    60.0,
    80.0,
    100.0,
    200.0,
    400.0,
)
TOKEN = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4)


class SglangMetrics(Observer):
    """Scheduler gauges and tokenizer counters of one server."""

    def __init__(
        self, model: str, constants: dict[str, float], pool_tokens: int, load_seconds: float
    ) -> None:
        self.model = model
        self.constants = constants
        self.pool_tokens = pool_tokens
        self.load_seconds = load_seconds
        self.generator: Generator | None = None
        self.streaming: set[str] = set()
        counters = {
            "prompt_tokens": "Prompt tokens.",
            "generation_tokens": "Generated tokens, counted when a request ends.",
            "num_requests": "Requests.",
            "num_aborted_requests": "Requests that were aborted.",
            "cached_tokens": "Prompt tokens found in a cache.",
            "realtime_tokens": "Tokens as they are made.",
        }
        self.counters = {name: Family(f"sglang:{name}", "counter", text) for name, text in counters.items()}
        self.counters["num_aborted_requests"].declare(self._base())
        self.counters["cached_tokens"].declare(self._base(cache_source="total"))
        for flag in ("true", "false"):
            for name in ("prompt_tokens", "generation_tokens", "num_requests"):
                self.counters[name].declare(self._base(is_streaming=flag))
        for mode in ("prefill_compute", "prefill_cache", "decode"):
            self.counters["realtime_tokens"].declare(self._scheduler(mode=mode))
        self.histograms = {
            name: Family(f"sglang:{name}", "histogram", text, buckets)
            for name, text, buckets in (
                ("time_to_first_token_seconds", "Seconds to the first token.", LATENCY),
                ("inter_token_latency_seconds", "Seconds between tokens.", TOKEN),
                ("e2e_request_latency_seconds", "Seconds from arrival to end.", LATENCY),
            )
        }

    def scheduled(self, job: Job) -> None:
        self.counters["realtime_tokens"].add(self._scheduler(mode="prefill_compute"), job.prompt_tokens)

    def token(self, job: Job, now: float, previous: float) -> None:
        self.counters["realtime_tokens"].add(self._scheduler(mode="decode"))
        if previous:
            self.histograms["inter_token_latency_seconds"].add(self._base(), now - previous)
        else:
            first = self._base(is_streaming=self._flag(job))
            self.histograms["time_to_first_token_seconds"].add(first, now - job.arrived)

    def finished(self, job: Job, reason: str) -> None:
        at = self._base(is_streaming=self._flag(job))
        if reason in {"abort", "error"}:
            self.counters["num_aborted_requests"].add(self._base())
        self.counters["prompt_tokens"].add(at, job.prompt_tokens)
        self.counters["generation_tokens"].add(at, job.generated)
        self.counters["num_requests"].add(at)
        self.histograms["e2e_request_latency_seconds"].add(at, time.monotonic() - job.arrived)
        self.streaming.discard(job.id)

    def page(self) -> bytes:
        """The exposition."""
        return render([*self._gauges(), *self.counters.values(), *self.histograms.values()])

    def _gauges(self) -> list[Family]:
        running = self.generator.running if self.generator else []
        waiting = self.generator.waiting if self.generator else []
        used = float(sum(job.prompt_tokens + job.generated for job in running))
        pool = float(max(1, self.pool_tokens))
        values = {
            "num_running_reqs": float(len(running)),
            "num_queue_reqs": float(len(waiting)),
            "num_used_tokens": used,
            "token_usage": used / pool,
            "kv_available_tokens": pool - used,
            "kv_used_tokens": used,
            "gen_throughput": self._throughput(running),
            "cache_hit_rate": 0.0,
            "num_retracted_reqs": 0.0,
            "utilization": 1.0 if running else 0.0,
            "max_total_num_tokens": pool,
            **self.constants,
        }
        plain = [
            Family(
                f"sglang:{name}", "gauge", f"{name.replace('_', ' ').capitalize()}.",
                values={self._scheduler(): value},
            )
            for name, value in values.items()
        ]  # fmt: skip
        load = Family("sglang:weight_load_duration_seconds", "gauge", "Seconds to load the weights.")
        load.values[self._scheduler(source="disk")] = self.load_seconds
        startup = Family("sglang:startup_time_seconds", "gauge", "Seconds of start-up.")
        startup.values[self._scheduler(phase="load_weights")] = self.load_seconds
        return [*plain, load, startup]

    @staticmethod
    def _throughput(running: list[Job]) -> float:
        """Tokens a second over what runs now."""
        now = time.monotonic()
        return sum(job.generated / (now - job.first_token) for job in running if 0 < job.first_token < now)

    def _flag(self, job: Job) -> str:
        return "true" if job.id in self.streaming else "false"

    def _base(self, **more: str) -> Labels:
        return labels(model_name=self.model, engine_type="unified", **more)

    def _scheduler(self, **more: str) -> Labels:
        return self._base(tp_rank="0", pp_rank="0", moe_ep_rank="0", **more)
