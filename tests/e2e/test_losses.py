"""A lost rank loses the group: it comes back whole, once, whatever way the rank went."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
from moe_operator.runtime.kube import POD

from tests.e2e.deployments import kimi_k3
from tests.e2e.world import World, settled

NAME = "kimi-k3"
Loss = Callable[[World], Awaitable[None]]


async def worker_killed(world: World) -> None:
    world.kill(await world.rank(NAME, 2), "engine")


async def worker_pod_deleted(world: World) -> None:
    await world.kube.delete(POD, world.namespace, (await world.rank(NAME, 3))["metadata"]["name"])


async def leader_pod_deleted(world: World) -> None:
    await world.kube.delete(POD, world.namespace, (await world.rank(NAME, 0))["metadata"]["name"])


async def worker_exits_with_0(world: World) -> None:
    await world.fault(await world.rank(NAME, 1), {"id": "F44", "params": {"s": 2, "code": 0}})


@pytest.mark.parametrize("loss", [worker_killed, worker_pod_deleted, leader_pod_deleted, worker_exits_with_0])
async def test_the_whole_group_comes_back_once(world: World, loss: Loss, figures: dict[str, str]) -> None:
    before = (await world.serve(kimi_k3(world.site, world.namespace))).status.groups[0]
    old = await world.uids(NAME)
    began = time.monotonic()
    await loss(world)

    async def is_new() -> bool:
        return not old & await world.uids(NAME)

    await world.poll(is_new, "every pod of the old life is gone")
    replaced = time.monotonic() - began
    view = await world.until(
        NAME, lambda v: settled(v) and v.status.groups[0].incarnation > before.incarnation, "it serves again"
    )
    whole = time.monotonic() - began
    figures[loss.__name__.replace("_", " ")] = f"old pods gone {replaced:.1f} s, serves again {whole:.1f} s"
    assert view.status.groups[0].incarnation == before.incarnation + 1
    assert len(await world.uids(NAME)) == 4
    assert (await world.answers(NAME, NAME)).status_code == 200
