"""Which file a worker takes next, and which is put off until another node has it.

Invariant: every item is taken until it is done; one that was put off comes back when its time has come, after
those that need not wait.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Iterable
from itertools import count

from moe_operator.api.manifest import ManifestFile
from moe_operator.staging.stop import Stop


class Agenda:
    """Files to bring, in order; shared by all workers."""

    def __init__(self, files: Iterable[ManifestFile]) -> None:
        self._turn = count()
        self._waiting = [(0.0, next(self._turn), file) for file in files]
        self._lock = threading.Lock()

    def next(self, stop: Stop) -> ManifestFile | None:
        """The next file, waiting until one is due; None when nothing is left to take."""
        with self._lock:
            if not self._waiting:
                return None
            due, _turn, file = heapq.heappop(self._waiting)
        stop.wait(max(due - time.monotonic(), 0))
        return file

    def later(self, file: ManifestFile, seconds: float) -> None:
        """Take it again, not before ``seconds`` have passed."""
        with self._lock:
            heapq.heappush(self._waiting, (time.monotonic() + seconds, next(self._turn), file))
