"""Listing with selectors, and watching."""

from __future__ import annotations

import asyncio

import pytest
from moe_operator.api.names import LABEL_DEPLOYMENT
from moe_operator.runtime import aio_kube
from moe_operator.runtime.kube import CONFIG_MAP, EVENT, POD, ApiError, Kind

from tests.contract.world import MOE, World, container, refused, version, watching

LABELS = {
    "one": {"app": "a", "tier": "front", LABEL_DEPLOYMENT: "kimi"},
    "two": {"app": "a", LABEL_DEPLOYMENT: "kimi"},
    "three": {"app": "b", "tier": "back", LABEL_DEPLOYMENT: "other"},
}


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=a", ["one", "two"]),
        ("app==b", ["three"]),
        ("app!=a", ["three"]),
        ("tier!=front", ["three", "two"]),
        ("app in (a,b),tier", ["one", "three"]),
        ("app notin (b)", ["one", "two"]),
        ("!tier", ["two"]),
        ("app=a,tier=front", ["one"]),
        ("app=absent", []),
        (f"{LABEL_DEPLOYMENT}=kimi", ["one", "two"]),
        (f"{LABEL_DEPLOYMENT}=kimi,!tier", ["two"]),
        (f"{LABEL_DEPLOYMENT}!=kimi", ["three"]),
    ],
)
async def test_labels_select(world: World, selector: str, names: list[str]) -> None:
    for name, labels in LABELS.items():
        await world.kube.create(world.pod(name, labels=labels))

    found = await world.kube.list(POD, world.namespace, labels=selector)

    assert [pod["metadata"]["name"] for pod in found.items] == names


async def test_a_label_that_changes_moves_the_object(world: World) -> None:
    await world.kube.apply(world.config_map(labels={LABEL_DEPLOYMENT: "first"}), manager="m")
    await world.kube.apply(world.config_map(labels={LABEL_DEPLOYMENT: "second"}), manager="m")

    async def names(deployment: str) -> list[str]:
        found = await world.kube.list(CONFIG_MAP, world.namespace, labels=f"{LABEL_DEPLOYMENT}={deployment}")
        return [item["metadata"]["name"] for item in found.items]

    assert (await names("first"), await names("second")) == ([], ["cm"])


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=one", ["one"]),
        ("metadata.name!=one", ["two"]),
        ("status.phase=Pending", ["one", "two"]),
        ("status.phase=Running", []),
        ("spec.nodeName=", ["one", "two"]),
        ("spec.nodeName!=", []),
        ("metadata.name=one,status.phase=Pending", ["one"]),
    ],
)
async def test_fields_select(world: World, selector: str, names: list[str]) -> None:
    await world.kube.create(world.pod("one"))
    await world.kube.create(world.pod("two"))

    found = await world.kube.list(POD, world.namespace, fields=selector)

    assert [pod["metadata"]["name"] for pod in found.items] == names


async def test_events_are_found_by_what_they_are_about(world: World) -> None:
    pod = await world.kube.create(world.pod())
    for name, uid in (("a", pod["metadata"]["uid"]), ("b", "another")):
        await world.kube.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": world.namespace},
                "involvedObject": {
                    "kind": "Pod",
                    "name": "pod",
                    "namespace": world.namespace,
                    "uid": uid,
                },
                "reason": "Test",
                "message": "",
                "type": "Normal",
            }
        )

    selector = f"involvedObject.name=pod,involvedObject.uid={pod['metadata']['uid']}"
    found = await world.kube.list(EVENT, world.namespace, fields=selector)

    assert [event["metadata"]["name"] for event in found.items] == ["a"]


async def test_selectors_that_cannot_work_are_refused(world: World) -> None:
    list_ = world.kube.list
    assert await refused(list_(POD, world.namespace, labels="a in (b")) == (400, "BadRequest")
    assert await refused(list_(POD, world.namespace, fields="spec.priority=1")) == (400, "BadRequest")
    assert await refused(list_(CONFIG_MAP, world.namespace, fields="data.a=1")) == (400, "BadRequest")


async def test_items_say_what_they_are(world: World) -> None:
    await world.kube.create(world.config_map())

    found = await world.kube.list(CONFIG_MAP, world.namespace, fields="metadata.name=cm")

    assert [(item["apiVersion"], item["kind"]) for item in found.items] == [("v1", "ConfigMap")]


async def test_a_list_of_all_namespaces_holds_ours(world: World) -> None:
    await world.kube.create(world.deployment())

    found = await world.kube.list(MOE)

    ours = [o for o in found.items if o["metadata"]["namespace"] == world.namespace]
    assert [o["metadata"]["name"] for o in ours] == ["moe"]


async def test_a_long_list_is_whole(world: World) -> None:
    names = [f"cm-{index:04}" for index in range(1030)]  # more than two pages of the client
    at_once = asyncio.Semaphore(20)

    async def make(name: str) -> None:
        async with at_once:
            await world.kube.create(world.config_map(name, labels={"long": "yes"}))

    await asyncio.gather(*(make(name) for name in names))

    found = await world.kube.list(CONFIG_MAP, world.namespace, labels="long=yes")

    assert [item["metadata"]["name"] for item in found.items] == names


