"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Call:
    callback: Callable[..., Any]
    args: tuple[Any, ...]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class VirtualTime:
    now: float = 1000.0
    _calls: list[tuple[float, int, _Call]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> _Call:
        call = _Call(callback, args)
        heapq.heappush(self._calls, (self.now + delay, next(self._order), call))
        return call

    async def sleep(self, seconds: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_later(seconds, lambda: done.done() or done.set_result(None))
        await done

    async def advance(self, seconds: float) -> None:
        """Move on, running what falls due in order and letting tasks react in between."""
        await settle()
        end = self.now + seconds
        while self._calls and self._calls[0][0] <= end:
            self.now, _, call = heapq.heappop(self._calls)
            if not call.cancelled:
                call.callback(*call.args)
            await settle()
        self.now = end
        await settle()

    @property
    def pending(self) -> list[float]:
        """Delays from now of the calls that would still run."""
        return sorted(due - self.now for due, _, call in self._calls if not call.cancelled)


async def settle() -> None:
    """Let every task run until it waits for something."""
    for _ in range(50):
        await asyncio.sleep(0)
