from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from moe_operator.api.names import FIELD_MANAGER, FINALIZER
from moe_operator.reconcile.actions import (
    Action,
    AddFinalizer,
    Apply,
    Decision,
    Delete,
    Event,
    Ref,
    RemoveFinalizer,
)
from moe_operator.runtime.execute import AT_ONCE, Executor, Outcome, at_once, event_object, steps
from moe_operator.runtime.kube import CONFIG_MAP, EVENT, MOE_DEPLOYMENT, POD, ApiError, Obj

from tests.runtime.world import World, config_map, deployment, pod, snapshot, status


@pytest.fixture
def world() -> World:
    return World()


async def execute(world: World, obj: Obj, *actions: Action, **decision: Any) -> Outcome:
    decision.setdefault("status", None)
    world.calls.clear()
    return await Executor(world.kube, lambda: 1_000_000.0).execute(
        snapshot(obj), Decision(actions=actions, **decision)
    )


def ref(obj: Obj, **other: str) -> Ref:
    meta = obj["metadata"]
    found = {"uid": meta["uid"], "resource_version": meta["resourceVersion"], **other}
    return Ref(obj["kind"], meta["namespace"], meta["name"], **found)


async def test_status_is_written_before_the_actions_and_actions_in_order(world: World) -> None:
    obj = world.add(deployment())
    outcome = await execute(
        world, obj, Apply(config_map("a", obj)), Apply(pod("b", obj)), status=status(), wake_after=7.0
    )
    assert world.calls == [("apply_status", "MoEDeployment"), ("apply", "ConfigMap"), ("apply", "Pod")]
    assert outcome == Outcome(writes=3, wake_after=7.0)
    assert world.read()["status"]["targetRevision"] == "abc"


async def test_an_equal_status_in_another_order_is_not_written(world: World) -> None:
    obj = world.add(deployment())
    await execute(world, obj, status=status())
    found = world.read()
    reordered = dict(reversed(found["status"].items()))
    assert list(reordered) != list(found["status"])
    assert await execute(world, found, status=reordered) == Outcome()
    assert world.calls == []


async def test_nothing_decided_nothing_written(world: World) -> None:
    assert await execute(world, world.add(deployment())) == Outcome()
    assert world.calls == []


async def test_the_first_error_ends_the_pass(world: World) -> None:
    obj = world.add(deployment())
    refused = {**config_map("bad", obj), "metadata": {"name": "bad", "namespace": "nowhere"}}
    outcome = await execute(world, obj, Apply(refused), Apply(config_map("a", obj)), status=status())
    assert outcome.writes == 1
    assert outcome.error is not None
    assert outcome.error.not_found
    assert not outcome.conflict
    assert world.writes == ["apply_status", "apply"]


async def test_a_status_that_cannot_be_written_stops_every_act(world: World) -> None:
    obj = world.add(deployment())
    world.faults["apply_status"] = ApiError(503, "ServiceUnavailable", "etcd is away")
    outcome = await execute(world, obj, Apply(config_map("a", obj)), status=status())
    assert outcome.error is world.faults["apply_status"]
    assert world.writes == ["apply_status"]


async def test_a_status_decided_from_an_old_object_is_not_written(world: World) -> None:
    old = world.add(deployment())
    edited = world.read()
    edited["spec"]["engine"]["image"] = "vllm:2"
    world.api.replace(edited)
    outcome = await execute(world, old, Apply(config_map("a", old)), status=status())
    assert outcome.conflict
    assert outcome.writes == 0
    assert "status" not in world.read()


async def test_an_irreversible_action_ends_the_pass_and_asks_for_the_next(world: World) -> None:
    obj = world.add(deployment())
    victim = world.add(pod("b", obj))
    outcome = await execute(
        world, obj, Delete((ref(victim),), "worker lost"), Apply(config_map("a", obj)), wake_after=60.0
    )
    assert outcome == Outcome(writes=1, wake_after=0.0)
    assert world.writes == ["delete"]


async def test_pods_that_are_gone_already_are_no_error(world: World) -> None:
    obj = world.add(deployment())
    victim = world.add(pod("b", obj))
    gone = Ref("Pod", "default", "a", uid="gone")
    outcome = await execute(world, obj, Delete((gone, ref(victim)), "group lost", grace_seconds=0))
    assert outcome == Outcome(writes=1, wake_after=0.0)
    with pytest.raises(ApiError, match="404"):
        world.api.get(POD, "default", "b")


@pytest.mark.parametrize("other", [{"uid": "somebody-else"}, {"resource_version": "1"}])
async def test_a_pod_that_is_not_the_one_we_saw_is_not_deleted(world: World, other: dict[str, str]) -> None:
    obj = world.add(deployment())
    victim = world.add(pod("b", obj))
    outcome = await execute(world, obj, Delete((ref(victim, **other),), "group lost"))
    assert outcome.conflict
    assert world.api.get(POD, "default", "b")["metadata"].get("deletionTimestamp") is None


async def test_children_are_applied_by_our_field_manager(world: World) -> None:
    obj = world.add(deployment())
    await execute(world, obj, Apply(config_map("a", obj)))
    assert world.api.get(CONFIG_MAP, "default", "a")["data"] == {"k": "v"}
    foreign = {**config_map("a", obj), "data": {"k": "theirs"}}
    with pytest.raises(ApiError) as caught:
        world.api.apply(foreign, manager="kubectl", force=False)
    assert FIELD_MANAGER in caught.value.message


