"""``GET /metrics``: the agent's numbers, one set per endpoint, and Envoy's stats under their own names.

Parts of the agent with numbers of their own (requests, keys, the waiting room) bring them as a source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from moe_operator.gateway.readback import Host, Reading

HOST_LABELS = ("revision", "endpoint")
HOST_METRICS: tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, str], ...] = (
    (GaugeMetricFamily, "moe_gateway_active_requests", "rq_active", "Requests in flight to an engine."),
    (CounterMetricFamily, "moe_gateway_requests", "rq_total", "Requests sent to an engine."),
    (CounterMetricFamily, "moe_gateway_request_errors", "rq_error", "Requests that failed (5xx, reset)."),
    (CounterMetricFamily, "moe_gateway_connect_failures", "cx_connect_fail", "Refused and late connects."),
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Everything one scrape shows."""

    reading: Reading | None
    generation: int
    received_generation: int
    rejections: int
    watch_connected: bool
    watch_failures: int
    draining: bool


Source = Callable[[], Iterable[Metric]]


def exposition(numbers: Numbers, sources: Sequence[Source], envoy_text: str) -> str:
    """Prometheus text; ``envoy_text`` is Envoy's own, already in that format."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(numbers, sources))
    return generate_latest(registry).decode() + envoy_text


class _Snapshot(Collector):
    def __init__(self, numbers: Numbers, sources: Sequence[Source]) -> None:
        self._numbers = numbers
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        n = self._numbers
        live = bool(n.reading and n.reading.live)
        yield GaugeMetricFamily("moe_gateway_envoy_live", "Whether Envoy serves.", value=live)
        yield GaugeMetricFamily("moe_gateway_draining", "Whether the pod is ending.", value=n.draining)
        yield GaugeMetricFamily("moe_gateway_generation", "Intent that Envoy runs.", value=n.generation)
        yield GaugeMetricFamily(
            "moe_gateway_received_generation", "Newest intent seen.", value=n.received_generation
        )
        yield CounterMetricFamily("moe_gateway_rejections", "Intents refused.", value=n.rejections)
        yield GaugeMetricFamily(
            "moe_gateway_watch_connected", "Whether the API server is watched.", value=n.watch_connected
        )
        yield CounterMetricFamily("moe_gateway_watch_failures", "Failed watches.", value=n.watch_failures)
        if n.reading:
            yield from _per_colour(n.reading)
            yield from _per_host(n.reading.hosts)
        for source in self._sources:
            yield from source()


def _per_colour(reading: Reading) -> Iterator[Metric]:
    weight = GaugeMetricFamily(
        "moe_gateway_weight", "Share of the traffic; 0 is standby.", labels=("revision",)
    )
    for revision, value in reading.weights.items():
        weight.add_metric((revision,), value)
    yield weight


def _per_host(hosts: tuple[Host, ...]) -> Iterator[Metric]:
    healthy = GaugeMetricFamily(
        "moe_gateway_endpoint_healthy", "Whether Envoy sends to it.", labels=HOST_LABELS
    )
    for host in hosts:
        healthy.add_metric((host.revision, host.endpoint), host.healthy)
    yield healthy
    for family, name, stat, text in HOST_METRICS:
        metric = family(name, text, labels=HOST_LABELS)
        for host in hosts:
            metric.add_metric((host.revision, host.endpoint), host.stats.get(stat, 0))
        yield metric
