from __future__ import annotations

import json

import pytest
from moe_operator.runtime.execute import Outcome
from moe_operator.runtime.wakeups import Key

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


class Compared(World):
    """Here the operator reads the API's own objects, not copies: it may not change any of them in place."""

    async def reconcile(self, key: Key) -> Outcome | None:
        read = [(s, json.dumps(s.obj)) for t in self.api.store.tables.values() for s in t.everything()]
        outcome = await super().reconcile(key)
        assert all(json.dumps(stored.obj) == text for stored, text in read)
        return outcome


async def test_the_operator_changes_nothing_of_what_it_reads() -> None:
    world = await Compared().build()
    world.kubelet.manifests[DSV31] = facts(DSV31, "deepseek-v3.1", 688_000_000_000)
    await world.apply(moe_deployment())
    await world.until(lambda: world.stable("k3"))
    before = world.status("k3")["activeRevision"]
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await world.until(lambda: world.stable("k3") and world.status("k3")["activeRevision"] != before)
    world.kubelet.kill(world.engine_pods()[1])
    await world.until(lambda: world.status("k3")["groups"][0].get("incarnation") == 1)
    await world.until(lambda: world.stable("k3"))
    await world.delete("k3")
    await world.until(lambda: not world.exists("k3"))