@pytest.mark.parametrize("others", [[], ["example.com/theirs"]])
async def test_the_finalizer_is_added_and_removed_without_touching_others(
    world: World, others: list[str]
) -> None:
    obj = world.add(deployment(finalizers=others) if others else deployment())
    outcome = await execute(world, obj, AddFinalizer(), Apply(config_map("a", obj)))
    assert (outcome, world.writes) == (Outcome(writes=2), ["patch_json", "apply"])
    marked = world.read()
    assert marked["metadata"]["finalizers"] == [*others, FINALIZER]
    assert await execute(world, marked, AddFinalizer()) == Outcome()
    outcome = await execute(world, marked, RemoveFinalizer(), status=status())
    assert outcome == Outcome(writes=2, wake_after=0.0)
    assert (world.read()["metadata"].get("finalizers") or []) == others


async def test_a_finalizer_is_not_removed_from_an_object_that_moved_on(world: World) -> None:
    obj = world.add(deployment(finalizers=[FINALIZER]))
    edited = world.read()
    edited["spec"]["engine"]["image"] = "vllm:2"
    world.api.replace(edited)
    outcome = await execute(world, obj, RemoveFinalizer())
    assert outcome.conflict
    assert world.read()["metadata"]["finalizers"] == [FINALIZER]


async def test_nothing_is_made_for_an_object_that_went_before_its_finalizer_came(world: World) -> None:
    obj = world.add(deployment())
    world.api.delete(MOE_DEPLOYMENT, "default", "kimi")
    outcome = await execute(world, obj, AddFinalizer(), Apply(config_map("a", obj)))
    assert (outcome.writes, outcome.conflict) == (0, True)
    assert world.writes == ["patch_json"]


async def test_removing_the_finalizer_of_an_object_that_is_gone_is_no_error(world: World) -> None:
    obj = world.add(deployment(finalizers=[FINALIZER]))
    released = world.read()
    released["metadata"]["finalizers"] = []
    world.api.replace(released)
    world.api.delete(MOE_DEPLOYMENT, "default", "kimi")
    assert await execute(world, obj, RemoveFinalizer()) == Outcome(wake_after=0.0)


async def test_a_change_is_told_once_and_told_again_when_it_happens_again(world: World) -> None:
    obj = world.add(deployment())
    told = Event("Warning", "GroupLost", "rank 1 ended with exit code 137")
    for _ in range(2):
        await execute(world, obj, events=(told,))
    events = world.api.list(EVENT, "default").items
    assert [(e["type"], e["reason"], e["message"]) for e in events] == [
        ("Warning", "GroupLost", "rank 1 ended with exit code 137")
    ]
    assert events[0]["involvedObject"]["uid"] == obj["metadata"]["uid"]
    await execute(world, obj, status=status())
    await execute(world, world.read(), events=(told,))
    assert len(world.api.list(EVENT, "default").items) == 2


async def test_an_event_that_cannot_be_posted_stops_nothing(world: World) -> None:
    obj = world.add(deployment())
    world.faults["create"] = ApiError(403, "Forbidden", "no events for you")
    outcome = await execute(
        world, obj, Apply(config_map("a", obj)), events=(Event("Normal", "Placed", "on n1"),)
    )
    assert outcome == Outcome(writes=1)


async def test_no_event_is_told_of_a_status_that_was_not_written(world: World) -> None:
    obj = world.add(deployment())
    world.faults["apply_status"] = ApiError(409, "Conflict", "moved on")
    await execute(world, obj, status=status(), events=(Event("Normal", "Placed", "on n1"),))
    assert world.writes == ["apply_status"]


def test_a_long_message_is_cut_where_utf8_allows() -> None:
    obj = deployment(uid="u", resourceVersion="1")
    made = event_object(snapshot(obj), Event("Normal", "Placed", "é" * 1000), 0.0, "me")
    assert made["message"] == "é" * 512


def applied(kind: str) -> Apply:
    return Apply({"kind": kind})


def test_what_is_applied_in_a_row_follows_what_it_needs() -> None:
    first = [applied(kind) for kind in ("Pod", "Service", "RoleBinding", "Deployment", "Role", "ConfigMap")]
    gone = Delete((), "why")
    found = list(steps([AddFinalizer(), *first, gone, applied("Pod")]))
    kinds = [[a.object["kind"] if isinstance(a, Apply) else type(a).__name__ for a in s] for s in found]
    assert kinds == [
        ["AddFinalizer", "ConfigMap"],
        ["Pod"],
        ["Service", "Role"],
        ["RoleBinding", "Deployment"],
        ["Delete"],
    ]


async def test_writes_of_a_step_are_under_way_together_and_none_begins_after_a_failure() -> None:
    begun, release = 0, asyncio.Event()

    async def write(fails: bool) -> None:
        nonlocal begun
        begun += 1
        await release.wait()
        if fails:
            raise ApiError(403, "Forbidden", "no")

    running = asyncio.create_task(at_once(partial(write, n == 0) for n in range(3 * AT_ONCE)))
    while begun < AT_ONCE:
        await asyncio.sleep(0)
    release.set()
    with pytest.raises(ApiError, match="no"):
        await running
    assert begun == AT_ONCE
