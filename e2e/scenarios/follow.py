"""Wait for a MoEDeployment to become what it should, and hear of every change on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from moe_operator.runtime.kube import MOE_DEPLOYMENT, ApiError, Kube

from .view import View


class NotReached(Exception):
    """What was waited for cannot come, or did not come in time."""


class Follower:
    """Follows one object from now on; use as ``async with``."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.latest: View | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def until(
        self, done: Callable[[View], bool], what: str, seconds: float, hear: Callable[[View], None]
    ) -> View:
        """The first view that is ``done``; NotReached when it is Stalled or the time is over.

        ``hear`` gets every view on the way.
        """
        waiting = asyncio.create_task(self._until(done, hear))
        ends = {waiting, self._task} if self._task else {waiting}
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            if self._task and self._task.done():
                self._task.result()
            at = self.latest.doing if self.latest else "the object does not exist"
            raise NotReached(f"not within {seconds:.0f} s: {what}; last seen: {at}")
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _until(self, done: Callable[[View], bool], hear: Callable[[View], None]) -> View:
        async with self._changed:
            while True:
                if view := self.latest:
                    hear(view)
                    if done(view):
                        return view
                    if view.stalled:
                        raise NotReached(view.stalled)
                await self._changed.wait()

    async def _follow(self) -> None:
        while True:
            try:
                async for event in self._kube.watch(MOE_DEPLOYMENT, self._namespace):
                    if event.type == "BOOKMARK" or event.object["metadata"]["name"] != self._name:
                        continue
                    if event.type == "DELETED":
                        raise NotReached(f"{self._namespace}/{self._name} was deleted")
                    await self._take(View.of(event.object))
            except ApiError as error:
                if error.status != 410:
                    raise

    async def _take(self, view: View) -> None:
        async with self._changed:
            self.latest = view
            self._changed.notify_all()
