from __future__ import annotations

import pytest

from tests.simulator.world import World, facts, moe_deployment

DSV31 = "https://models.example/dsv31"


@pytest.fixture
async def world() -> World:
    world = await World().build()
    world.kubelet.manifests[DSV31] = facts(DSV31, "deepseek-v3.1", 688_000_000_000)
    return world


async def test_a_deployment_comes_up_on_the_nodes_its_status_says(world: World) -> None:
    await world.apply(moe_deployment())
    await world.until(lambda: world.stable("k3"))
    status = world.status("k3")
    placed = {r["rank"]: r["node"] for r in status["placement"][0]["ranks"]}
    bound = {
        int(p["metadata"]["labels"]["moe-operator.io/rank"]): p["spec"]["nodeName"]
        for p in world.engine_pods()
    }
    assert bound == placed
    assert len(set(bound.values())) == 2


async def test_a_converged_deployment_costs_no_writes(world: World) -> None:
    await world.apply(moe_deployment())
    await world.until(lambda: world.stable("k3"))
    await world.settle()
    before = world.kube.writes
    for _ in range(10):
        await world.step(60.0)
    assert world.kube.writes == before
