"""The stager's Prometheus metrics, computed from its counters whenever somebody scrapes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from moe_operator.staging.progress import Progress
from moe_operator.staging.store import Store


class StageCollector(Collector):
    """Everything a stager counts."""

    def __init__(self, progress: Progress, scheme: str, store: Store | None) -> None:
        self._progress = progress
        self._scheme = scheme
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """One family per metric."""
        counts = self._progress.counts
        transferred = CounterMetricFamily(
            "moe_stage_bytes", "Bytes received from the source", labels=["source", "outcome"]
        )
        transferred.add_metric([self._scheme, "received"], counts.received - counts.from_peers)
        transferred.add_metric(["peer", "received"], counts.from_peers)
        transferred.add_metric([self._scheme, "dropped"], counts.dropped)
        yield transferred
        yield CounterMetricFamily(
            "moe_stage_reused_bytes", "Bytes that were in the store already", value=counts.reused
        )
        yield CounterMetricFamily("moe_serve_bytes", "Bytes given to other nodes", value=counts.served)
        yield GaugeMetricFamily(
            "moe_stage_duration_seconds", "Seconds since this run began", value=counts.seconds
        )
        failures = CounterMetricFamily("moe_stage_failures", "Runs that failed", labels=["reason"])
        if counts.failure:
            failures.add_metric([counts.failure], 1)
        yield failures
        retries = CounterMetricFamily("moe_stage_retries", "Requests made again", labels=["code"])
        for code, number in counts.retries.items():
            retries.add_metric([code], number)
        yield retries
        yield CounterMetricFamily(
            "moe_stage_throttled_seconds", "Seconds waited for a limit", value=counts.throttled_seconds
        )
        if self._store is not None:
            yield from _store_metrics(self._store)


def _store_metrics(store: Store) -> Iterator[Metric]:
    sizes = GaugeMetricFamily("moe_store_bytes", "Bytes on disk in the store", labels=["kind"])
    for kind in ("blobs", "partial", "trash"):
        sizes.add_metric([kind], sum(_allocated(path) for path in (store.root / kind).rglob("*")))
    yield sizes
    disk = os.statvfs(store.root)
    yield GaugeMetricFamily(
        "moe_store_free_bytes", "Bytes the store's disk still takes", value=disk.f_bavail * disk.f_frsize
    )


def _allocated(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:  # published or swept since it was listed
        return 0


def exposition(collector: StageCollector) -> bytes:
    """The answer to ``GET /metrics``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
