"""What lies on the nodes' disks is read again in time, by one at a time, and mended where it was altered."""

from __future__ import annotations

from typing import Any

from moe_operator.api.moments import epoch
from moe_operator.api.policy import OperatorPolicy, Scrubbing, Staging
from moe_operator.runtime.kube import JOB

from tests.simulator.scenes import DSV31, fresh_world, serving
from tests.simulator.test_staging import GREEN, SHARD, active, is_over, layered, model, moved, rows, view_of
from tests.simulator.world import World, moe_deployment

Obj = dict[str, Any]
HOUR, DAY, WEEK = 3600.0, 24 * 3600.0, 7 * 24 * 3600.0
SCRUBBER = "app.kubernetes.io/component=scrubber"
HALF_OF_EVERY_NODE = {"product": "NVIDIA-H20", "nodes": 4, "gpusPerNode": 4}
ALONE = OperatorPolicy(staging=Staging(peers=False))


def scrubbers(world: World) -> list[Obj]:
    return list(world.api.list(JOB, labels=SCRUBBER).items)


def at_work(world: World) -> list[tuple[str, str]]:
    """Node and component of every Job on a store that is under way."""
    return [
        (node, j["metadata"]["labels"]["app.kubernetes.io/component"])
        for j in world.api.list(JOB).items
        if (node := j["metadata"].get("annotations", {}).get("moe-operator.io/node")) and not is_over(j)
    ]


def alone(world: World) -> bool:
    """Whether no scrubber is beside anything else on its node."""
    jobs = at_work(world)
    nodes = [node for node, _ in jobs]
    return all(nodes.count(node) == 1 for node, component in jobs if component == "scrubber")


def stores(world: World, name: str = "k3") -> dict[str, Obj]:
    return {store["node"]: store for store in world.status(name)["stores"]}


def on_record(world: World, name: str = "k3", *, within: float) -> bool:
    """Whether every store's record says when it was read, give or take a step."""
    read = dict(world.kubelet.stores.scrubbed)
    off = [abs(epoch(read[node]) - epoch(s["scrubbedAt"])) for node, s in stores(world, name).items()]
    return max(off) <= within


def told(world: World) -> list[str]:
    events = [w.object for w in world.kube.log if w.kind == "Event"]
    return [event["message"] for event in events if event["reason"] == "CorruptionFound"]


async def layered_world() -> World:
    """``k3`` serves a model of 61 files from two nodes."""
    world = await fresh_world()
    world.kubelet.manifests[DSV31] = layered(DSV31)
    await serving(world)
    return world


def rot(world: World, rank: int) -> tuple[str, str]:
    """A file on a rank's node changes behind everybody's back; the node and the file."""
    node = str(world.status("k3")["placement"][0]["ranks"][rank]["node"])
    disk = world.kubelet.stores.disk(node)
    digest = sorted(disk.views[view_of(world, active(world), rank)])[7]
    disk.rotten.add(digest)
    return node, digest


# In time


async def test_every_node_is_read_once_a_week_and_one_after_the_other(served: World) -> None:
    read, began = served.kubelet.stores.scrubbed, served.now
    served.kubelet.scrub_seconds = 2 * HOUR
    for week in (1, 2):
        served.now = began + week * WEEK - 2 * HOUR
        while served.now < began + week * WEEK + DAY / 2:
            await served.step(1200.0)
            assert sum(component == "scrubber" for _, component in at_work(served)) <= 1
            assert alone(served)
    nodes = set(stores(served))
    assert len(nodes) == 2 and len(read) == 4
    assert {node for node, _ in read[:2]} == {node for node, _ in read[2:]} == nodes
    first, second, *again = (epoch(at) - began for _, at in read)
    assert WEEK - HOUR < first < second < WEEK + DAY and all(at > 2 * WEEK - HOUR for at in again)
    assert not scrubbers(served), "what they came to is on record, and they are gone"


async def test_between_two_readings_nothing_is_written_for_it(served: World) -> None:
    for _ in range(13):
        await served.step(DAY / 2)
    assert not [w for w in served.kube.log if "-scrub-" in w.name]


async def test_a_policy_of_zero_hours_turns_it_off(served: World) -> None:
    served.policy = OperatorPolicy(staging=Staging(scrub=Scrubbing(every_hours=0)))
    for _ in range(60):
        await served.step(DAY)
    assert not served.kubelet.stores.scrubbed


