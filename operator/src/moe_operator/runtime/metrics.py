"""The operator's own Prometheus metrics, all declared here.

Label values are few by construction: kinds, verbs, results and HTTP codes; never names or messages.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from moe_operator.runtime.kube import ApiError, JsonPatch, Kind, Kube, Listing, Obj, WatchEvent, kind_of

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_PASS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60)

T = TypeVar("T")


class OperatorMetrics:
    """One registry per operator process; also the work queue's observer."""

    def __init__(self, version: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._clock = clock
        self._last_event = clock()
        self.reconciles = Counter(
            "moe_operator_reconcile",
            "Finished reconcile passes by result: ok, conflict, error, gone.",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "moe_operator_reconcile_duration_seconds",
            "Time of one pass: observe, decide, execute.",
            buckets=_PASS_BUCKETS,
            registry=self.registry,
        )
        self.reconcile_errors = Counter(
            "moe_operator_reconcile_errors",
            "Passes that stopped at an error, by the API server's reason or the exception's name.",
            ["reason"],
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "moe_operator_queue_depth",
            "MoEDeployments that are due and wait for a worker.",
            registry=self.registry,
        )
        self.queue_seconds = Histogram(
            "moe_operator_queue_latency_seconds",
            "How long a MoEDeployment was due before a worker took it.",
            buckets=_QUEUE_BUCKETS,
            registry=self.registry,
        )
        self.queue_retries = Counter(
            "moe_operator_queue_retries", "Passes put back with a backoff.", registry=self.registry
        )
        self.api_requests = Counter(
            "moe_operator_api_requests",
            "Requests to the API server by verb, kind and HTTP code (0 = not reached).",
            ["verb", "kind", "code"],
            registry=self.registry,
        )
        self.watch_events = Counter(
            "moe_operator_watch_events", "Watch events received, by kind.", ["kind"], registry=self.registry
        )
        last_event_age = Gauge(
            "moe_operator_last_event_age_seconds",
            "Time since the newest watch event of any kind (or since the start).",
            registry=self.registry,
        )
        last_event_age.set_function(lambda: self._clock() - self._last_event)
        self.is_leader = Gauge(
            "moe_operator_is_leader",
            "1 while this process may act, 0 while it stands by.",
            registry=self.registry,
        )
        build = Gauge(
            "moe_operator_build_info",
            "Always 1; the version is a label.",
            ["version"],
            registry=self.registry,
        )
        build.labels(version).set(1)

    def event_seen(self, kind: str) -> None:
        """A watch event of ``kind`` arrived."""
        self._last_event = self._clock()
        self.watch_events.labels(kind).inc()

    def depth(self, queued: int) -> None:
        """Work queue: keys waiting for a worker."""
        self.queue_depth.set(queued)

    def waited(self, seconds: float) -> None:
        """Work queue: how long a key waited for a worker."""
        self.queue_seconds.observe(seconds)

    def retried(self) -> None:
        """Work queue: a key was put back."""
        self.queue_retries.inc()

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class MeteredKube(Kube):
    """Another client, with every request counted."""

    def __init__(self, kube: Kube, metrics: OperatorMetrics) -> None:
        self._kube = kube
        self._requests = metrics.api_requests

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj:
        """See :class:`Kube`."""
        return await self._counted("get", kind, self._kube.get(kind, namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        """See :class:`Kube`."""
        return await self._counted(
            "list", kind, self._kube.list(kind, namespace, labels=labels, fields=fields)
        )

    async def apply(self, obj: Obj, *, manager: str, force: bool = True) -> Obj:
        """See :class:`Kube`."""
        return await self._counted("apply", kind_of(obj), self._kube.apply(obj, manager=manager, force=force))

    async def apply_status(self, obj: Obj, *, manager: str, force: bool = True) -> Obj:
        """See :class:`Kube`."""
        return await self._counted(
            "apply_status", kind_of(obj), self._kube.apply_status(obj, manager=manager, force=force)
        )

    async def create(self, obj: Obj) -> Obj:
        """See :class:`Kube`."""
        return await self._counted("create", kind_of(obj), self._kube.create(obj))

    async def replace(self, obj: Obj) -> Obj:
        """See :class:`Kube`."""
        return await self._counted("replace", kind_of(obj), self._kube.replace(obj))

    async def patch_json(self, kind: Kind, namespace: str | None, name: str, operations: JsonPatch) -> Obj:
        """See :class:`Kube`."""
        return await self._counted("patch", kind, self._kube.patch_json(kind, namespace, name, operations))

    async def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
    ) -> None:
        """See :class:`Kube`."""
        call = self._kube.delete(
            kind,
            namespace,
            name,
            uid=uid,
            resource_version=resource_version,
            grace_seconds=grace_seconds,
            propagation=propagation,
        )
        await self._counted("delete", kind, call)

    def watch(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", resource_version: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """See :class:`Kube`."""
        return self._kube.watch(kind, namespace, labels=labels, resource_version=resource_version)

    async def _counted(self, verb: str, kind: Kind, call: Awaitable[T]) -> T:
        try:
            answer = await call
        except ApiError as error:
            self._requests.labels(verb, kind.kind, str(error.status)).inc()
            raise
        self._requests.labels(verb, kind.kind, "200").inc()
        return answer
