"""Numbers of all requests, per colour and key, in a bounded number of series.

The first :data:`MOST_KEYS` keys have series of their own; the rest are one key called ``other``. Of the
colours the :data:`MOST_REVISIONS` that were seen last are kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from moe_operator.gateway.request_record import RequestRecord

MOST_KEYS = 100
MOST_REVISIONS = 8
OTHER = "other"
RUNNING_FOR = 5.0  # seconds after which a request that is no longer told of counts as gone
BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)  # seconds
LABELS = ("revision", "key")

Labels = tuple[str, str]


@dataclass(slots=True)
class Buckets:
    """A histogram."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float | None) -> None:
        """Count a value that is known."""
        if seconds is not None:
            self.counts[bisect_left(BOUNDS, seconds)] += 1
            self.total += seconds

    @property
    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus wants it."""
        bounds = [*map(str, BOUNDS), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


@dataclass(slots=True)
class Series:
    """All numbers of one colour and key."""

    codes: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    ttft: Buckets = field(default_factory=Buckets)
    duration: Buckets = field(default_factory=Buckets)
    queue: Buckets = field(default_factory=Buckets)

    def add(self, record: RequestRecord) -> None:
        """Count one request that has ended."""
        self.codes[f"{record.status // 100}xx" if record.status else "none"] += 1
        self.failures += record.failed
        self.tokens["prompt"] += record.prompt_tokens or 0
        self.tokens["completion"] += record.completion_tokens or 0
        self.ttft.observe(record.ttft_seconds)
        self.duration.observe(record.duration_seconds)
        self.queue.observe(record.queue_seconds)


class RequestStats:
    """The numbers since this agent started."""

    def __init__(self) -> None:
        self._series: dict[Labels, Series] = {}
        self._rejected: Counter[tuple[str, str]] = Counter()
        self._running: dict[int, tuple[Labels, float]] = {}  # connection → whose, told when
        self._keys: set[str] = set()

    def take(self, record: RequestRecord, moment: float) -> None:
        """Count what has ended, remember what runs."""
        labels = (record.revision, self._shown(record.key_id))
        if not record.ended:
            self._running[record.connection] = (labels, moment)
            return
        self._running.pop(record.connection, None)
        if record.refused:
            self._rejected[record.refused, labels[1]] += 1
        self._of(labels).add(record)

    def collect(self, moment: float) -> Iterator[Metric]:
        """Every metric."""
        yield self._in_flight(moment)
        yield self._rejections()
        requests = CounterMetricFamily(
            "moe_gateway_client_requests", "Requests that ended.", labels=(*LABELS, "code")
        )
        failures = CounterMetricFamily(
            "moe_gateway_client_failures", "Requests that an engine or the gateway failed.", labels=LABELS
        )
        tokens = CounterMetricFamily(
            "moe_gateway_tokens", "Tokens that engines reported.", labels=(*LABELS, "kind")
        )
        for labels, series in self._series.items():
            failures.add_metric(labels, series.failures)
            for code, count in series.codes.items():
                requests.add_metric((*labels, code), count)
            for kind, count in series.tokens.items():
                tokens.add_metric((*labels, kind), count)
        yield from (requests, failures, tokens)
        yield self._histogram(
            "time_to_first_token", "From request to first byte of the answer's body.", "ttft"
        )
        yield self._histogram("request_duration", "From first to last byte.", "duration")
        yield self._histogram("queue", "From a whole request to its start at an engine.", "queue")

    def _in_flight(self, moment: float) -> Metric:
        self._running = {
            connection: (labels, told)
            for connection, (labels, told) in self._running.items()
            if moment - told < RUNNING_FOR
        }
        metric = GaugeMetricFamily(
            "moe_gateway_in_flight", "Requests that have been running for a second or more.", labels=LABELS
        )
        running = Counter(labels for labels, _ in self._running.values())
        for labels in self._series.keys() | running.keys():
            metric.add_metric(labels, running[labels])
        return metric

    def _rejections(self) -> Metric:
        metric = CounterMetricFamily(
            "moe_gateway_rejected", "Requests that the gateway itself refused.", labels=("reason", "key")
        )
        for labels, count in self._rejected.items():
            metric.add_metric(labels, count)
        return metric

    def _histogram(self, name: str, text: str, attribute: str) -> Metric:
        metric = HistogramMetricFamily(f"moe_gateway_{name}_seconds", text, labels=LABELS)
        for labels, series in self._series.items():
            buckets: Buckets = getattr(series, attribute)
            metric.add_metric(labels, buckets.cumulative, buckets.total)
        return metric

    def _shown(self, key_id: str) -> str:
        if len(self._keys) < MOST_KEYS:
            self._keys.add(key_id)
        return key_id if key_id in self._keys else OTHER

    def _of(self, labels: Labels) -> Series:
        if labels in self._series:
            self._series[labels] = self._series.pop(labels)  # last seen, last dropped
            return self._series[labels]
        self._series[labels] = Series()
        kept = set(_latest(self._series))
        self._series = {other: series for other, series in self._series.items() if other[0] in kept}
        return self._series[labels]


def _latest(series: dict[Labels, Series]) -> list[str]:
    revisions = dict.fromkeys(revision for revision, _ in reversed(series))
    return list(revisions)[:MOST_REVISIONS]
