from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from moe_operator.api.intent import Intent

from tests.gateway.api_double import ApiDouble
from tests.gateway.engine_double import EngineDouble
from tests.gateway.pod import Pod, loopback, until

StartEngine = Callable[[str], Awaitable[EngineDouble]]
StartPod = Callable[..., Awaitable[Pod]]


@pytest.fixture
async def engine() -> AsyncIterator[StartEngine]:
    """Start an engine double of a given name."""
    started: list[EngineDouble] = []

    async def start(name: str) -> EngineDouble:
        started.append(await EngineDouble(name, loopback()).start())
        return started[-1]

    yield start
    for double in started:
        await double.kill()


@pytest.fixture
async def api() -> AsyncIterator[ApiDouble]:
    double = await ApiDouble(loopback()).start()
    yield double
    await double.stop()


@pytest.fixture
async def pod(tmp_path: Path, api: ApiDouble) -> AsyncIterator[Pod]:
    """A gateway pod that is not started yet."""
    made = Pod(tmp_path, loopback(), api)
    yield made
    await made.stop()


@pytest.fixture
def serving(pod: Pod) -> StartPod:
    """Start the pod with an intent and wait until it is ready."""

    async def start(first: Intent) -> Pod:
        pod.prepare(first)
        pod.api.put(first)
        await pod.start()
        await until(pod.ready)
        return pod

    return start