async def test_nothing_is_in_a_namespace_that_is_not_there(world: World) -> None:
    assert (await world.kube.list(POD, f"no-{world.namespace}")).items == ()


async def test_what_nothing_serves_is_not_found(world: World) -> None:
    """How the operator notices that its CRD is missing."""
    absent = Kind("absent.example", "v1", "Thing", "things")

    assert (await refused(world.kube.list(absent)))[0] == 404
    assert (await refused(world.kube.get(absent, world.namespace, "x")))[0] == 404


async def test_a_watch_goes_on_when_the_server_ends_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost and nothing is told twice where one answer ends and the next begins."""
    monkeypatch.setattr(aio_kube, "WATCH_SECONDS", 1)
    start = (await world.kube.list(CONFIG_MAP, world.namespace)).resource_version
    names = [f"cm-{index}" for index in range(8)]

    async def make() -> None:
        for name in names:
            await world.kube.create(world.config_map(name, labels={"w": "1"}))
            await asyncio.sleep(0.3)  # so that the changes stretch over several answers

    async with watching(world.kube, CONFIG_MAP, world.namespace, labels="w", resource_version=start) as seen:
        _, events = await asyncio.gather(make(), seen.take(len(names)))

    assert events == [("ADDED", name) for name in names]


async def test_a_watch_tells_what_happened_since(world: World) -> None:
    await world.kube.create(world.config_map("before", labels={"w": "1"}))
    start = (await world.kube.list(CONFIG_MAP, world.namespace)).resource_version
    made = await world.kube.create(world.config_map("cm", labels={"w": "1"}))
    changed = await world.kube.replace({**made, "data": {"a": "2"}})
    await world.kube.replace(changed)  # changes nothing, so nobody is told
    await world.kube.delete(CONFIG_MAP, world.namespace, "cm")

    async with watching(world.kube, CONFIG_MAP, world.namespace, labels="w", resource_version=start) as seen:
        events = await seen.events(3)
        await world.kube.create(world.config_map("after", labels={"w": "1"}))
        assert await seen.take(1) == [("ADDED", "after")]

    assert [event.type for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert events[0].object == made
    assert events[1].object == changed
    versions = [int(version(event.object)) for event in events]
    assert versions == sorted(set(versions))
    assert versions[2] > int(version(changed))


async def test_a_watch_without_a_version_starts_with_what_is_there(world: World) -> None:
    await world.kube.create(world.deployment("one"))
    await world.kube.create(world.deployment("two"))

    async with watching(world.kube, MOE, world.namespace) as seen:
        assert sorted(await seen.take(2)) == [("ADDED", "one"), ("ADDED", "two")]
        await world.kube.delete(MOE, world.namespace, "one")
        assert await seen.take(1) == [("DELETED", "one")]


async def test_a_watch_sees_objects_enter_and_leave_its_selection(world: World) -> None:
    made = await world.kube.create(world.config_map(labels={"w": "no"}))
    start = version(made)

    async with watching(
        world.kube, CONFIG_MAP, world.namespace, labels="w=yes", resource_version=start
    ) as seen:
        for value in ("yes", "no"):
            made["metadata"]["labels"]["w"] = value
            made = await world.kube.replace(made)
        assert await seen.take(2) == [("ADDED", "cm"), ("DELETED", "cm")]


async def test_a_watch_is_of_one_namespace(world: World) -> None:
    start = (await world.kube.list(CONFIG_MAP, world.namespace)).resource_version
    elsewhere = {"namespace": "default", "name": f"foreign-{world.namespace}"}
    foreign = {**world.config_map(), "metadata": elsewhere}

    async with watching(world.kube, CONFIG_MAP, world.namespace, resource_version=start) as seen:
        await world.kube.create(foreign)
        await world.kube.delete(CONFIG_MAP, "default", elsewhere["name"])
        await world.kube.create(world.config_map("ours", labels={"w": "1"}))
        taken = [await seen.take(1)]
        while taken[-1] != [("ADDED", "ours")]:
            taken.append(await seen.take(1))  # a real server's own ConfigMap may come first

    assert [("ADDED", elsewhere["name"])] not in taken


async def test_a_pod_that_ends_is_seen_marked_and_then_deleted(world: World) -> None:
    made = await world.kube.create(world.pod("pod", container("main"), finalizers=["contract.example/hold"]))

    async with watching(world.kube, POD, world.namespace, resource_version=version(made)) as seen:
        await world.kube.delete(POD, world.namespace, "pod")
        (marked,) = await seen.events(1)
        drop = [{"op": "remove", "path": "/metadata/finalizers"}]
        await world.kube.patch_json(POD, world.namespace, "pod", drop)
        events = await seen.take(1)

    assert (marked.type, "deletionTimestamp" in marked.object["metadata"]) == ("MODIFIED", True)
    assert events == [("DELETED", "pod")]


async def test_a_watch_from_too_long_ago_has_expired(world: World) -> None:
    await world.kube.create(world.config_map())
    world.forget_history()
    await world.kube.create(world.config_map("later"))

    with pytest.raises(ApiError) as refusal:
        async with watching(world.kube, CONFIG_MAP, world.namespace, resource_version="1") as seen:
            await seen.take(1)

    assert (refusal.value.status, refusal.value.reason) == (410, "Expired")
