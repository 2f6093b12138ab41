"""Bad inputs end in a condition that names the cause and the next step, and disturb nothing that serves."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from moe_operator.api.conditions import Reason
from moe_operator.runtime.kube import NAMESPACE, ApiError

from tests.faults.bad_inputs import BAD_INPUTS, BadInput, Ground
from tests.simulator.scenes import fresh_world, serving
from tests.simulator.world import World, facts, moe_deployment

Obj = dict[str, Any]
GROUND = Ground(
    broken_image="vllm:no-command",
    unreachable="https://nowhere.example/model",
    incomplete="https://models.example/incomplete",
    altered="https://models.example/altered",
)
NOT_FOUND = {
    "code": 12,
    "reason": "NOT_FOUND",
    "message": "the index names model-00002-of-00163.safetensors, the source does not have it",
}
MISMATCH = {
    "code": 30,
    "reason": "CHECKSUM_MISMATCH",
    "message": "model-00001-of-00163.safetensors is not what the manifest says, twice",
}
_BUILT: list[World] = []


@pytest.fixture
async def world() -> World:
    """Eight H20 nodes; ``k3`` serves from two of them; everything broken that a ground needs."""
    if not _BUILT:
        world = await fresh_world("h20-8x8")
        kubelet = world.kubelet
        kubelet.crashes[GROUND.broken_image] = 127
        kubelet.last_words[GROUND.broken_image] = "sh: 1: vllm: not found"
        kubelet.resolve_failures[GROUND.incomplete] = NOT_FOUND
        kubelet.manifests[GROUND.altered] = facts(GROUND.altered, "deepseek-v3.1", 688_574_632_767)
        kubelet.altered[GROUND.altered] = MISMATCH
        await serving(world)
        _BUILT.append(world)
    return deepcopy(_BUILT[0])


def served_by(world: World) -> dict[str, str]:
    return {p["metadata"]["name"]: p["metadata"]["uid"] for p in world.engine_pods("k3")}


def ends_as(world: World, name: str, bad: BadInput) -> bool:
    return world.condition(name, bad.condition).get("reason") == bad.reason


async def rest(world: World) -> None:
    """Long enough for every budget to be used up; ``k3`` serves all the time."""
    for _ in range(40):
        await world.step()
        assert world.is_ready("k3")


def check_words(condition: Obj, bad: BadInput) -> None:
    for words in bad.words:
        assert words in condition["message"], condition["message"]
    reason = Reason(condition["reason"])
    assert reason.next_step and reason.next_step not in {"None.", "Wait."}


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
async def test_a_bad_new_deployment_says_why_and_leaves_its_neighbour_alone(
    world: World, bad: BadInput
) -> None:
    neighbour = served_by(world)
    obj = moe_deployment("bad")
    bad.spoil(obj["spec"], GROUND)
    await world.apply(obj)
    await world.until(lambda: ends_as(world, "bad", bad))
    await rest(world)
    assert ends_as(world, "bad", bad), "and it stays said"
    check_words(world.condition("bad", bad.condition), bad)
    assert not world.is_ready("bad")
    assert served_by(world) == neighbour


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
async def test_the_same_as_an_edit_never_touches_what_serves(world: World, bad: BadInput) -> None:
    before, active = served_by(world), world.status("k3")["activeRevision"]
    await world.edit("k3", lambda spec: bad.spoil(spec, GROUND))
    await world.until(lambda: ends_as(world, "k3", bad))
    await rest(world)
    assert ends_as(world, "k3", bad)
    check_words(world.condition("k3", bad.condition), bad)
    assert world.status("k3")["activeRevision"] == active
    assert before.items() <= served_by(world).items()


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
async def test_taking_the_bad_edit_back_is_all_it_takes(world: World, bad: BadInput) -> None:
    before, good = served_by(world), deepcopy(world.deployment("k3")["spec"])
    await world.edit("k3", lambda spec: bad.spoil(spec, GROUND))
    await world.until(lambda: ends_as(world, "k3", bad))
    await world.edit("k3", lambda spec: (spec.clear(), spec.update(good)))
    await world.until(lambda: world.stable("k3"))
    await world.settle()
    assert served_by(world) == before
    assert not world.condition("k3", "Stalled")


# Those that are no matter of the spec


@pytest.mark.parametrize("length", [63, 64, 100, 253])
async def test_a_long_name_serves_under_names_that_fit(length: int) -> None:
    world = await fresh_world()
    name = "m" * length
    await world.apply(moe_deployment(name))
    await world.until(lambda: world.stable(name))
    pods = world.engine_pods()
    assert len(pods) == 2 and all(len(p["metadata"]["name"]) <= 63 for p in pods)
    assert all(len(v) <= 63 for p in pods for v in p["metadata"]["labels"].values())


async def test_long_names_that_begin_alike_do_not_meet() -> None:
    world = await fresh_world()
    names = ["m" * 80 + tail for tail in "ab"]
    for name in names:
        await world.apply(moe_deployment(name))
    await world.until(lambda: all(world.stable(n) for n in names))
    assert len({p["metadata"]["name"] for p in world.engine_pods()}) == 4
    await world.delete(names[0])
    await world.until(lambda: not world.exists(names[0]))
    await world.settle()
    assert world.is_ready(names[1]) and len(world.engine_pods()) == 2


async def test_a_name_that_no_object_may_have_is_refused_by_the_api_server() -> None:
    world = await World().build()
    for name in ("m" * 254, "9lives", "Model"):
        with pytest.raises(ApiError) as refused:
            await world.apply(moe_deployment(name))
        assert refused.value.status == 422 and "metadata.name" in refused.value.message


async def test_nothing_is_created_in_a_namespace_that_is_being_deleted(world: World) -> None:
    before = served_by(world)
    await world.user.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    obj = moe_deployment("bad")
    obj["metadata"]["namespace"] = "team"
    await world.apply(obj)
    await world.until(lambda: bool(world.engine_pods("bad")))
    await world.user.delete(NAMESPACE, None, "team")
    with pytest.raises(ApiError, match="being terminated"):
        await world.apply({**obj, "metadata": {**obj["metadata"], "name": "later"}})
    await world.until(lambda: not world.exists("bad", "team"))
    await world.until(lambda: not namespace_exists(world, "team"))
    assert served_by(world) == before and world.is_ready("k3")


def namespace_exists(world: World, name: str) -> bool:
    try:
        world.api.get(NAMESPACE, None, name)
    except ApiError as error:
        return not error.not_found
    return True


@pytest.mark.parametrize("steps", range(8))
async def test_deleting_it_at_any_moment_of_its_start_leaves_nothing(world: World, steps: int) -> None:
    before = {p["metadata"]["uid"] for p in world.kubelet.pods()}
    await world.apply(moe_deployment("brief"))
    for _ in range(steps):
        await world.step()
    await world.delete("brief")
    await world.until(lambda: not world.exists("brief"))
    for _ in range(3):
        await world.step()
    assert {p["metadata"]["uid"] for p in world.kubelet.pods()} == before
    assert world.is_ready("k3")
