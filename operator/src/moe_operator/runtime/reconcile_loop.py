"""One pass over one MoEDeployment: observe, decide, execute; and what happens next.

A decision that claims what others may want (GPUs, a place at a source, a node's store) is written while
its snapshot still keeps the others from claiming (see ``observe.py``). Nothing else is shared between
passes but how each key's last one ended.

A pass that was overtaken while it waited for pods to answer is over; the key is queued already.

Errors never end the loop. A conflict means somebody wrote first: look again, at once the first time, with
backoff when it goes on. Anything else is retried with backoff; what the API server said to a write is told
to the next decision, which reports it in a condition.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from moe_operator.reconcile.actions import Decision
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.runtime.execute import Outcome
from moe_operator.runtime.kube import ApiError
from moe_operator.runtime.metrics import OperatorMetrics
from moe_operator.runtime.observe import Overtaken
from moe_operator.runtime.queue import BACKOFF_CAP_SECONDS, WorkQueue
from moe_operator.runtime.wakeups import Key

AWAY_CAP_SECONDS = 15.0  # an API server that comes back is used soon, whatever the backoff had grown to
PASS_SECONDS = 300.0  # every request in a pass is bounded; this bounds their sum
log = logging.getLogger(__name__)


class Observes(Protocol):
    """Gathers snapshots (see ``observe.py``)."""

    def observed(self, key: Key, last_error: str = "") -> AbstractAsyncContextManager[Snapshot | None]:
        """Everything about ``key``; None when it does not exist. While it is entered, nobody else claims."""
        ...


class Executes(Protocol):
    """Carries out decisions (see ``execute.py``)."""

    async def execute(self, snapshot: Snapshot, decision: Decision) -> Outcome:
        """Do what the decision says."""
        ...


class ReconcileLoop:
    """The handler of the work queue's keys."""

    def __init__(
        self,
        queue: WorkQueue[Key],
        observer: Observes,
        decide: Callable[[Snapshot], Decision],
        executor: Executes,
        metrics: OperatorMetrics,
        *,
        gone: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._observer = observer
        self._decide = decide
        self._executor = executor
        self._metrics = metrics
        self._gone = gone
        self._clock = clock
        self._last_errors: dict[Key, str] = {}
        self._conflicted: set[Key] = set()

    async def reconcile(self, key: Key) -> None:
        """One pass; answers for its own errors and arranges the next pass."""
        began = self._clock()
        fields: dict[str, object] = {"key": str(key)}
        try:
            async with asyncio.timeout(PASS_SECONDS):
                result = await self._pass(key, fields)
        except Overtaken:
            result = "overtaken"
        except Exception as error:
            # A bug in one deployment's path must not take the others down: loud, counted, retried.
            result = self._failed(key, fields, error)
        seconds = self._clock() - began
        self._metrics.reconciles.labels(result).inc()
        self._metrics.reconcile_seconds.observe(seconds)
        fields |= {"result": result, "duration_ms": round(seconds * 1000, 1)}
        log.log(logging.WARNING if result == "error" else logging.INFO, "reconciled", extra=fields)

    async def _pass(self, key: Key, fields: dict[str, object]) -> str:
        outcome = None
        async with self._observer.observed(key, self._last_errors.get(key, "")) as snapshot:
            if snapshot is None:
                self._forget(key)
                return "gone"
            decision = self._decide(snapshot)
            if decision.claims:
                outcome = await self._executor.execute(snapshot, decision)
        if outcome is None:
            outcome = await self._executor.execute(snapshot, decision)
        fields |= _about(snapshot, decision) | {"writes": outcome.writes}
        return self._arrange(key, fields, outcome)

    def _arrange(self, key: Key, fields: dict[str, object], outcome: Outcome) -> str:
        if outcome.error is not None and not outcome.conflict:
            self._last_errors[key] = str(outcome.error)
            return self._failed(key, fields, outcome.error)
        if outcome.conflict:
            self._look_again(key, fields)
            return "conflict"
        self._last_errors.pop(key, None)
        self._conflicted.discard(key)
        self._queue.forgive(key)
        if outcome.wake_after is not None:
            self._queue.add_after(key, outcome.wake_after)
            fields["wake_after_s"] = round(outcome.wake_after, 3)
        return "ok"

    def _failed(self, key: Key, fields: dict[str, object], error: Exception) -> str:
        reason = error.reason if isinstance(error, ApiError) else type(error).__name__
        self._metrics.reconcile_errors.labels(reason).inc()
        fields |= {"error": str(error) or reason, "reason": reason}
        cap = AWAY_CAP_SECONDS if _away(error) else BACKOFF_CAP_SECONDS
        fields["retry_in_s"] = round(self._queue.retry(key, cap=cap), 3)
        if not isinstance(error, ApiError | TimeoutError):
            log.error("reconcile raised", exc_info=error, extra={"key": str(key)})
        return "error"

    def _look_again(self, key: Key, fields: dict[str, object]) -> None:
        if key in self._conflicted:
            fields["retry_in_s"] = round(self._queue.retry(key), 3)
        else:
            self._conflicted.add(key)
            self._queue.add(key)

    def _forget(self, key: Key) -> None:
        self._last_errors.pop(key, None)
        self._conflicted.discard(key)
        self._queue.forgive(key)
        self._gone(key)


def _away(error: Exception) -> bool:
    """Whether the API server, not the deployment, is the reason."""
    return isinstance(error, ApiError) and (error.status in {0, 429} or error.status >= 500)


def _about(snapshot: Snapshot, decision: Decision) -> dict[str, object]:
    status = decision.status or snapshot.object.get("status") or {}
    return {"generation": snapshot.generation, "revision": status.get("targetRevision", "")}


async def every(
    seconds: float, task: Callable[[], Awaitable[None]], sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Run ``task`` now and every ``seconds`` after, for ever; an ApiError is logged and waited out."""
    while True:
        try:
            await task()
        except ApiError as error:
            log.warning("sweep failed", extra={"error": str(error), "reason": error.reason})
        await sleep(seconds)
