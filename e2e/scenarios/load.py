"""Clients that stream completions without a pause, and what became of every single request.

A request *failed* when it got no stream: no connection, no answer, or a status other than 200. A stream
*broke* when it ended without ``[DONE]``, with an error chunk or with ``finish_reason: "abort"``. Nothing is
tried again: a retry would hide what is to be counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import httpx

from .sse import Payloads, Stream

REVISION_HEADER = "x-moe-revision"
PATIENCE_SECONDS = 60.0  # between two pieces of an answer

Result = Literal["complete", "failed", "broken"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request from its first byte to its last; times are seconds of ``time.monotonic``."""

    result: Result
    began: float
    ended: float
    first_token: float | None = None
    tokens: int = 0
    revision: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of many requests."""

    requests: tuple[Request, ...]

    def count(self, result: Result) -> int:
        """Requests that ended so."""
        return sum(request.result == result for request in self.requests)

    @property
    def sent(self) -> int:
        """All of them."""
        return len(self.requests)

    def by_revision(self) -> dict[str, int]:
        """Complete answers of each revision."""
        return dict(Counter(r.revision for r in self.requests if r.result == "complete"))

    def across(self, moment: float) -> int:
        """Complete answers that had begun before ``moment`` and ended after it."""
        return sum(r.result == "complete" and r.began < moment < r.ended for r in self.requests)

    def first_token(self, share: float) -> float:
        """Seconds to the first token that ``share`` (0 to 1) of the complete answers kept; 0 without any."""
        times = sorted(r.first_token - r.began for r in self.requests if r.first_token is not None)
        return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0

    def complaints(self) -> list[str]:
        """Every kind of failure with its number, the most frequent first."""
        details = Counter(f"{r.result}: {r.detail}" for r in self.requests if r.result != "complete")
        return [f"{count} × {detail}" for detail, count in details.most_common()]


class Load:
    """``clients`` at work from entering to :meth:`finish`; leaving early cuts their streams.

    Each rests ``rest_seconds`` between two requests. ``headers`` go with every request that begins and may be
    changed meanwhile.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        clients: int,
        max_tokens: int,
        rest_seconds: float = 0.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._clients = clients
        self._max_tokens = max_tokens
        self._rest_seconds = rest_seconds
        self.headers = dict(headers or {})
        self._stopping = False
        self._ended = asyncio.Condition()
        self._requests: list[Request] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._http = httpx.AsyncClient(
            timeout=PATIENCE_SECONDS,
            limits=httpx.Limits(max_connections=clients, max_keepalive_connections=clients),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self._clients)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    @property
    def tally(self) -> Tally:
        """What has ended so far."""
        return Tally(tuple(self._requests))

    async def reach(self, count: int) -> None:
        """Wait until so many requests have ended, well or not."""
        waiting = asyncio.create_task(self._reach(count))
        try:
            ended, _ = await asyncio.wait({waiting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(*ended)  # a client ends early only by a defect of its own
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def finish(self) -> Tally:
        """Send no more, let every running stream end, and say what became of all."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        return self.tally

    async def _reach(self, count: int) -> None:
        async with self._ended:
            await self._ended.wait_for(lambda: len(self._requests) >= count)

    async def _client(self, number: int) -> None:
        turn = 0
        while not self._stopping:
            turn += 1
            request = await self._ask(f"client {number}, question {turn}")
            async with self._ended:
                self._requests.append(request)
                self._ended.notify_all()
            if self._rest_seconds:
                await asyncio.sleep(self._rest_seconds)

    async def _ask(self, question: str) -> Request:
        began = time.monotonic()
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": self._max_tokens,
            "ignore_eos": True,  # every answer is as long as it may be
            "stream": True,
        }
        try:
            async with self._http.stream("POST", self._url, json=body, headers=self.headers) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    detail = f"HTTP {response.status_code} {text[:200]}"
                    return Request("failed", began, time.monotonic(), detail=detail)
                return await _read(response, began)
        except httpx.HTTPError as error:
            return Request("failed", began, time.monotonic(), detail=_said(error))


async def _read(response: httpx.Response, began: float) -> Request:
    payloads, stream, first, cut = Payloads(), Stream(), None, ""
    try:
        async for data in response.aiter_bytes():
            for payload in payloads.feed(data):
                stream.take(payload)
            if first is None and stream.tokens:
                first = time.monotonic()
    except httpx.HTTPError as error:
        cut = f"{_said(error)} after {stream.tokens} tokens"
    broken = stream.broken if stream.done else cut or stream.broken
    return Request(
        "broken" if broken else "complete",
        began,
        time.monotonic(),
        first,
        stream.tokens,
        response.headers.get(REVISION_HEADER, ""),
        broken,
    )


def _said(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
