"""A group lives and dies as a whole, whatever took one of its ranks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from moe_operator.api.intent import INTENT_KEY, Intent
from moe_operator.runtime.kube import POD

from tests.simulator.world import World, Write, moe_deployment

Obj = dict[str, Any]


def revision(world: World) -> str:
    return str(world.status("k3")["activeRevision"])


def rank(world: World, number: int, replica: int = 0) -> Obj:
    name = f"k3-{revision(world)}-{replica}-{number}"
    return next(p for p in world.engine_pods() if p["metadata"]["name"] == name)


async def kill_a_worker(world: World) -> None:
    world.kubelet.kill(rank(world, 1), 137)


async def worker_ends_well(world: World) -> None:
    world.kubelet.kill(rank(world, 1), 0)


async def kill_the_leader(world: World) -> None:
    world.kubelet.kill(rank(world, 0), 137)


async def delete_a_worker(world: World) -> None:
    await world.user.delete(POD, "default", rank(world, 1)["metadata"]["name"])


async def delete_the_leader(world: World) -> None:
    await world.user.delete(POD, "default", rank(world, 0)["metadata"]["name"])


async def worker_vanishes(world: World) -> None:
    await world.user.delete(POD, "default", rank(world, 1)["metadata"]["name"], grace_seconds=0)


Loss = Callable[[World], Awaitable[None]]
LOSSES = (
    kill_a_worker,
    worker_ends_well,
    kill_the_leader,
    delete_a_worker,
    delete_the_leader,
    worker_vanishes,
)


async def recovered(world: World, lives: int = 1) -> None:
    await world.until(lambda: world.group("k3", revision(world)).get("incarnation") == lives)
    await world.until(lambda: world.stable("k3"))
    await world.settle()


@pytest.mark.parametrize("loss", LOSSES)
async def test_losing_a_rank_recreates_its_group_once_and_no_other(served: World, loss: Loss) -> None:
    await served.edit("k3", lambda s: s.update(replicas=2))
    await served.until(lambda: served.status("k3").get("readyReplicas") == 2)
    await served.settle()
    first, second = (served.pods_of("k3", revision(served), r) for r in (0, 1))
    placement = served.status("k3")["placement"]
    await loss(served)
    await recovered(served)
    for _ in range(60):
        await served.step(5.0)
    again = served.pods_of("k3", revision(served))
    assert again.keys() == first.keys() and not set(again.values()) & set(first.values())
    assert served.pods_of("k3", revision(served), 1) == second
    records = [served.group("k3", revision(served), r) for r in (0, 1)]
    assert [(r["incarnation"], r["restarts"], r["verified"]) for r in records] == [(1, 1, True), (0, 0, True)]
    assert served.status("k3")["placement"] == placement
    lives = {p["metadata"]["annotations"]["moe-operator.io/incarnation"] for p in served.engine_pods()}
    assert lives == {"0", "1"}


async def test_pods_that_have_ended_make_room_before_their_kubelets_have_cleaned_up(served: World) -> None:
    old = {pod["metadata"]["uid"] for pod in served.engine_pods()}
    served.kubelet.dead = {pod["spec"]["nodeName"] for pod in served.engine_pods()}
    await delete_a_worker(served)
    for _ in range(10):
        await served.step()
    ending = served.engine_pods()
    assert {pod["metadata"]["uid"] for pod in ending} == old
    assert all(pod["metadata"]["deletionGracePeriodSeconds"] for pod in ending)
    for count, pod in enumerate(ending, start=1):
        meta = {key: pod["metadata"][key] for key in ("name", "namespace")}
        await served.user.apply_status(
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"phase": "Succeeded"}},
            manager="kubelet",
        )
        await served.step()
        left = {pod["metadata"]["uid"] for pod in served.engine_pods()} & old
        assert len(left) == len(old) - count, "and no other is hurried"
    assert len(served.engine_pods()) == len(old)


@pytest.mark.parametrize("loss", LOSSES)
async def test_the_endpoint_leaves_the_gateway_before_a_pod_is_deleted(served: World, loss: Loss) -> None:
    leader = rank(served, 0)["metadata"]["name"]
    begin = len(served.kube.log)
    await loss(served)
    await recovered(served)
    writes = served.kube.log[begin:]
    told = next(i for i, w in enumerate(writes) if is_intent(w) and leader not in endpoints(w))
    deleted = next(i for i, w in enumerate(writes) if w.verb == "delete" and w.kind == "Pod")
    counted = next(i for i, w in enumerate(writes) if w.verb == "apply_status" and restarts(w) == 1)
    assert counted < told < deleted, "on record, then away from clients, then gone"


def is_intent(write: Write) -> bool:
    return write.kind == "ConfigMap" and INTENT_KEY in write.object.get("data", {})


def endpoints(write: Write) -> set[str]:
    intent = Intent.model_validate_json(write.object["data"][INTENT_KEY])
    return {endpoint.pod for colour in intent.colours for endpoint in colour.endpoints}


def restarts(write: Write) -> int:
    return max((int(g["restarts"]) for g in write.object["status"]["groups"]), default=0)


async def test_nothing_of_a_new_life_exists_while_a_pod_of_the_old_one_does(served: World) -> None:
    await kill_the_leader(served)
    for _ in range(60):
        await served.step()
        lives = {p["metadata"]["annotations"]["moe-operator.io/incarnation"] for p in served.engine_pods()}
        assert len(lives) <= 1
    assert lives == {"1"}


async def test_restarts_back_off_and_end(served: World) -> None:
    """The first waits 10 s, each further one twice as long; after the last the group rests and says why."""
    await served.edit("k3", lambda s: s.update(restart={"maxGroupRestarts": 3, "backoffSeconds": 10}))
    served.kubelet.crashes["vllm:blue"] = 1
    served.kubelet.last_words["vllm:blue"] = "INFO starting\nValueError: no such model\nsee above"
    await kill_the_leader(served)
    births: list[float] = []
    for _ in range(200):
        pods = {p["metadata"]["uid"] for p in served.engine_pods()}
        await served.step()
        fresh = {p["metadata"]["uid"] for p in served.engine_pods()} - pods
        births += [served.now] if fresh else []
    gaps = [round(later - earlier) for earlier, later in pairwise(births)]
    assert len(births) == 3 and gaps[0] >= 20 and gaps[1] >= 40
    record = served.group("k3", revision(served))
    assert (record["phase"], record["restarts"], record["incarnation"]) == ("Failed", 3, 3)
    stalled = served.condition("k3", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "RestartsExhausted")
    assert "ValueError: no such model" in stalled["message"]
    assert "3 restarts are used up" in stalled["message"]
    assert served.condition("k3", "Degraded")["reason"] == "RestartsExhausted"
    await served.settle()


async def test_a_group_that_rests_gets_a_new_life_when_somebody_asks(served: World) -> None:
    await served.edit("k3", lambda s: s.update(restart={"maxGroupRestarts": 0}))
    await kill_the_leader(served)
    await served.until(lambda: served.group("k3", revision(served)).get("phase") == "Failed")
    await served.settle()
    await served.annotate("k3", "moe-operator.io/retry", "now")
    await recovered(served)
    assert not served.condition("k3", "Stalled")


async def test_restarts_are_counted_inside_a_window(served: World) -> None:
    restart = {"maxGroupRestarts": 1, "windowSeconds": 120, "backoffSeconds": 0}
    await served.edit("k3", lambda s: s.update(restart=restart))
    for life in (1, 2, 3):
        await kill_a_worker(served)
        await recovered(served, life)
        await served.step(200.0)
    assert served.group("k3", revision(served))["restarts"] == 1


async def test_a_node_that_refuses_the_pod_is_not_taken_for_a_sick_engine(fresh: World) -> None:
    fresh.kubelet.rejects.add("h20-0")
    await fresh.apply(moe_deployment())
    await fresh.until(lambda: "no GPUs left" in fresh.condition("k3", "Progressing").get("message", ""))
    assert not fresh.condition("k3", "Stalled")
    fresh.kubelet.rejects.clear()
    await fresh.until(lambda: fresh.stable("k3"))


# Deleting what is in trouble


async def dead_engine(world: World) -> None:
    await kill_the_leader(world)
    await world.step()


async def dead_gateway(world: World) -> None:
    world.kubelet.gateway_boots = False
    for pod in world.gateway_pods():
        await world.user.delete(POD, "default", pod["metadata"]["name"], grace_seconds=0)


async def dead_node(world: World) -> None:
    world.kubelet.dead.add("h20-1")


async def crash_loop(world: World) -> None:
    world.kubelet.crashes["vllm:blue"] = 1
    await kill_the_leader(world)
    for _ in range(15):
        await world.step()


async def unfinished_rollout(world: World) -> None:
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await world.until(lambda: world.status("k3")["rollout"]["phase"] == "Starting")


@pytest.mark.parametrize("trouble", [dead_engine, dead_gateway, crash_loop, unfinished_rollout])
async def test_deleting_leaves_nothing(served: World, trouble: Loss) -> None:
    await trouble(served)
    await served.delete("k3")
    await served.until(lambda: not served.exists("k3"))
    for _ in range(5):
        await served.step()
    assert not served.kubelet.pods()


async def test_a_node_that_is_silent_for_ever_does_not_hold_up_a_delete(served: World) -> None:
    await dead_node(served)
    await served.delete("k3")
    began = served.now
    await served.until(lambda: not served.exists("k3"))
    assert 60 <= served.now - began <= 150, "patient, but not for ever"
    stuck = {p["spec"]["nodeName"] for p in served.engine_pods()}
    assert stuck == {"h20-1"} and all(p["metadata"]["deletionTimestamp"] for p in served.engine_pods())


async def test_a_namesake_waits_for_what_a_dead_node_still_holds_and_never_takes_it_over(
    served: World,
) -> None:
    await dead_node(served)
    await served.delete("k3")
    await served.until(lambda: not served.exists("k3"))
    [held] = served.engine_pods()
    await served.apply(moe_deployment())
    for _ in range(30):
        await served.step()
    assert held in served.engine_pods() and not served.is_ready("k3")
    assert served.condition("k3", "Progressing")["reason"] == "ApiError"
    placed = {r["node"] for p in served.status("k3")["placement"] for r in p["ranks"]}
    assert "h20-1" not in placed
    served.kubelet.dead.clear()
    await served.until(lambda: served.stable("k3"))
