"""Keys waiting to be reconciled: each at most once, never two passes over one key at a time.

A key is *queued* (due now), *processing* (a worker has it), both at once never: what arrives while a
key is processed marks it dirty, and it is queued again when its pass ends. A key also has at most one
delayed add; the earlier one wins. A pass answers for everything that was known when it began, so taking
a key drops its delayed add: whoever still needs one (the pass itself) sets it again.

News that comes in bursts (a group's pods start in a dozen small steps each) is taken together: ``add_soon``
keeps passes over a key apart.

A pass may take long when all it does is wait for answers. ``overtake`` is an ``add`` that such a pass is told
of: what it asks about is not worth waiting for any more.

Invariant: after ``add(key)`` a pass over ``key`` begins later than that call, whatever else happens.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

SPACING_SECONDS = 0.2  # a pass costs the API server as much as creating four pods
BACKOFF_BASE_SECONDS = 1.0
BACKOFF_CAP_SECONDS = 300.0

K = TypeVar("K", bound=Hashable)


class TimerHandle(Protocol):
    """A pending call that can be taken back."""

    def cancel(self) -> None:
        """Take the call back; no-op when it has run."""
        ...


class Timer(Protocol):
    """Monotonic time and delayed calls; an asyncio event loop is one, a test's virtual clock another."""

    def time(self) -> float:
        """Seconds since some fixed moment."""
        ...

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` after ``delay`` seconds."""
        ...


class QueueObserver(Protocol):
    """Who wants to know how the queue is doing (see ``metrics.py``)."""

    def depth(self, queued: int) -> None:
        """Keys that are due and wait for a worker."""
        ...

    def waited(self, seconds: float) -> None:
        """How long a key was due before a worker took it."""
        ...

    def retried(self) -> None:
        """A key was put back after a failed pass."""
        ...


class WorkQueue(Generic[K]):
    """See the module's docstring for the rules; all methods belong to the event loop's thread."""

    def __init__(self, timer: Timer, rng: random.Random, observer: QueueObserver) -> None:
        self._timer = timer
        self._rng = rng
        self._observer = observer
        self._queued: deque[K] = deque()
        self._due_since: dict[K, float] = {}  # queued or dirty keys
        self._processing: dict[K, asyncio.Event] = {}  # set: overtaken
        self._began: dict[K, float] = {}  # the last pass; passes that began long ago may be missing
        self._delayed: dict[K, tuple[float, TimerHandle]] = {}
        self._failures: dict[K, int] = {}
        self._wakers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def add(self, key: K) -> None:
        """Have ``key`` reconciled as soon as a worker is free."""
        if self._closed or key in self._due_since:
            return
        self._due_since[key] = self._timer.time()
        if key not in self._processing:
            self._enqueue(key)

    def add_soon(self, key: K) -> None:
        """``add``, but no pass begins within ``SPACING_SECONDS`` of the one before because of it."""
        since = self._timer.time() - self._began.get(key, float("-inf"))
        self.add_after(key, SPACING_SECONDS - since)

    def overtake(self, key: K) -> None:
        """``add``, and tell the pass over ``key`` that is in flight."""
        self.add(key)
        if key in self._processing:
            self._processing[key].set()

    async def overtaken(self, key: K) -> None:
        """Return once the pass over ``key`` that is in flight has been overtaken; KeyError without one."""
        await self._processing[key].wait()

    def add_after(self, key: K, delay: float) -> None:
        """Have ``key`` reconciled in ``delay`` seconds, or earlier when something else asks for it."""
        if delay <= 0:
            self.add(key)
            return
        if self._closed:
            return
        due = self._timer.time() + delay
        pending = self._delayed.get(key)
        if pending is not None:
            if pending[0] <= due:
                return
            pending[1].cancel()
        self._delayed[key] = (due, self._timer.call_later(delay, self._ripe, key))

    def retry(self, key: K, *, cap: float = BACKOFF_CAP_SECONDS) -> float:
        """Have ``key`` reconciled after its backoff, which doubles up to ``cap``; returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = backoff_seconds(failures, self._rng, cap)
        self.add_after(key, delay)
        self._observer.retried()
        return delay

    def forgive(self, key: K) -> None:
        """The key's pass succeeded: its next backoff starts from the beginning."""
        self._failures.pop(key, None)

    async def take(self) -> K | None:
        """The next due key, now processing until ``done``; None once the queue is closed."""
        while not self._queued and not self._closed:
            waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._wakers.append(waker)
            try:
                await waker
            except asyncio.CancelledError:
                # A waker that fired for a cancelled worker must not be lost for the others.
                if waker.done() and not waker.cancelled() and self._queued:
                    self._wake_one()
                raise
        if self._closed:
            return None
        key = self._queued.popleft()
        self._processing[key] = asyncio.Event()
        self._drop_delayed(key)
        now = self._timer.time()
        self._began = {k: began for k, began in self._began.items() if now - began < SPACING_SECONDS}
        self._began[key] = now
        self._observer.waited(now - self._due_since.pop(key))
        self._observer.depth(len(self._queued))
        return key

    def done(self, key: K) -> None:
        """The pass over ``key`` ended; queue it again when something happened meanwhile."""
        self._processing.pop(key, None)
        if key in self._due_since and not self._closed:
            self._enqueue(key)

    async def work(self, workers: int, handle: Callable[[K], Awaitable[None]]) -> None:
        """Run ``handle`` over due keys with ``workers`` tasks until ``close``.

        ``handle`` answers for its own errors (it calls ``retry``); one that raises is a bug and ends all.
        Cancelling this call cancels the passes in flight.
        """
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(self._worker(handle), name=f"reconcile worker {number}")

    def close(self) -> None:
        """Hand out no more keys: idle workers end now, busy ones when their pass does."""
        self._closed = True
        for key in list(self._delayed):
            self._drop_delayed(key)
        while self._wakers:
            self._wake_one()

    def __len__(self) -> int:
        """Keys that are due and wait for a worker."""
        return len(self._queued)

    async def _worker(self, handle: Callable[[K], Awaitable[None]]) -> None:
        while (key := await self.take()) is not None:
            try:
                await handle(key)
            finally:
                self.done(key)

    def _ripe(self, key: K) -> None:
        del self._delayed[key]
        self.add(key)

    def _enqueue(self, key: K) -> None:
        self._queued.append(key)
        self._observer.depth(len(self._queued))
        self._wake_one()

    def _wake_one(self) -> None:
        while self._wakers:
            waker = self._wakers.popleft()
            if not waker.done():
                waker.set_result(None)
                return

    def _drop_delayed(self, key: K) -> None:
        pending = self._delayed.pop(key, None)
        if pending is not None:
            pending[1].cancel()


def backoff_seconds(failures: int, rng: random.Random, cap: float = BACKOFF_CAP_SECONDS) -> float:
    """Delay after the ``failures``-th failure in a row (from 0): 1–2 s, 2–4 s, … up to ``cap``.

    The random half keeps keys that failed together (API server down) from coming back together.
    """
    ceiling = min(cap, BACKOFF_BASE_SECONDS * 2.0 ** min(failures + 1, 32))
    return rng.uniform(ceiling / 2, ceiling)