async def test_a_new_operator_knows_when_each_node_was_read_last(served: World) -> None:
    served.kubelet.scrub_seconds = 2 * HOUR
    served.now += WEEK
    await served.until(lambda: bool(scrubbers(served)))
    served.operator_up = False
    await served.until(lambda: all(is_over(job) for job in scrubbers(served)), seconds=600.0)
    await served.step(HOUR)
    served.operator_up = True
    await served.until(lambda: len(served.kubelet.stores.scrubbed) == 2, seconds=600.0)
    await served.settle()
    assert on_record(served, within=600.0), "as of when it ended, not of when that was seen"


async def test_a_disk_that_cannot_be_read_is_told_and_does_not_hold_up_the_others(served: World) -> None:
    away, other = sorted(stores(served))
    served.kubelet.stores.unmounted.add(away)
    served.now += WEEK
    await served.until(lambda: bool(stores(served)[away].get("scrubMessage")))
    await served.until(lambda: [n for n, _ in served.kubelet.stores.scrubbed] == [other])
    assert "STORE_UNUSABLE" in stores(served)[away]["scrubMessage"]
    served.kubelet.stores.unmounted.clear()
    await served.until(lambda: not stores(served)[away].get("scrubMessage"), seconds=600.0)
    assert [n for n, _ in served.kubelet.stores.scrubbed] == [other, away]


# By one


async def two_on_the_same_nodes() -> World:
    world = await fresh_world()
    await serving(world, accelerators=HALF_OF_EVERY_NODE)
    await world.apply(moe_deployment("other", accelerators=HALF_OF_EVERY_NODE))
    await world.until(lambda: world.stable("other"))
    await world.settle()
    assert stores(world).keys() == stores(world, "other").keys() and len(stores(world)) == 4
    return world


async def test_a_node_of_two_deployments_is_read_once_and_both_know() -> None:
    world = await two_on_the_same_nodes()
    world.kubelet.scrub_seconds = 2 * HOUR
    world.now += WEEK
    for _ in range(60):
        await world.step(1200.0)
        assert sum(component == "scrubber" for _, component in at_work(world)) <= 1
    read = [node for node, _ in world.kubelet.stores.scrubbed]
    assert sorted(read) == sorted(stores(world)), "each node once"
    assert all(on_record(world, name, within=1200.0) for name in ("k3", "other"))


async def test_a_scrubber_makes_way_for_a_pull_of_anybody_and_goes_on_later() -> None:
    world = await fresh_world()
    await serving(world, accelerators=HALF_OF_EVERY_NODE)
    world.kubelet.scrub_seconds = 1000.0
    world.now += WEEK
    await world.until(lambda: bool(scrubbers(world)))
    [(node, _)] = [job for job in at_work(world) if job[1] == "scrubber"]
    world.kubelet.slow |= {f"h20-{n}": 20.0 for n in range(4)}
    await world.apply(moe_deployment("other", accelerators=HALF_OF_EVERY_NODE))
    pulled = False
    for _ in range(120):
        await world.step()
        assert alone(world)
        pulled = pulled or (node, "stager") in at_work(world)
        if world.stable("other"):
            break
    assert world.stable("other") and pulled
    await world.until(lambda: node in dict(world.kubelet.stores.scrubbed), seconds=60.0)


async def test_a_deployment_that_goes_takes_its_files_along_whoever_reads_them() -> None:
    world = await two_on_the_same_nodes()
    world.kubelet.scrub_seconds = 10 * HOUR
    world.now += WEEK
    await world.until(lambda: bool(scrubbers(world)))
    for name in ("k3", "other"):
        await world.delete(name)
    await world.until(lambda: not world.exists("k3") and not world.exists("other"))
    assert not any(world.kubelet.stores.disk(f"h20-{n}").views for n in range(4))


# What it finds


async def test_an_altered_file_is_told_once_and_fetched_again_while_the_engines_run() -> None:
    world = await layered_world()
    node, digest = rot(world, 1)
    engines, disk = world.pods_of("k3", active(world)), world.kubelet.stores.disk(node)
    world.kubelet.slow[node] = 10.0
    world.now += WEEK
    await world.until(lambda: "corruptAt" in stores(world)[node])
    found = stores(world)[node]
    assert (found["corrupt"], found["corruptBytes"]) == ([digest], SHARD)
    assert digest not in disk.blobs
    await world.until(lambda: world.condition("k3", "WeightsStaged")["status"] == "False")
    assert rows(world)[node]["phase"] != "Ready"
    for _ in range(100):
        assert world.is_ready("k3") and world.pods_of("k3", active(world)) == engines
        await world.step()
        if "corruptAt" not in stores(world)[node]:
            break
    await world.settle()
    assert digest in disk.blobs and world.condition("k3", "WeightsStaged")["status"] == "True"
    assert len(told(world)) == 1 and node in told(world)[0] and digest in told(world)[0]
    stores_of_all = world.kubelet.stores
    assert stores_of_all.origin == {DSV31: 61 * SHARD}, "another node had it"

    world.kubelet.kill(world.engine_pods()[1])
    await world.until(lambda: world.group("k3", active(world)).get("incarnation") == 1 and world.stable("k3"))
    assert not stores_of_all.late, "the next engine found every byte there"


