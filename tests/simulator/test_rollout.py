"""One revision follows another: beside it, by way of the gateways, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from moe_operator.runtime.kube import POD

from tests.simulator.scenes import DSV31, serving_world
from tests.simulator.world import World, facts, moe_deployment

Obj = dict[str, Any]
ONE_TRY = {"maxGroupRestarts": 0}


def image(name: str) -> Callable[[Obj], None]:
    return lambda spec: spec["engine"].update(image=name)


def active(world: World) -> str:
    return str(world.status("k3").get("activeRevision", ""))


def target(world: World) -> str:
    return str(world.status("k3").get("targetRevision", ""))


def phase(world: World) -> str:
    return str(world.status("k3").get("rollout", {}).get("phase", ""))


def moved_to_another(world: World, before: str) -> Callable[[], bool]:
    return lambda: world.stable("k3") and active(world) != before


def clients_reach_only_living_engines(world: World) -> None:
    """No gateway sends to a pod that is on its way out."""
    alive = {p["metadata"]["name"] for p in world.engine_pods() if not p["metadata"].get("deletionTimestamp")}
    for gateway in world.gateway_pods():
        assert world.probes.routed(gateway) <= alive


async def test_a_new_revision_starts_beside_the_old_one_and_takes_over(served: World) -> None:
    old = active(served)
    before = served.pods_of("k3", old)
    await served.edit("k3", image("vllm:green"))
    seen: list[str] = []
    for _ in range(60):
        await served.step()
        seen += [phase(served)] if seen[-1:] != [phase(served)] else []
        assert served.is_ready("k3"), "Ready is about serving: it stays True in a healthy rollout"
        clients_reach_only_living_engines(served)
        if moved_to_another(served, old)():
            break
    in_order = ("Staging", "Starting", "Shifting", "Draining", "Stable")
    assert seen[0] in {"Preflight", "Staging"} and seen[-1] == "Stable"
    assert [p for p in in_order if p in seen] == [p for p in seen if p in in_order]
    await served.settle()
    new = active(served)
    assert not served.pods_of("k3", old) and len(served.pods_of("k3", new)) == 2
    assert not set(before.values()) & set(served.pods_of("k3", new).values())
    entry = served.status("k3")["history"][0]
    assert (entry["revision"], entry["from"], entry["result"]) == (new, old, "Succeeded")
    assert [p["revision"] for p in served.status("k3")["placement"]] == [new]


async def test_the_new_revision_takes_over_only_when_every_gateway_has_acknowledged(served: World) -> None:
    old = active(served)
    lagging = served.gateway_pods()[0]["metadata"]["name"]
    served.probes.deaf.add(lagging)
    await served.edit("k3", image("vllm:green"))
    await served.until(lambda: phase(served) == "Shifting")
    for _ in range(30):
        await served.step()
        assert (active(served), phase(served)) == (old, "Shifting")
        assert len(served.pods_of("k3", old)) == 2
    served.probes.deaf.clear()
    await served.until(moved_to_another(served, old))


async def test_the_old_revision_stays_until_its_last_request_has_ended(served: World) -> None:
    old = active(served)
    leader = f"k3-{old}-0-0"
    served.probes.running[leader] = 1
    await served.edit("k3", image("vllm:green"))
    await served.until(lambda: active(served) != old)
    for _ in range(30):
        await served.step()
        assert phase(served) == "Draining" and len(served.pods_of("k3", old)) == 2
    served.probes.running.clear()
    await served.until(lambda: world_has_no(served, old) and served.stable("k3"))


def world_has_no(world: World, revision: str) -> bool:
    return not world.pods_of("k3", revision)


async def test_a_drain_ends_when_its_time_is_over(served: World) -> None:
    old = active(served)
    served.probes.running[f"k3-{old}-0-0"] = 1
    await served.edit("k3", lambda s: (image("vllm:green")(s), s.update(rollout={"drainSeconds": 60})))
    await served.until(lambda: active(served) != old)
    began = served.now
    await served.until(lambda: world_has_no(served, old))
    assert 60 <= served.now - began <= 100


async def test_without_room_nothing_changes_and_the_missing_gpus_are_counted() -> None:
    world = await serving_world("h20-2x8")
    old, pods = active(world), world.engine_pods()
    await world.edit("k3", image("vllm:green"))
    await world.until(lambda: world.condition("k3", "CapacityForRollout").get("status") == "False")
    condition = world.condition("k3", "CapacityForRollout")
    assert condition["reason"] == "InsufficientCapacityForRollout"
    assert "needs 16 GPUs beside the one that serves, 16 of them are missing" in condition["message"]
    await world.settle()
    uids = [[p["metadata"]["uid"] for p in found] for found in (pods, world.engine_pods())]
    assert uids[0] == uids[1]
    assert (active(world), world.is_ready("k3"), phase(world)) == (old, True, "Preflight")


async def test_the_missing_gpus_of_all_replicas_are_counted() -> None:
    world = await serving_world("h20-8x8", replicas=3)
    await world.edit("k3", image("vllm:green"))
    await world.until(lambda: world.condition("k3", "CapacityForRollout").get("status") == "False")
    said = world.condition("k3", "CapacityForRollout")["message"]
    assert "needs 48 GPUs beside the one that serves, 32 of them are missing" in said


async def test_streams_of_gateways_on_their_way_out_keep_the_old_revision_too(served: World) -> None:
    """A longer drain rolls the gateways as well: the old ones end their streams to the old engines."""
    old = active(served)
    leader = f"k3-{old}-0-0"
    gateways = [name(p) for p in served.gateway_pods()]
    served.kubelet.lingering.update(gateways)
    served.probes.streams.update((gateway, leader) for gateway in gateways)
    await served.edit("k3", lambda s: (image("vllm:green")(s), s.update(rollout={"drainSeconds": 900})))
    await served.until(lambda: active(served) != old)
    await served.until(
        lambda: all(p["metadata"].get("deletionTimestamp") for p in old_gateways(served, gateways))
    )
    for _ in range(60):
        await served.step()
        assert len(served.pods_of("k3", old)) == 2 and len(old_gateways(served, gateways)) == 2
    served.probes.streams.clear()
    served.kubelet.lingering.clear()
    await served.until(lambda: world_has_no(served, old) and served.stable("k3"))


def old_gateways(world: World, names: list[str]) -> list[Obj]:
    return [p for p in world.gateway_pods() if name(p) in names]


async def test_a_rollout_that_waits_for_room_goes_on_when_there_is_some() -> None:
    world = await serving_world("h20-4x8")
    world.kubelet.manifests[DSV31] = facts(DSV31, "deepseek-v3.1", 688_000_000_000)
    await world.apply(moe_deployment("other"))
    await world.until(lambda: world.stable("other"))
    old = active(world)
    await world.edit("k3", image("vllm:green"))
    await world.until(lambda: phase(world) == "Preflight")
    await world.settle()
    await world.delete("other")
    await world.until(moved_to_another(world, old))


BROKEN: dict[str, Callable[[World], None]] = {
    "crashes": lambda w: w.kubelet.crashes.update({"vllm:green": 1}),
    "exits with 0": lambda w: w.kubelet.crashes.update({"vllm:green": 0}),
    "serves another model": lambda w: w.kubelet.wrong_models.update({"vllm:green": "gpt2"}),
    "never answers a completion": lambda w: w.kubelet.mute.add("vllm:green"),
}
WORDS = {
    "crashes": "exit code 1",
    "exits with 0": "exit code 0",
    "serves another model": "serves gpt2 instead of k3",
    "never answers a completion": "no completion within 600 s",
}


@pytest.mark.parametrize("way", BROKEN)
async def test_a_target_that_fails_leaves_the_old_revision_as_it_was(served: World, way: str) -> None:
    old = active(served)
    before = served.pods_of("k3", old)
    BROKEN[way](served)
    await served.edit("k3", lambda s: (image("vllm:green")(s), s.update(restart=ONE_TRY)))
    await served.until(lambda: phase(served) == "Failed", seconds=5.0)
    await served.settle()
    assert served.pods_of("k3", old) == before
    assert served.is_ready("k3") and active(served) == old
    stalled = served.condition("k3", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "RevisionFailed")
    assert WORDS[way] in stalled["message"] and f"revision {old} keeps serving" in stalled["message"]
    assert served.status("k3")["history"][0]["result"] == "Failed"
    assert [p["revision"] for p in served.status("k3")["placement"]] == [old]
    assert not [p for p in served.engine_pods() if p["status"]["phase"] == "Running" and old not in name(p)]


def name(pod: Obj) -> str:
    return str(pod["metadata"]["name"])


async def test_the_gpus_of_a_failed_target_are_free_for_others(served: World) -> None:
    served.kubelet.crashes["vllm:green"] = 1
    await served.edit("k3", lambda s: (image("vllm:green")(s), s.update(restart=ONE_TRY)))
    await served.until(lambda: phase(served) == "Failed")
    await served.apply(moe_deployment("other"))
    await served.until(lambda: served.stable("other"))


async def test_a_crashing_target_is_tried_again_within_its_budget_before_it_fails(served: World) -> None:
    served.kubelet.crashes["vllm:green"] = 1
    restart = {"maxGroupRestarts": 2, "backoffSeconds": 1}
    await served.edit("k3", lambda s: (image("vllm:green")(s), s.update(restart=restart)))
    await served.until(lambda: phase(served) == "Failed")
    record = served.group("k3", target(served))
    assert (record["incarnation"], record["restarts"]) == (2, 2)
    assert "2 restarts are used up" in served.status("k3")["rollout"]["message"]


async def test_a_failed_target_gets_another_try_when_somebody_asks(served: World) -> None:
    old = active(served)
    served.kubelet.crashes["vllm:green"] = 1
    await served.edit("k3", lambda s: (image("vllm:green")(s), s.update(restart=ONE_TRY)))
    await served.until(lambda: phase(served) == "Failed")
    await served.settle()
    served.kubelet.crashes.clear()
    await served.annotate("k3", "moe-operator.io/retry", "1")
    await served.until(moved_to_another(served, old))
    assert served.status("k3")["rollout"]["lastCommand"] == "retry=1"


async def test_the_same_retry_is_not_acted_on_twice(served: World) -> None:
    served.kubelet.crashes["vllm:green"] = 1
    await served.edit("k3", lambda s: (image("vllm:green")(s), s.update(restart=ONE_TRY)))
    await served.until(lambda: phase(served) == "Failed")
    await served.annotate("k3", "moe-operator.io/retry", "1")
    await served.until(lambda: phase(served) != "Failed")
    await served.until(lambda: phase(served) == "Failed")
    await served.settle()
    for _ in range(20):
        await served.step()
        assert phase(served) == "Failed"


async def test_a_failed_target_is_cleared_away_when_the_spec_goes_back(served: World) -> None:
    old = active(served)
    before = served.pods_of("k3", old)
    served.kubelet.crashes["vllm:green"] = 1
    await served.edit("k3", lambda s: (image("vllm:green")(s), s.update(restart=ONE_TRY)))
    await served.until(lambda: phase(served) == "Failed")
    await served.edit("k3", image("vllm:blue"))
    await served.until(lambda: served.stable("k3"))
    await served.settle()
    assert target(served) == active(served) == old
    assert {name(p): p["metadata"]["uid"] for p in served.engine_pods()} == before


@pytest.mark.parametrize("moment", ["Starting", "Shifting"])
async def test_going_back_during_a_rollout_ends_it(served: World, moment: str) -> None:
    old = active(served)
    before = served.pods_of("k3", old)
    if moment == "Shifting":
        served.probes.deaf.add(name(served.gateway_pods()[0]))
    await served.edit("k3", image("vllm:green"))
    await served.until(lambda: phase(served) == moment)
    green = target(served)
    await served.edit("k3", image("vllm:blue"))
    served.probes.deaf.clear()
    await served.until(lambda: served.stable("k3"))
    await served.settle()
    assert active(served) == old and served.pods_of("k3", old) == before
    assert world_has_no(served, green)
    entry = served.status("k3")["history"][0]
    assert (entry["revision"], entry["from"], entry["result"]) == (green, old, "Superseded")


async def test_a_third_spec_during_a_rollout_supersedes_the_second(served: World) -> None:
    old = active(served)
    await served.edit("k3", image("vllm:green"))
    await served.until(lambda: phase(served) == "Starting")
    green = target(served)
    await served.edit("k3", image("vllm:red"))
    await served.until(moved_to_another(served, old))
    await served.settle()
    assert active(served) not in {old, green}
    assert world_has_no(served, green) and world_has_no(served, old)
    results = [(e["revision"], e["result"]) for e in served.status("k3")["history"]]
    assert results == [(active(served), "Succeeded"), (green, "Superseded")]


async def test_a_rollout_waits_while_there_is_no_gateway(served: World) -> None:
    old = active(served)
    await served.edit("k3", image("vllm:green"))
    await served.until(lambda: phase(served) == "Starting")
    served.kubelet.gateway_boots = False
    for pod in served.gateway_pods():
        await served.user.delete(POD, "default", name(pod))
    for _ in range(30):
        await served.step()
        assert active(served) == old and len(served.pods_of("k3", old)) == 2
    assert phase(served) == "Shifting"
    assert served.condition("k3", "Available")["status"] == "False"
    served.kubelet.gateway_boots = True
    await served.until(moved_to_another(served, old))


async def test_more_replicas_come_and_go_without_touching_the_first(served: World) -> None:
    first = served.pods_of("k3", active(served))
    await served.edit("k3", lambda s: s.update(replicas=2))
    await served.until(lambda: served.status("k3").get("readyReplicas") == 2)
    await served.settle()
    assert served.pods_of("k3", active(served)) == first
    await served.edit("k3", lambda s: s.update(replicas=1))
    await served.until(lambda: len(served.engine_pods("k3")) == 2)
    await served.settle()
    assert served.pods_of("k3", active(served)) == first
    assert [p["replica"] for p in served.status("k3")["placement"]] == [0]


async def test_a_group_leaves_only_after_every_gateway_has_stopped_sending_to_it(served: World) -> None:
    await served.edit("k3", lambda s: s.update(replicas=2))
    await served.until(lambda: served.status("k3").get("readyReplicas") == 2)
    await served.settle()
    second = served.pods_of("k3", active(served), 1)
    lagging = served.gateway_pods()[0]
    served.probes.deaf.add(name(lagging))
    await served.edit("k3", lambda s: s.update(replicas=1))
    for _ in range(60):
        await served.step()
        assert served.pods_of("k3", active(served), 1) == second
        assert served.probes.routed(lagging) & second.keys(), "the lagging gateway still sends there"
    served.probes.deaf.clear()
    while served.pods_of("k3", active(served), 1):
        await served.step()
        clients_reach_only_living_engines(served)


async def test_a_group_that_is_wanted_again_while_it_drains_stays_and_may_drain_in_full_later(
    served: World,
) -> None:
    await served.edit("k3", lambda s: s.update(replicas=2))
    await served.until(lambda: served.status("k3").get("readyReplicas") == 2)
    second = served.pods_of("k3", active(served), 1)
    served.probes.running[f"k3-{active(served)}-1-0"] = 1
    await served.edit("k3", lambda s: s.update(replicas=1, rollout={"drainSeconds": 300}))
    await served.until(lambda: served.group("k3", active(served), 1).get("phase") == "Draining")
    for _ in range(200):
        await served.step()
    await served.edit("k3", lambda s: s.update(replicas=2))
    await served.until(lambda: served.status("k3").get("readyReplicas") == 2)
    await served.settle()
    await served.edit("k3", lambda s: s.update(replicas=1))
    for _ in range(200):
        await served.step()
        assert served.pods_of("k3", active(served), 1) == second


async def test_no_replicas_are_a_state_to_rest_in(served: World) -> None:
    await served.edit("k3", lambda s: s.update(replicas=0))
    await served.until(lambda: not served.engine_pods("k3"))
    await served.settle()
    assert served.condition("k3", "Ready")["reason"] == "ScaledToZero"
    assert not served.condition("k3", "Reconciling")
    blue, stores = active(served), served.status("k3")["stores"]
    await served.edit("k3", image("vllm:green"))
    await served.until(lambda: served.stable("k3"))
    await served.settle()
    change = served.status("k3")["history"][0]
    assert (change["from"], change["revision"], change["result"]) == (blue, active(served), "Succeeded")
    assert served.status("k3")["stores"] == stores, "the way back is kept on the disks"
    await served.edit("k3", lambda s: s.update(replicas=1))
    await served.until(lambda: served.status("k3").get("readyReplicas") == 1 and served.stable("k3"))
    assert {p["spec"]["containers"][0]["image"] for p in served.engine_pods("k3")} == {"vllm:green"}


async def test_a_deployment_may_begin_with_no_replicas(fresh: World) -> None:
    await fresh.apply(moe_deployment(replicas=0))
    await fresh.until(lambda: fresh.condition("k3", "Ready").get("reason") == "ScaledToZero")
    await fresh.settle()
    assert not fresh.condition("k3", "Reconciling") and phase(fresh) == "Stable"
    await fresh.edit("k3", lambda s: s.update(replicas=1))
    await fresh.until(lambda: fresh.stable("k3") and fresh.status("k3").get("readyReplicas") == 1)


REFUSED: dict[str, Callable[[Obj], Any]] = {
    "a layout that cannot be": lambda s: s.update(parallelism={"tensor": 3}),
    "a contradicting argument": lambda s: s["engine"].update(args=["--tensor-parallel-size", "4"]),
    "a field of a later version": lambda s: s.update(schedule=[{"cron": "0 0 * * *", "replicas": 1}]),
    "a source that does not answer": lambda s: s["model"].update(source="https://nowhere.example/x"),
}


@pytest.mark.parametrize("edit", REFUSED)
async def test_an_edit_that_cannot_work_touches_nothing_that_serves(served: World, edit: str) -> None:
    """Half a spec is never honoured: the fewer replicas and the other name that came with it neither."""
    await served.edit("k3", lambda s: s.update(replicas=2))
    await served.until(lambda: served.status("k3").get("readyReplicas") == 2)
    await served.settle()
    pods = {name(p): p["metadata"]["uid"] for p in served.engine_pods()}
    intents = [served.probes.applied[g["metadata"]["uid"]] for g in served.gateway_pods()]
    await served.edit(
        "k3", lambda s: (REFUSED[edit](s), s.update(replicas=1), s["model"].update(name="another"))
    )
    for _ in range(90):
        await served.step()
        assert served.is_ready("k3")
    assert {name(p): p["metadata"]["uid"] for p in served.engine_pods()} == pods
    assert [served.probes.applied[g["metadata"]["uid"]] for g in served.gateway_pods()] == intents
    if "answer" not in edit:
        stalled = served.condition("k3", "Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "EditRefused")
    accepted = served.condition("k3", "PlanAccepted")
    assert accepted["status"] != "True" and accepted["message"]


async def test_the_name_of_the_model_changes_with_the_revision_that_serves_it(served: World) -> None:
    old = active(served)
    await served.edit("k3", lambda s: s["model"].update(name="another"))
    while active(served) == old:
        await served.step()
        for gateway in served.gateway_pods():
            assert active(served) != old or served.probes.applied[gateway["metadata"]["uid"]].model == "k3"
    await served.until(lambda: served.stable("k3"))
    await served.settle()
    models = {served.probes.applied[g["metadata"]["uid"]].model for g in served.gateway_pods()}
    assert models == {"another"}


async def test_a_rank_of_the_old_revision_may_be_lost_while_the_new_one_has_another_name(
    served: World,
) -> None:
    old = active(served)
    served.probes.deaf.add(name(served.gateway_pods()[0]))  # the rollout stays in Shifting
    await served.edit("k3", lambda s: s["model"].update(name="another"))
    await served.until(lambda: phase(served) == "Shifting")
    served.kubelet.kill(
        served.engine_pods()[0] if old in name(served.engine_pods()[0]) else served.engine_pods()[-1]
    )
    await served.until(lambda: served.group("k3", old).get("incarnation") == 1)
    await served.until(lambda: bool(served.group("k3", old).get("verified")))
