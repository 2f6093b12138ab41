"""Tasks that live as long as their owner; the first that fails is the owner's failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """Endless tasks. ``failed`` is done, with the exception, as soon as one of them ends by itself."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._notice)

    async def close(self) -> None:
        """End all tasks; raises what the first failed one raised."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.failed.done():
            self.failed.result()
        self.failed.cancel()

    def _notice(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self.failed.done():
            return
        error = task.exception()
        self.failed.set_exception(error or RuntimeError(f"{task.get_coro()} ended"))
