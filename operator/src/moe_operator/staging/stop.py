"""When to stop, told to every thread at once.

Invariant: after :meth:`Stop.trip` no wait lasts and no guarded socket blocks; whoever notices raises
:class:`Stopped`, writes down what it has (the journal) and returns.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from moe_operator.staging.failure import Stopped


class Stop:
    """A one-way switch; ``signal`` is the signal that tripped it, 0 when a worker's failure did."""

    def __init__(self) -> None:
        self.signal = 0
        self._event = threading.Event()
        self._wakers: set[Callable[[], None]] = set()
        self._lock = threading.RLock()  # re-entrant: the handler may interrupt the thread that holds it

    def on_signals(self) -> None:
        """Trip on SIGTERM and SIGINT. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        self.trip()

    def trip(self) -> None:
        """Ask everyone to stop."""
        self._event.set()
        with self._lock:
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    def check(self) -> None:
        """Raise Stopped once tripped."""
        if self._event.is_set():
            raise Stopped

    def wait(self, seconds: float) -> None:
        """Sleep, or raise Stopped as soon as tripped."""
        if self._event.wait(seconds):
            raise Stopped

    def wait_for_signal(self) -> None:
        """Block until tripped."""
        self._event.wait()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` if tripped while the block runs."""
        with self._lock:
            self._wakers.add(wake)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._wakers.discard(wake)
