"""Deleting: finalizers, preconditions, grace, and what goes with an owner or a namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from moe_operator.runtime.kube import CONFIG_MAP, NAMESPACE, NODE, POD, Kind

from tests.contract.world import MOE, World, eventually, owned_by, refused, there, version

HOLD = "contract.example/hold"
RELEASE = [{"op": "remove", "path": "/metadata/finalizers"}]


async def gone(world: World, kind: Kind, name: str) -> None:
    await eventually(lambda: _absent(world, kind, name))


async def _absent(world: World, kind: Kind, name: str) -> bool:
    return not await there(world.kube, kind, world.namespace if kind.namespaced else None, name)


async def test_an_object_without_finalizers_goes_at_once(world: World) -> None:
    await world.kube.create(world.config_map())

    await world.kube.delete(CONFIG_MAP, world.namespace, "cm")

    assert not await there(world.kube, CONFIG_MAP, world.namespace, "cm")
    assert await refused(world.kube.delete(CONFIG_MAP, world.namespace, "cm")) == (404, "NotFound")


async def test_a_finalizer_holds_a_deleted_object(world: World) -> None:
    made = await world.kube.create(world.deployment(finalizers=[HOLD]))

    await world.kube.delete(MOE, world.namespace, "moe")
    marked = await world.kube.get(MOE, world.namespace, "moe")
    assert marked["metadata"]["deletionTimestamp"]
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 0
    assert marked["metadata"]["generation"] == made["metadata"]["generation"] + 1

    await world.kube.patch_json(MOE, world.namespace, "moe", RELEASE)
    assert not await there(world.kube, MOE, world.namespace, "moe")


async def test_deleting_again_changes_nothing(world: World) -> None:
    await world.kube.create(world.config_map(finalizers=[HOLD]))
    await world.kube.delete(CONFIG_MAP, world.namespace, "cm")
    first = await world.kube.get(CONFIG_MAP, world.namespace, "cm")

    await world.kube.delete(CONFIG_MAP, world.namespace, "cm")

    assert await world.kube.get(CONFIG_MAP, world.namespace, "cm") == first
    await world.kube.patch_json(CONFIG_MAP, world.namespace, "cm", RELEASE)


async def test_no_finalizer_is_added_to_what_is_going(world: World) -> None:
    await world.kube.create(world.config_map(finalizers=[HOLD]))
    await world.kube.delete(CONFIG_MAP, world.namespace, "cm")

    late = world.config_map(finalizers=["contract.example/late"])
    assert await refused(world.kube.apply(late, manager="m")) == (422, "Invalid")
    await world.kube.patch_json(CONFIG_MAP, world.namespace, "cm", RELEASE)


async def test_what_is_going_can_still_be_written(world: World) -> None:
    made = await world.kube.create(world.deployment(finalizers=[HOLD]))
    await world.kube.delete(MOE, world.namespace, "moe")

    new = await world.kube.apply_status(world.status(observedGeneration=2), manager="s")

    assert new["status"]["observedGeneration"] == 2
    assert new["metadata"]["uid"] == made["metadata"]["uid"]
    await world.kube.patch_json(MOE, world.namespace, "moe", RELEASE)


async def test_a_delete_can_be_for_one_life_and_one_version(world: World) -> None:
    made = await world.kube.create(world.config_map())
    new = await world.kube.replace({**made, "data": {"a": "2"}})
    uid = made["metadata"]["uid"]

    def delete(**precondition: str) -> object:
        return world.kube.delete(CONFIG_MAP, world.namespace, "cm", **precondition)  # type: ignore[arg-type]

    assert await refused(delete(uid="another")) == (409, "Conflict")  # type: ignore[arg-type]
    assert await refused(delete(uid=uid, resource_version=version(made))) == (409, "Conflict")  # type: ignore[arg-type]
    assert await there(world.kube, CONFIG_MAP, world.namespace, "cm")
    await delete(uid=uid, resource_version=version(new))  # type: ignore[misc]
    assert not await there(world.kube, CONFIG_MAP, world.namespace, "cm")


@pytest.fixture
async def node(world: World) -> AsyncIterator[str]:
    """A node without a kubelet: nothing there ever confirms that a pod has ended."""
    name = f"node-of-{world.namespace}"
    await world.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield name
    await world.kube.delete(NODE, None, name)


async def test_a_pod_that_never_ran_goes_at_once(world: World) -> None:
    await world.kube.create(world.pod())

    await world.kube.delete(POD, world.namespace, "pod")

    assert not await there(world.kube, POD, world.namespace, "pod")


async def test_a_pod_on_a_node_waits_for_its_kubelet(world: World, node: str) -> None:
    made = await world.kube.create(world.pod(node=node))

    await world.kube.delete(POD, world.namespace, "pod")
    ending = await world.kube.get(POD, world.namespace, "pod")
    assert ending["metadata"]["deletionTimestamp"] > made["metadata"]["creationTimestamp"]
    assert ending["metadata"]["deletionGracePeriodSeconds"] == 20

    await world.kube.delete(POD, world.namespace, "pod", uid=made["metadata"]["uid"], grace_seconds=0)
    assert not await there(world.kube, POD, world.namespace, "pod")


async def test_a_grace_period_can_only_get_shorter(world: World, node: str) -> None:
    await world.kube.create(world.pod(node=node))
    await world.kube.delete(POD, world.namespace, "pod", grace_seconds=10)

    async def grace() -> int:
        meta = (await world.kube.get(POD, world.namespace, "pod"))["metadata"]
        return int(meta["deletionGracePeriodSeconds"])

    assert await grace() == 10
    await world.kube.delete(POD, world.namespace, "pod", grace_seconds=15)
    assert await grace() == 10
    await world.kube.delete(POD, world.namespace, "pod", grace_seconds=5)
    assert await grace() == 5
    await world.kube.delete(POD, world.namespace, "pod", grace_seconds=0)


async def test_a_deleted_pod_that_has_ended_is_let_go_by_a_grace_of_nothing(world: World, node: str) -> None:
    made = await world.kube.create(world.pod(node=node))
    await world.kube.delete(POD, world.namespace, "pod", grace_seconds=10)
    meta = {"name": "pod", "namespace": world.namespace}
    ended = {**made, "metadata": meta, "status": {"phase": "Succeeded"}}
    await world.kube.apply_status(ended, manager="kubelet")

    await world.kube.delete(POD, world.namespace, "pod", grace_seconds=10)
    assert await there(world.kube, POD, world.namespace, "pod")

    await world.kube.delete(POD, world.namespace, "pod", uid=made["metadata"]["uid"], grace_seconds=0)
    assert not await there(world.kube, POD, world.namespace, "pod")


async def test_dependents_go_with_their_owner_in_the_background(world: World) -> None:
    owner = await world.kube.create(world.deployment())
    child = await world.kube.create(world.config_map("child", ownerReferences=[owned_by(owner)]))
    await world.kube.create(world.config_map("grandchild", ownerReferences=[owned_by(child)]))
    await world.kube.create(world.config_map("stranger"))

    await world.kube.delete(MOE, world.namespace, "moe")

    assert not await there(world.kube, MOE, world.namespace, "moe")
    await gone(world, CONFIG_MAP, "child")
    await gone(world, CONFIG_MAP, "grandchild")
    assert await there(world.kube, CONFIG_MAP, world.namespace, "stranger")


async def test_a_dependent_with_another_living_owner_stays(world: World) -> None:
    first = await world.kube.create(world.config_map("first"))
    second = await world.kube.create(world.config_map("second"))
    await world.kube.create(world.config_map("child", ownerReferences=[owned_by(first), owned_by(second)]))

    await world.kube.delete(CONFIG_MAP, world.namespace, "first")

    async def has_one_owner() -> bool:
        child = await world.kube.get(CONFIG_MAP, world.namespace, "child")
        return [ref["name"] for ref in child["metadata"]["ownerReferences"]] == ["second"]

    await eventually(has_one_owner)
    await world.kube.delete(CONFIG_MAP, world.namespace, "second")
    await gone(world, CONFIG_MAP, "child")


async def test_a_dependent_of_nobody_is_collected(world: World) -> None:
    owner = await world.kube.create(world.config_map("owner"))
    await world.kube.delete(CONFIG_MAP, world.namespace, "owner")

    await world.kube.create(world.config_map("late", ownerReferences=[owned_by(owner)]))

    await gone(world, CONFIG_MAP, "late")


async def test_an_owner_of_that_name_is_not_that_owner(world: World) -> None:
    """References mean uids: a new object of the same name does not inherit the old one's children."""
    first = await world.kube.create(world.config_map("owner"))
    await world.kube.create(world.config_map("child", ownerReferences=[owned_by(first)], finalizers=[HOLD]))
    await world.kube.delete(CONFIG_MAP, world.namespace, "owner")
    await world.kube.create(world.config_map("owner"))

    async def is_going() -> bool:
        child = await world.kube.get(CONFIG_MAP, world.namespace, "child")
        return "deletionTimestamp" in child["metadata"]

    await eventually(is_going)
    await world.kube.patch_json(CONFIG_MAP, world.namespace, "child", RELEASE)


