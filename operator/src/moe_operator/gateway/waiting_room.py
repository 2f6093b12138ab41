"""Where requests wait while no engine can take them, instead of failing.

Envoy sends a request here when not one host of a better priority is healthy, keeps its body, and asks again
when it reads a plain 503. So holding a request is: read its body away, say nothing, and answer 503 once an
engine is healthy again; the client notices a slow answer. Who finds no place, or has waited for too long,
gets a 503 that Envoy does not repeat, with ``Retry-After``. Envoy closes the connection when the client
leaves, and with it the place is free.

Questions about this very moment (``/health``) are answered at once. The room listens on the pod's loopback;
it is not in the path of any request that an engine can take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from moe_operator.api.intent import Intent
from moe_operator.gateway.address import Address
from moe_operator.gateway.connections import accepting
from moe_operator.gateway.replies import UNAVAILABLE, error_body
from moe_operator.gateway.request_headers import RECEIVED
from moe_operator.gateway.retries import FINAL
from moe_operator.gateway.waiting_queue import Place, Rules, Verdict, WaitingQueue

MAX_HEAD_BYTES = 1 << 20  # more than the listener lets through
BACKLOG = 4096  # a burst must not look to Envoy like a room that is gone
READ_BYTES = 1 << 16
LOOK_SECONDS = 0.1  # between two looks at the engines while somebody waits
SETTLED_LOOKS = 2  # Envoy's workers learn of a healthy engine a little later than its admin interface
CALL_SECONDS = 0.006  # between two calls: longer than the jitter of the retry, so the order is kept
NEVER_HELD = frozenset({"/health"})
MESSAGES = {
    Verdict.CALLED: ("engine_returning", "An engine of this model has just come back."),
    Verdict.EXPIRED: ("no_engine_available", "No engine of this model serves right now."),
    Verdict.FULL: ("waiting_room_full", "No engine of this model serves right now and too many wait."),
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """What the room reads of a request."""

    path: str
    length: int | None  # bytes of the body; None = chunked
    received: float | None  # Unix seconds

    @classmethod
    def parse(cls, data: bytes) -> Head:
        """ValueError when Envoy would not have sent it."""
        first, *lines = data.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        _, target, _ = first.split(" ")
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        stamp = headers.get(RECEIVED)
        return cls(
            path=target.partition("?")[0],
            length=None if chunked else int(headers.get("content-length", 0)),
            received=int(stamp) / 1000 if stamp else None,
        )


class WaitingRoom:
    """The room of one pod; ``engines_ready`` says whether Envoy would send a request to an engine."""

    def __init__(self, intent: Callable[[], Intent], engines_ready: Callable[[], Awaitable[bool]]) -> None:
        self._intent = intent
        self._engines_ready = engines_ready
        self._somebody_waits = asyncio.Event()
        self._queue = WaitingQueue()

    def metrics(self) -> Iterator[Metric]:
        """Who waits now, and how those who came have left."""
        yield GaugeMetricFamily(
            "moe_gateway_held", "Requests that wait for an engine.", value=len(self._queue)
        )
        left = CounterMetricFamily(
            "moe_gateway_held_requests",
            "Requests that came to the waiting room, by how they left it.",
            labels=("verdict",),
        )
        for verdict in Verdict:
            left.add_metric((verdict.value,), self._queue.verdicts[verdict])
        yield left

    @asynccontextmanager
    async def open(self, address: Address) -> AsyncIterator[None]:
        """Hold requests while entered; leaving lets go of them. OSError when the address is taken."""

        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while await self._serve_one(reader, writer):
                    pass
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # Envoy or the client went away
            except (ValueError, asyncio.LimitOverrunError) as error:  # somebody else in the pod
                _log.warning("not a request of Envoy's", extra={"fields": {"error": str(error)}})

        start = partial(
            asyncio.start_server, host=address.host, port=address.port, limit=MAX_HEAD_BYTES, backlog=BACKLOG
        )
        async with accepting(start, connection):
            caller = asyncio.create_task(self._call())
            try:
                yield
            finally:
                caller.cancel()
                await asyncio.gather(caller, return_exceptions=True)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request of a connection; False when it was the last."""
        head = Head.parse(await reader.readuntil(b"\r\n\r\n"))
        intent = self._intent()
        hold = 0 if head.path in NEVER_HELD else intent.queue.hold_seconds
        rules = Rules(intent.queue.max_waiting, hold)
        now = time.time()
        received = now if head.received is None else head.received
        place = self._queue.enter(received, head.length or 0, rules, now)
        if isinstance(place, Verdict):
            await _discard_body(reader, head.length)
            verdict = place
        else:
            verdict = await self._wait(reader, head, place, received + hold - now)
        if verdict is Verdict.LEFT:
            return False
        writer.write(_answer(verdict, intent.retry_after_seconds))
        await writer.drain()
        return True

    async def _wait(self, reader: asyncio.StreamReader, head: Head, place: Place, seconds: float) -> Verdict:
        self._somebody_waits.set()
        gone = asyncio.create_task(_until_gone(reader, head.length))
        try:
            either: list[asyncio.Future[Any]] = [place.verdict, gone]
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            self._queue.leave(place, Verdict.LEFT if gone.done() else Verdict.EXPIRED)
            return place.verdict.result()
        finally:
            self._queue.leave(place, Verdict.LEFT)
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
                await gone

    async def _call(self) -> None:
        """Call those who wait, in order, while an engine is ready."""
        looks = 0
        while True:
            await self._somebody_waits.wait()
            looks = looks + 1 if await self._engines_ready() else 0
            if looks < SETTLED_LOOKS:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            if called := await self._call_for(LOOK_SECONDS):
                _log.info(
                    "requests called", extra={"fields": {"called": called, "waiting": len(self._queue)}}
                )
            if not len(self._queue):
                self._somebody_waits.clear()
                looks = 0

    async def _call_for(self, seconds: float) -> int:
        """Call one after the other until the engines have to be looked at again."""
        clock = asyncio.get_running_loop().time
        end, called = clock() + seconds, 0
        while clock() < end and self._queue.call_next():
            called += 1
            await asyncio.sleep(CALL_SECONDS)
        return called


async def _discard_body(reader: asyncio.StreamReader, length: int | None) -> None:
    """Read to the end of the request: Envoy asks again only for requests it has sent in full."""
    if length is None:
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            await _discard(reader, size + 2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    else:
        await _discard(reader, length)


async def _discard(reader: asyncio.StreamReader, count: int) -> None:
    while count:
        chunk = await reader.read(min(READ_BYTES, count))
        if not chunk:
            raise asyncio.IncompleteReadError(b"", count)
        count -= len(chunk)


async def _until_gone(reader: asyncio.StreamReader, length: int | None) -> None:
    """Return when nobody waits for an answer any more. Envoy sends one request at a time."""
    await _discard_body(reader, length)
    with contextlib.suppress(ConnectionError):
        await reader.read(1)


def _answer(verdict: Verdict, retry_after_seconds: int) -> bytes:
    code, message = MESSAGES[verdict]
    body = error_body(message, UNAVAILABLE, code).encode()
    final = "" if verdict is Verdict.CALLED else f"{FINAL}: true\r\n"
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        "content-type: application/json\r\n"
        f"retry-after: {retry_after_seconds}\r\n"
        f"{final}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
