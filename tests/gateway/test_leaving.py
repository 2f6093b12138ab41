"""What still runs on an engine can be seen until it ends, whichever way the engine is led out."""

from __future__ import annotations

import asyncio

import pytest
from moe_operator.api.intent import Colour, Intent

from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.engine_double import EngineDouble
from tests.gateway.pod import colour, intent, until


def by_weight(blue: EngineDouble, green: EngineDouble) -> Intent:
    return intent(2, colour("b", 0, blue.address), colour("g", 100, green.address))


def by_mark(blue: EngineDouble, green: EngineDouble) -> Intent:
    both = colour("b", 100, green.address, blue.address)
    stays, leaves = both.endpoints
    return intent(
        2, Colour(revision="b", weight=100, endpoints=[stays, leaves.model_copy(update={"leaving": True})])
    )


@pytest.mark.parametrize("led_out", [by_weight, by_mark])
async def test_running_streams_are_counted_and_new_ones_go_elsewhere(
    engine: StartEngine, serving: StartPod, led_out: object
) -> None:
    blue, green = await engine("blue"), await engine("green")
    blue.hold = asyncio.Event()
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)
    streams = [asyncio.create_task(pod.client().chat(stream=True)) for _ in range(3)]

    async def streams_run() -> bool:
        return blue.active == 3

    await until(streams_run)
    pod.api.put(led_out(blue, green))  # type: ignore[operator]

    async def green_is_healthy() -> bool:
        return any(h.address == green.address and h.healthy for h in (await pod.ack(2)).hosts)

    await until(green_is_healthy)

    async def running() -> int:
        return next(h.active_requests for h in (await pod.ack(2)).hosts if h.address == blue.address)

    assert await running() == 3
    client = pod.client()
    assert {(await client.chat()).json["model"] for _ in range(20)} == {"green"}

    blue.hold.set()
    assert all(answer.complete for answer in await asyncio.gather(*streams))

    async def nothing_runs() -> bool:
        return await running() == 0

    await until(nothing_runs)
