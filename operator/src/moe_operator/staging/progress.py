"""How far a stager is, counted by every thread and read by whoever asks.

Invariant: ``bytes done = reused + received − dropped``; a byte that has to be fetched again is dropped
first, so progress may go back but never above the total.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal

from moe_operator.api.manifest import StageProgress

Phase = Literal["Pending", "Resolved", "Reserving", "Pulling", "Verifying", "Publishing", "Ready", "Failed"]
RATE_WINDOW = 30.0  # seconds over which the rate is taken


@dataclass(frozen=True, slots=True)
class Counts:
    """Everything counted since the start; bytes unless the name says otherwise."""

    reused: int
    received: int
    from_peers: int  # of received
    dropped: int
    served: int  # to other nodes
    retries: dict[str, int]
    throttled_seconds: float
    seconds: float
    failure: str  # the StageExit's name, "" while nothing failed


class Progress:
    """Thread-safe counters of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._phase: Phase = "Pending"
        self._view = ""
        self._message = self._failure = ""
        self._total = self._reused = self._received = self._from_peers = self._dropped = self._served = 0
        self._retries: Counter[str] = Counter()
        self._throttled = 0.0
        self._samples: deque[tuple[float, int]] = deque([(self._started, 0)])

    def enter(self, phase: Phase, message: str = "") -> None:
        """Go to a phase."""
        with self._lock:
            self._phase, self._message = phase, message

    def fail(self, reason: str, message: str) -> None:
        """The run ends without its result."""
        with self._lock:
            self._phase, self._message, self._failure = "Failed", message, reason

    def expect(self, total: int, view_digest: str = "") -> None:
        """How many bytes the whole is."""
        with self._lock:
            self._total, self._view = total, view_digest

    def reuse(self, count: int) -> None:
        """Bytes that were here already."""
        with self._lock:
            self._reused += count

    def receive(self, count: int, *, from_peer: bool = False) -> None:
        """Bytes that came from the source, or from another node that had them."""
        with self._lock:
            self._received += count
            self._from_peers += count if from_peer else 0

    def drop(self, count: int) -> None:
        """Bytes that turned out to be useless."""
        with self._lock:
            self._dropped += count

    def serve(self, count: int) -> None:
        """Bytes given to another node."""
        with self._lock:
            self._served += count

    def retry(self, code: str, message: str) -> None:
        """The source is asked again."""
        with self._lock:
            self._retries[code] += 1
            self._message = message

    def throttle(self, seconds: float) -> None:
        """Time spent waiting because of a limit."""
        with self._lock:
            self._throttled += seconds

    @property
    def counts(self) -> Counts:
        """A copy of the counters."""
        with self._lock:
            return Counts(
                self._reused,
                self._received,
                self._from_peers,
                self._dropped,
                self._served,
                dict(self._retries),
                self._throttled,
                time.monotonic() - self._started,
                self._failure,
            )

    def snapshot(self) -> StageProgress:
        """The answer to ``GET /progress``."""
        with self._lock:
            done = self._reused + self._received - self._dropped
            rate = self._rate(time.monotonic())
            left = max(self._total - done, 0)
            return StageProgress(
                phase=self._phase,
                view_digest=self._view,
                bytes_total=self._total,
                bytes_done=done,
                bytes_reused=self._reused,
                bytes_from_peers=self._from_peers,
                rate_bytes_per_second=rate,
                eta_seconds=left / rate if rate > 0 else (0.0 if self._total and not left else None),
                message=self._message,
            )

    def _rate(self, now: float) -> float:
        self._samples.append((now, self._received))
        while len(self._samples) > 2 and now - self._samples[1][0] > RATE_WINDOW:
            self._samples.popleft()
        then, before = self._samples[0]
        return (self._received - before) / (now - then) if now > then else 0.0
