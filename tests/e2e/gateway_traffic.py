"""One deployment behind its gateway, short requests and streams through it, and what became of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from e2e.scenarios.load import Load, Request, Tally
from e2e.scenarios.manifest import merge
from tests.e2e.deployments import ADMIN_PORT, deepseek
from tests.e2e.world import World, is_ready

Obj = dict[str, Any]

NAME = "deepseek-v31"
SHORT_CLIENTS, STREAMS = 40, 200
REST_SECONDS = 0.1
SHORT_TOKENS, STREAM_TOKENS = 1, 10
TOKEN_MILLISECONDS = 500  # a stream lasts for five seconds, a short request for one token
NOT_SENT = ("ConnectError", "ConnectTimeout")


def slow_tokens(world: World, *patches: Obj) -> Obj:
    """Streams last for seconds, so that something runs whenever something is lost."""
    env = {"STUB_ITL_MS": str(TOKEN_MILLISECONDS), "STUB_ADMIN_PORT": str(ADMIN_PORT)}
    obj = merge(
        deepseek(world.site, world.namespace),
        {"spec": {"engine": {"env": [{"name": name, "value": value} for name, value in env.items()]}}},
    )
    for patch in patches:
        obj = merge(obj, patch)
    return obj


async def gateways(world: World) -> list[Obj]:
    return [pod for pod in await world.pods(NAME, "gateway") if not pod["metadata"].get("deletionTimestamp")]


async def whole(world: World) -> None:
    """Wait until two gateway pods serve and nothing of others is left."""

    async def so() -> bool:
        pods = await world.pods(NAME, "gateway")
        return len(pods) == 2 and all(is_ready(pod) for pod in pods)

    await world.poll(so, "two gateway pods serve")


@dataclass
class Traffic:
    """Clients at work; none of them asks a second time for what failed."""

    short: Load
    streams: Load
    began: float = field(default_factory=time.monotonic)

    async def more(self, short: int = 300, streams: int = STREAMS) -> None:
        """Wait until so many further requests of either kind have ended."""
        wanted = ((self.short, short), (self.streams, streams))
        await asyncio.gather(*(load.reach(load.tally.sent + count) for load, count in wanted))

    def use(self, headers: Mapping[str, str]) -> None:
        """What begins from now on carries these headers."""
        for load in (self.short, self.streams):
            load.headers = dict(headers)

    async def finish(self) -> Tally:
        """Begin nothing more and let everything end."""
        tallies = await asyncio.gather(self.short.finish(), self.streams.finish())
        return Tally(tuple(request for tally in tallies for request in tally.requests))

    def figure(self, tally: Tally) -> str:
        """In words: how much there was and how much of it was lost."""
        rate = tally.sent / (time.monotonic() - self.began)
        failed, broken = tally.count("failed"), tally.count("broken")
        asked = f"{tally.sent} requests, {rate:.0f}/s, {STREAMS} streams at a time"
        return f"{asked}: {failed} failed, {broken} broken"


@asynccontextmanager
async def traffic(world: World, headers: Mapping[str, str] | None = None) -> AsyncIterator[Traffic]:
    """Keep asking while entered; whatever runs is cut when the test ends early."""
    url = await world.url(NAME)
    short_ones = Load(
        url,
        NAME,
        clients=SHORT_CLIENTS,
        max_tokens=SHORT_TOKENS,
        rest_seconds=REST_SECONDS,
        headers=headers,
    )
    long_ones = Load(url, NAME, clients=STREAMS, max_tokens=STREAM_TOKENS, headers=headers)
    async with short_ones as short, long_ones as streams:
        flow = Traffic(short, streams)
        await flow.more()
        yield flow


@dataclass(frozen=True, slots=True)
class Losses:
    """What a pod that died at a moment took with it, and what nothing can excuse."""

    cut: list[Request]  # on their way when it died
    refused: list[Request]  # sent nowhere: its address was still given out and nobody listened there
    others: list[Request]


def losses(tally: Tally, died: float, back: float) -> Losses:
    """Sort what did not complete; moments of ``time.monotonic``."""
    lost = [request for request in tally.requests if request.result != "complete"]
    cut = [request for request in lost if request.began <= died]
    refused = [each for each in lost if died < each.began <= back and each.detail.startswith(NOT_SENT)]
    return Losses(cut, refused, [each for each in lost if each not in cut and each not in refused])
