"""The controllers a cluster has and the operator relies on, as one level-triggered step.

A step lists, decides and writes; nothing is remembered between steps, so it may be driven by watches
(:func:`run`) or by a simulation's clock. Namespaces, garbage and Service addresses are the API server's
own business here (``sandbox.api_server``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from moe_operator.runtime.kube import (
    DEPLOYMENT,
    JOB,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    REPLICA_SET,
    ApiError,
    Kind,
    Kube,
)
from moe_operator.sandbox import deployments, jobs, replica_sets, scheduler
from moe_operator.sandbox.api import MemoryKube

WATCHED = (DEPLOYMENT, REPLICA_SET, JOB, POD, NODE, PERSISTENT_VOLUME_CLAIM)
TICK_SECONDS = 1.0  # deadlines and back-offs pass without any object changing


async def step(kube: MemoryKube, now: float) -> None:
    """Every controller once, owners before what they own; ``now`` is epoch seconds."""
    kube = kube.sharing()
    await deployments.step(kube, now)
    await replica_sets.step(kube, now)
    await jobs.step(kube, now)
    await scheduler.step(kube, kube.api.bind, now)


async def run(kube: MemoryKube, clock: Callable[[], float]) -> None:
    """Step whenever something changed, and once a second."""
    changed = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(notice(kube, WATCHED, changed))
        while True:
            await step(kube, clock())
            await changed_or_tick(changed, TICK_SECONDS)


async def changed_or_tick(changed: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so long; cleared either way."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return
    finally:
        changed.clear()


async def notice(kube: Kube, kinds: Iterable[Kind], changed: asyncio.Event) -> None:
    """Set ``changed`` at every change of the kinds; never returns."""
    async with asyncio.TaskGroup() as tasks:
        for kind in kinds:
            tasks.create_task(_follow(kube, kind, changed))


async def _follow(kube: Kube, kind: Kind, changed: asyncio.Event) -> None:
    while True:
        try:
            async for _ in kube.watch(kind):
                changed.set()
        except ApiError as error:
            if error.status != 410:
                raise
        changed.set()
        await asyncio.sleep(0)
