"""The operator is killed before and after every single write; the end is always the same.

Each case is one run with one kill. How many writes a scenario has is found by running it undisturbed, so a
scenario that grows a write grows two cases.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from moe_operator.api.manifest import ManifestFile
from moe_operator.runtime.kube import KINDS, MOE_DEPLOYMENT, NODE

from tests.simulator.scenes import fresh_world, serving
from tests.simulator.world import World, facts, moe_deployment

NEXT = "https://models.example/next"
Scenario = Callable[[World], Awaitable[None]]


async def nothing(world: World) -> None:
    return None


async def create(world: World) -> None:
    await world.apply(moe_deployment())
    await world.until(lambda: world.stable("k3"))


async def change_revision(world: World) -> None:
    before = world.status("k3")["activeRevision"]
    await world.edit("k3", lambda spec: spec["engine"].update(image="vllm:green"))
    await world.until(lambda: world.stable("k3") and world.status("k3")["activeRevision"] != before)


async def change_the_model(world: World) -> None:
    """New files on the way in, old ones on the way out; one node's disk is full for a while."""
    before = world.status("k3")["activeRevision"]
    world.kubelet.manifests[NEXT] = facts(NEXT, "deepseek-v3.1", 600_000_000_000).model_copy(
        update={"files": [ManifestFile(path="model.safetensors", size=600_000_000_000, sha256="cd" * 32)]}
    )
    world.kubelet.stores.capacity["h20-2"] = 1
    await world.edit("k3", to_the_next_model)
    await world.until(lambda: bool(world.condition("k3", "Stalled")))
    world.kubelet.stores.capacity.clear()
    await world.until(lambda: world.stable("k3") and world.status("k3")["activeRevision"] != before)
    await world.until(lambda: all(len(s["views"]) == 1 for s in world.status("k3")["stores"]))


def to_the_next_model(spec: dict[str, Any]) -> None:
    spec["model"]["source"] = NEXT
    spec["weights"] = {"retainRevisions": 0}


async def lose_a_rank(world: World) -> None:
    victim = next(p for p in world.engine_pods() if p["metadata"]["name"].endswith("-1"))
    world.kubelet.kill(victim)
    gone = victim["metadata"]["uid"]
    await world.until(lambda: all(p["metadata"]["uid"] != gone for p in world.engine_pods()))
    await world.until(lambda: world.stable("k3"))


async def delete(world: World) -> None:
    await world.user.delete(MOE_DEPLOYMENT, "default", "k3")
    await world.until(lambda: not world.exists("k3"))


SCENARIOS: dict[str, tuple[Scenario, Scenario]] = {
    "create": (nothing, create),
    "change_revision": (serving, change_revision),
    "change_the_model": (serving, change_the_model),
    "lose_a_rank": (serving, lose_a_rank),
    "delete": (serving, delete),
}


def end_state(world: World) -> dict[str, Any]:
    """Everything that is left, without names of chance, times and counters of this run."""
    kinds = ("Pod", "Service", "ConfigMap", "Deployment", "ControllerRevision", "Job", "Role", "RoleBinding")
    left = {k.kind: world.api.list(k).items for k in KINDS if k.kind in kinds}
    names = {
        kind: sorted(o["metadata"]["name"] for o in items if not has_name_of_chance(o))
        for kind, items in left.items()
    }
    status = world.status("k3") if world.exists("k3") else {}
    return {
        "names": names,
        "pods with names of chance": Counter(
            p["metadata"]["labels"]["app.kubernetes.io/component"]
            for p in left["Pod"]
            if has_name_of_chance(p) and p["status"].get("phase") != "Failed"
        ),
        "stores": {
            node: sorted(world.kubelet.stores.disk(node).views)
            for node in sorted(n["metadata"]["name"] for n in world.api.list(NODE).items)
        },
        "active": status.get("activeRevision"),
        "target": status.get("targetRevision"),
        "phase": status.get("rollout", {}).get("phase"),
        "placement": status.get("placement"),
        "conditions": {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", ())},
        "groups": [(g["replica"], g["phase"], g.get("incarnation", 0)) for g in status.get("groups", ())],
    }


def has_name_of_chance(obj: dict[str, Any]) -> bool:
    """Whether a ReplicaSet or a Job named it."""
    return any(o["kind"] in {"ReplicaSet", "Job"} for o in obj["metadata"].get("ownerReferences") or ())


@cache
def prepared(before: Scenario) -> World:
    """The world in which scenarios of this kind begin; each run gets a copy."""

    async def prepare() -> World:
        world = await fresh_world()
        await before(world)
        return world

    return asyncio.run(prepare())


async def run(name: str, world: World, kill: str = "", at: int = -1) -> tuple[int, dict[str, Any]]:
    _, scenario = SCENARIOS[name]
    first = world.kube.writes
    if kill:
        setattr(world.kube, f"kill_{kill}", first + at)
    await scenario(world)
    await world.settle()
    assert world.kube.kill_before is None and world.kube.kill_after is None, "the kill never happened"
    return world.kube.writes - first, end_state(world)


@cache
def undisturbed(name: str) -> tuple[int, dict[str, Any]]:
    return asyncio.run(run(name, deepcopy(prepared(SCENARIOS[name][0]))))


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("kill", ["before", "after"])
def test_killed_at_any_write_it_ends_in_the_same_state(name: str, kill: str) -> None:
    writes, expected = undisturbed(name)
    assert writes > 0
    for at in range(writes):
        world = deepcopy(prepared(SCENARIOS[name][0]))
        _, seen = asyncio.run(run(name, world, kill, at))
        assert seen == expected, f"killed {kill} write {at} of {writes}"
