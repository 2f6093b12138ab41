"""How fast, how many at once, and how patient: shared by all transfers of a process.

Rules: a token bucket bounds bytes per second; the number of open requests halves when the source says
429 or 503 and grows by one per finished request (AIMD); waits between attempts double, with jitter,
and are never shorter than what the source asked for.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from moe_operator.staging.stop import Stop

LOOK_SECONDS = 0.5  # seconds between looks at the stop switch while waiting for a slot


class Gate:
    """At most ``limit`` requests at once, where ``limit`` follows what the source can take."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = most
        self._open = 0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """Requests allowed at once now."""
        return self._limit

    @contextmanager
    def slot(self, stop: Stop) -> Iterator[None]:
        """Hold one of the slots; waits for one."""
        with self._changed:
            while self._open >= self._limit:
                stop.check()
                self._changed.wait(LOOK_SECONDS)
            self._open += 1
        try:
            yield
        finally:
            with self._changed:
                self._open -= 1
                self._changed.notify()

    def throttled(self) -> None:
        """The source said it is too much."""
        with self._changed:
            self._limit = max(1, self._limit // 2)

    def served(self) -> None:
        """A request came through."""
        with self._changed:
            self._limit = min(self._most, self._limit + 1)
            self._changed.notify()


class Bucket:
    """At most ``rate`` bytes per second over all threads; 0 = unlimited."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def take(self, count: int, stop: Stop) -> float:
        """Pay for ``count`` bytes; returns the seconds waited."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = time.monotonic()
            start = max(self._free_at, now)
            self._free_at = start + count / self._rate
        if start > now:
            stop.wait(start - now)
        return start - now


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds to wait before attempt n (1, 2, …)."""

    first: float = 0.5
    most: float = 30.0

    def delay(self, attempt: int, retry_after: float | None) -> float:
        """Exponential with up to 50 % jitter, at least ``retry_after``."""
        ceiling = min(self.most, self.first * 2.0 ** min(attempt - 1, 16))
        jittered = ceiling * random.uniform(0.5, 1.0)
        return max(jittered, retry_after or 0.0)
