"""The operator is killed before and after every single write; the end is always the same.

Each case is one run with one kill. How many writes a scenario has is found by running it undisturbed, so a
scenario that grows a write grows two cases. Up to the kill every run is the undisturbed one, so each begins
as a copy of that one's world at the last step before its write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from moe_operator.api.manifest import ManifestFile
from moe_operator.runtime.kube import KINDS, MOE_DEPLOYMENT, NODE

from tests.simulator.scenes import fresh_world, serving
from tests.simulator.world import World, facts, moe_deployment

NEXT = "https://models.example/next"
MOST_STEPS = 300


@dataclass(frozen=True)
class Act:
    """Somebody does something, and then steps are taken until all of it has come true."""

    begin: Callable[[World], Awaitable[None]]
    done: Callable[[World], bool]
    step_seconds: float = 1.0


@dataclass(frozen=True)
class Fork:
    """The undisturbed run before one of its steps."""

    world: World
    act: int
    writes: int


async def nothing(world: World) -> None:
    return None


def is_stable(world: World) -> bool:
    return world.stable("k3")


async def create(world: World) -> None:
    await world.apply(moe_deployment())


async def change_revision(world: World) -> None:
    await world.edit("k3", lambda spec: spec["engine"].update(image="vllm:green"))


def serves_green(world: World) -> bool:
    images = {p["spec"]["containers"][0]["image"] for p in world.engine_pods()}
    return is_stable(world) and images == {"vllm:green"}


async def change_the_model(world: World) -> None:
    """New files on the way in, old ones on the way out; one node's disk is full for a while."""
    world.kubelet.manifests[NEXT] = facts(NEXT, "deepseek-v3.1", 600_000_000_000).model_copy(
        update={"files": [ManifestFile(path="model.safetensors", size=600_000_000_000, sha256="cd" * 32)]}
    )
    world.kubelet.stores.capacity["h20-2"] = 1
    await world.edit("k3", to_the_next_model)


def to_the_next_model(spec: dict[str, Any]) -> None:
    spec["model"]["source"] = NEXT
    spec["weights"] = {"retainRevisions": 0}


def is_stalled(world: World) -> bool:
    return bool(world.condition("k3", "Stalled"))


async def make_room(world: World) -> None:
    world.kubelet.stores.capacity.clear()


def holds_the_next_model_only(world: World) -> bool:
    status = world.status("k3")
    wanted = [status["model"]["viewDigest"]]
    moved = status["model"]["source"] == NEXT and all(s["views"] == wanted for s in status["stores"])
    return is_stable(world) and moved


async def lose_a_rank(world: World) -> None:
    world.kubelet.kill(next(p for p in world.engine_pods() if p["metadata"]["name"].endswith("-1")))


def has_recovered(world: World) -> bool:
    [group] = world.status("k3")["groups"]
    return is_stable(world) and group.get("incarnation") == 1


async def a_disk_alters_a_file(world: World) -> None:
    """It is found when the node is read again, a week later, and fetched from the other node."""
    disk = world.kubelet.stores.disk("h20-1")
    disk.rotten |= set(disk.blobs)
    world.now += 7 * 24 * 3600.0


def is_read_and_mended(world: World) -> bool:
    disks = [world.kubelet.stores.disk(node) for node in ("h20-0", "h20-1")]
    rows = world.status("k3")["stores"]
    recorded = all("scrubbedAt" in row and "corruptAt" not in row for row in rows)
    return recorded and bool(disks[1].aside) and all(disk.blobs for disk in disks) and is_stable(world)


async def delete(world: World) -> None:
    await world.user.delete(MOE_DEPLOYMENT, "default", "k3")


def is_gone(world: World) -> bool:
    return not world.exists("k3")


Scenario = tuple[Callable[[World], Awaitable[None]], tuple[Act, ...]]
SCENARIOS: dict[str, Scenario] = {
    "create": (nothing, (Act(create, is_stable),)),
    "change_revision": (serving, (Act(change_revision, serves_green),)),
    "change_the_model": (
        serving,
        (
            Act(change_the_model, is_stalled),
            Act(make_room, lambda world: not is_stalled(world), step_seconds=10.0),
            Act(nothing, holds_the_next_model_only),
        ),
    ),
    "lose_a_rank": (serving, (Act(lose_a_rank, has_recovered),)),
    "scrub": (serving, (Act(a_disk_alters_a_file, is_read_and_mended),)),
    "delete": (serving, (Act(delete, is_gone),)),
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


async def play(world: World, acts: tuple[Act, ...], at: int = -1, forks: list[Fork] | None = None) -> None:
    """From within the act ``at`` (-1 = from before the first) to the end of the last."""
    if at < 0:
        at = 0
        await acts[at].begin(world)
    while at < len(acts):
        for _ in range(MOST_STEPS):
            if acts[at].done(world):
                break
            if forks is not None:
                forks.append(Fork(deepcopy(world), at, world.kube.writes))
            await world.step(acts[at].step_seconds)
        else:
            raise AssertionError(f"act {at} did not end in {MOST_STEPS} steps: {end_state(world)}")
        at += 1
        if at < len(acts):
            await acts[at].begin(world)
    if forks is not None:
        forks.append(Fork(deepcopy(world), at, world.kube.writes))
    await world.settle()


@cache
def prepared(before: Callable[[World], Awaitable[None]]) -> World:
    """The world in which scenarios of this kind begin; each run gets a copy."""

    async def prepare() -> World:
        world = await fresh_world()
        await before(world)
        return world

    return asyncio.run(prepare())


@cache
def undisturbed(name: str) -> tuple[tuple[Fork, ...], int, dict[str, Any]]:
    """The run without a kill: the world before each step, the number of writes by its end, and the end."""
    before, acts = SCENARIOS[name]
    world, forks = deepcopy(prepared(before)), list[Fork]()
    asyncio.run(play(world, acts, forks=forks))
    return tuple(forks), world.kube.writes, end_state(world)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("kill", ["before", "after"])
def test_killed_at_any_write_it_ends_in_the_same_state(name: str, kill: str) -> None:
    forks, end, expected = undisturbed(name)
    begin = forks[0].writes
    assert end > begin
    for at in range(begin, end):
        fork = next(f for f in reversed(forks) if f.writes <= at)
        world = deepcopy(fork.world)
        setattr(world.kube, f"kill_{kill}", at)
        asyncio.run(play(world, SCENARIOS[name][1], fork.act))
        assert world.kube.kill_before is None and world.kube.kill_after is None, "the kill never happened"
        assert end_state(world) == expected, f"killed {kill} write {at - begin} of {end - begin}"
