"""Answers that do not end by themselves: watches and followed logs.

Each ends in good order when its time is up, when the server closes, or when the client goes away.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from aiohttp import web

from moe_operator.runtime.kube import ApiError, Obj, WatchEvent
from moe_operator.sandbox.api_errors import UNKNOWN
from moe_operator.sandbox.api_store import Watch


@dataclass(slots=True)
class Streams:
    """All open streams of a server."""

    _watches: set[Watch] = field(default_factory=set)
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    def close(self) -> None:
        """Let every stream end after what it has already sent."""
        self._closing.set()
        for watch in self._watches:
            watch.close()

    def bookmark(self) -> None:
        """Send the current resourceVersion to every watcher that asked for bookmarks."""
        for watch in self._watches:
            watch.bookmark()

    async def send_watch(
        self,
        request: web.Request,
        watch: Watch,
        shown: Callable[[Obj], Obj],
        *,
        seconds: float | None,
        bookmarks: bool,
    ) -> web.StreamResponse:
        """Events as lines of JSON until ``seconds`` have passed."""
        response = await _opened(request, "application/json")
        self._watches.add(watch)
        if self._closing.is_set():
            watch.close()
        try:
            async with aclosing(watch.events()) as events:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._pump(response, events, shown, bookmarks)
        except ApiError as error:
            await response.write(_line("ERROR", status_of(error)))
        finally:
            self._watches.discard(watch)
        await response.write_eof()
        return response

    async def _pump(
        self,
        response: web.StreamResponse,
        events: AsyncIterator[WatchEvent],
        shown: Callable[[Obj], Obj],
        bookmarks: bool,
    ) -> None:
        async for event in events:
            if event.type != "BOOKMARK":
                await response.write(_line(event.type, shown(event.object)))
            elif bookmarks:
                await response.write(_line(event.type, event.object))

    async def _closed(self) -> bool:
        return await self._closing.wait()

    async def send_log(self, request: web.Request, chunks: AsyncGenerator[bytes, None]) -> web.StreamResponse:
        """A log as it comes."""
        response = await _opened(request, "text/plain")
        closing = asyncio.create_task(self._closed())
        try:
            while chunk := await _next_or(closing, chunks):
                await response.write(chunk)
        finally:
            closing.cancel()
            await chunks.aclose()
        await response.write_eof()
        return response


async def _next_or(closing: asyncio.Task[bool], chunks: AsyncIterator[bytes]) -> bytes:
    """The next chunk; empty when there is none or the server closes."""
    step = asyncio.create_task(_next(chunks))
    try:
        await asyncio.wait((step, closing), return_when=asyncio.FIRST_COMPLETED)
        if step.done():
            return step.result()
    finally:
        step.cancel()
    with suppress(asyncio.CancelledError):
        await step
    return b""


async def _next(chunks: AsyncIterator[bytes]) -> bytes:
    return await anext(chunks, b"")


async def _opened(request: web.Request, content_type: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": content_type})
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


def _line(type_: str, obj: Obj) -> bytes:
    return json.dumps({"type": type_, "object": obj}, separators=(",", ":")).encode() + b"\n"


def status_of(error: ApiError) -> Obj:
    """The Status object of a refusal."""
    reason = {} if error.reason == UNKNOWN else {"reason": error.reason}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        **reason,
        "code": error.status,
    }