async def test_an_owner_deleted_in_the_foreground_goes_last(world: World) -> None:
    owner = await world.kube.create(world.deployment())
    held = world.config_map("held", ownerReferences=[owned_by(owner, block=True)], finalizers=[HOLD])
    await world.kube.create(held)

    await world.kube.delete(MOE, world.namespace, "moe", propagation="Foreground")

    waiting = await world.kube.get(MOE, world.namespace, "moe")
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]

    async def is_going() -> bool:
        child = await world.kube.get(CONFIG_MAP, world.namespace, "held")
        return "deletionTimestamp" in child["metadata"]

    await eventually(is_going)
    assert await there(world.kube, MOE, world.namespace, "moe")
    await world.kube.patch_json(CONFIG_MAP, world.namespace, "held", RELEASE)
    await gone(world, MOE, "moe")


async def test_a_foreground_deletion_does_not_wait_for_those_that_do_not_block(world: World) -> None:
    owner = await world.kube.create(world.deployment())
    loose = world.config_map("loose", ownerReferences=[owned_by(owner, block=False)], finalizers=[HOLD])
    await world.kube.create(loose)

    await world.kube.delete(MOE, world.namespace, "moe", propagation="Foreground")

    await gone(world, MOE, "moe")
    await world.kube.patch_json(CONFIG_MAP, world.namespace, "loose", RELEASE)