async def test_no_engine_starts_on_a_damaged_node_before_it_is_mended() -> None:
    world = await layered_world()
    world.policy = ALONE
    node, digest = rot(world, 1)
    world.kubelet.altered[DSV31] = {"code": 40, "reason": "NETWORK", "message": "no answer"}
    world.now += WEEK
    await world.until(lambda: rows(world)[node]["phase"] == "Retrying")
    assert world.is_ready("k3") and not world.condition("k3", "Stalled")
    world.kubelet.kill(world.engine_pods()[1])
    await world.until(lambda: not world.engine_pods())
    for _ in range(60):
        await world.step(5.0)
        assert not world.engine_pods() and digest not in world.kubelet.stores.disk(node).blobs
    world.kubelet.altered.clear()
    await world.until(lambda: world.stable("k3") and "corruptAt" not in stores(world)[node], seconds=5.0)
    assert not world.kubelet.stores.late and len(told(world)) == 1


async def test_a_source_that_is_gone_mends_nothing_and_holds_up_no_other_revision() -> None:
    world = await layered_world()
    world.policy = ALONE
    node, _ = rot(world, 0)
    world.kubelet.manifests[GREEN] = layered(GREEN)
    world.kubelet.altered[DSV31] = {"code": 12, "reason": "NOT_FOUND", "message": "no such model"}
    world.now += WEEK
    await world.until(lambda: rows(world)[node]["phase"] == "Failed")
    assert world.is_ready("k3") and not world.condition("k3", "Stalled")
    await world.settle()
    await world.edit("k3", model(GREEN))
    await world.until(moved(world, active(world)))


async def test_the_same_damage_found_again_is_no_news() -> None:
    world = await layered_world()
    world.policy = ALONE
    node, digest = rot(world, 1)
    world.kubelet.altered[DSV31] = {"code": 12, "reason": "NOT_FOUND", "message": "no such model"}
    for _ in range(3):
        world.now += WEEK
        read = len(world.kubelet.stores.scrubbed)
        await world.until(lambda read=read: len(world.kubelet.stores.scrubbed) == read + 2)  # type: ignore[misc]
        await world.settle()
    assert stores(world)[node]["corrupt"] == [digest] and len(told(world)) == 1


async def test_both_deployments_on_a_damaged_disk_mend_what_is_theirs() -> None:
    world = await two_on_the_same_nodes()
    disk = world.kubelet.stores.disk("h20-2")
    world.kubelet.scrub_seconds, world.kubelet.slow["h20-2"] = 30.0, 300.0
    [digest] = disk.blobs
    disk.rotten.add(digest)
    world.now += WEEK
    seen: dict[str, bool] = {}
    for _ in range(200):
        await world.step(10.0)
        seen |= {name: True for name in ("k3", "other") if "corruptAt" in stores(world, name)["h20-2"]}
        if len(seen) == 2 and not any("corruptAt" in stores(world, name)["h20-2"] for name in seen):
            break
    assert seen.keys() == {"k3", "other"} and len(told(world)) == 2
    assert digest in disk.blobs and world.is_ready("k3") and world.is_ready("other")


async def test_a_file_that_only_a_way_back_needs_is_told_and_not_fetched() -> None:
    world = await layered_world()
    first, policy = active(world), world.policy
    world.kubelet.manifests[GREEN] = layered(GREEN, changed=(3,))
    world.policy = OperatorPolicy(staging=Staging(scrub=Scrubbing(every_hours=0)))
    await world.edit("k3", model(GREEN))
    await world.until(moved(world, first))
    await world.settle()
    serving_on = {r["node"] for r in world.status("k3")["placement"][0]["ranks"]}
    [node, *_] = [n for n in stores(world) if n not in serving_on]
    disk = world.kubelet.stores.disk(node)
    digest = sorted(disk.blobs)[0]
    disk.rotten.add(digest)
    world.policy = policy
    world.now += WEEK
    await world.until(lambda: stores(world)[node].get("corrupt") == [digest])
    await world.settle()
    assert digest not in disk.blobs and world.condition("k3", "WeightsStaged")["status"] == "True"
    await world.edit("k3", model(DSV31))
    await world.until(lambda: world.stable("k3") and active(world) == first)
    assert digest in disk.blobs and not world.kubelet.stores.late