async def test_orphans_lose_their_owner_and_live_on(world: World) -> None:
    owner = await world.kube.create(world.deployment())
    await world.kube.create(world.config_map("child", ownerReferences=[owned_by(owner)]))

    await world.kube.delete(MOE, world.namespace, "moe", propagation="Orphan")

    await gone(world, MOE, "moe")
    child = await world.kube.get(CONFIG_MAP, world.namespace, "child")
    assert "ownerReferences" not in child["metadata"]


async def test_a_namespace_goes_with_all_that_is_in_it(world: World) -> None:
    await world.kube.create(world.config_map())
    await world.kube.create(world.deployment())
    await world.kube.create(world.config_map("held", finalizers=[HOLD]))

    await world.kube.delete(NAMESPACE, None, world.namespace)

    await gone(world, CONFIG_MAP, "cm")
    await gone(world, MOE, "moe")
    going = await world.kube.get(NAMESPACE, None, world.namespace)
    assert going["status"]["phase"] == "Terminating"
    assert going["metadata"]["deletionTimestamp"]

    await eventually(lambda: _marked(world, "held"))
    await world.kube.patch_json(CONFIG_MAP, world.namespace, "held", RELEASE)
    await gone(world, NAMESPACE, world.namespace)
    await world.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}})


async def _marked(world: World, name: str) -> bool:
    obj = await world.kube.get(CONFIG_MAP, world.namespace, name)
    return "deletionTimestamp" in obj["metadata"]
