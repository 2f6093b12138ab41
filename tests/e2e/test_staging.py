"""Files on real nodes: brought while the old ones serve, resumed, mended, kept for a way back, and freed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from moe_operator.api.manifest import Manifest
from moe_operator.api.names import COMPONENT_COLLECTOR, COMPONENT_GATEWAY, COMPONENT_STAGER
from moe_operator.resources.manifest_config_map import manifest_of
from moe_operator.runtime.kube import CONFIG_MAP, NODE, POD

from e2e.checkpoints import build
from e2e.cluster.settings import Folders
from e2e.kind import shared_folder
from e2e.scenarios.load import Load
from e2e.scenarios.manifest import merge
from e2e.scenarios.view import View
from tests.e2e.deployments import deepseek, kimi_k3
from tests.e2e.gateway_traffic import gateways
from tests.e2e.node_power import power_off, power_on
from tests.e2e.node_store import NodeStore, last_words
from tests.e2e.world import World, is_ready, settled

Obj = dict[str, Any]
NAME = "deepseek-v31"
K3 = "kimi-k3"
CLIENTS = 8
PULL_SECONDS = 20  # how long a pull is made to take where something is to happen in the middle of it
SHARD = "model-00001-of-000163.safetensors"


@pytest.fixture(scope="module")
def checkpoints(folders: Folders) -> Path:
    """The folder behind ``pvc://checkpoints``, with a later revision of each model beside the first."""
    folder = shared_folder.checkpoints(folders)
    for name in ("deepseek-v3.1", "kimi-k3"):
        build(name, folder / f"{name}-next", revision=2)
    return folder


def with_model(obj: Obj, checkpoint: str, **weights: Any) -> Obj:
    patch = {"model": {"source": f"pvc://checkpoints/{checkpoint}"}, "weights": weights}
    return merge(obj, {"spec": patch})


def blue(world: World, **weights: Any) -> Obj:
    return with_model(deepseek(world.site, world.namespace), "deepseek-v3.1", **weights)


def green(world: World, **weights: Any) -> Obj:
    return with_model(deepseek(world.site, world.namespace), "deepseek-v3.1-next", **weights)


async def served_afresh(world: World, obj: Obj) -> View:
    """It serves, on nodes that hold nothing of an earlier life of it."""
    if await world.exists(obj["metadata"]["name"]):
        await world.delete(obj["metadata"]["name"])
    return await world.serve(obj)


async def moved(world: World, name: str, before: str) -> View:
    """Wait until another revision than ``before`` serves and has come to rest, whatever stalls on the way."""

    async def so() -> bool:
        view = await world.view(name)
        return settled(view) and view.status.active_revision != before

    await world.poll(so, f"another revision than {before} serves")
    return await world.view(name)


async def workers(world: World) -> set[str]:
    nodes = (await world.kube.list(NODE, labels="nvidia.com/gpu.present=true")).items
    return {node["metadata"]["name"] for node in nodes}


async def manifest(world: World, view: View) -> Manifest:
    return manifest_of(await world.kube.get(CONFIG_MAP, world.namespace, view.status.manifest.name))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def changed_files(folder: Path, name: str) -> dict[str, int]:
    """File → size of what the later revision has otherwise."""
    before, after = folder / name, folder / f"{name}-next"
    return {
        path.name: path.stat().st_size
        for path in after.iterdir()
        if path.read_bytes() != (before / path.name).read_bytes()
    }


async def test_files_arrive_while_the_old_ones_serve_and_a_killed_stager_goes_on_where_it_was(
    world: World, checkpoints: Path, figures: dict[str, str]
) -> None:
    first = (await served_afresh(world, blue(world))).status.active_revision
    engines = await world.uids(NAME)
    rate = str(size_of(checkpoints / "deepseek-v3.1-next") // PULL_SECONDS)
    async with Load(await world.url(NAME), NAME, clients=CLIENTS, max_tokens=16) as load:
        await load.reach(CLIENTS)
        await world.apply(green(world, bandwidthPerNode=rate))
        victim, store = await mid_pull(world)
        world.kill(victim, "stage")
        there = await asyncio.to_thread(store.blobs)
        assert await world.uids(NAME) == engines, "no engine of the new revision before its files"

        async def resumed() -> bool:
            pods = await world.pods(NAME, COMPONENT_STAGER)
            names = {p["metadata"]["name"] for p in pods if p["spec"].get("nodeName") == store.node}
            return bool(names - {victim["metadata"]["name"]})

        await world.poll(resumed, "another stager on that node")
        view = await moved(world, NAME, first)
        await load.reach(load.tally.sent + CLIENTS)
        tally = await load.finish()
    assert (tally.count("failed"), tally.count("broken")) == (0, 0), tally.complaints()
    assert len(tally.by_revision()) == 2
    now = await asyncio.to_thread(store.blobs)
    assert {digest: now.get(digest) for digest in there} == there, "nothing of it was fetched a second time"
    wanted = {file.sha256 for file in (await manifest(world, view)).files}
    assert wanted <= now.keys()
    figures["staged under load, one stager killed"] = (
        f"{tally.sent} requests, {tally.count('failed')} failed, {tally.count('broken')} broken; "
        f"{len(there)} of {len(wanted)} files were kept"
    )


async def test_a_node_that_dies_in_the_middle_of_a_pull_goes_on_where_it_was(
    world: World, checkpoints: Path, figures: dict[str, str]
) -> None:
    """Clients reach engines and gateways of the other nodes only, so nothing excuses a lost request."""
    view = await served_afresh(world, blue(world))
    first = view.status.active_revision
    serving = set(view.nodes(first))
    await gateways_move_to(world, serving)
    engines = await world.uids(NAME)
    rate = str(size_of(checkpoints / "deepseek-v3.1-next") // PULL_SECONDS)
    async with Load(await world.url(NAME), NAME, clients=CLIENTS, max_tokens=16) as load:
        await load.reach(CLIENTS)
        await world.apply(green(world, bandwidthPerNode=rate))
        victim, store = await mid_pull(world)
        assert store.node not in serving
        there = await asyncio.to_thread(store.blobs)
        await power_off(store.node)
        try:
            await load.reach(load.tally.sent + CLIENTS)
            assert await world.uids(NAME) == engines, "no engine of the new revision before its files"
        finally:
            await power_on(world, store.node)
        view = await moved(world, NAME, first)
        await load.reach(load.tally.sent + CLIENTS)
        tally = await load.finish()
    assert (tally.count("failed"), tally.count("broken")) == (0, 0), tally.complaints()
    assert len(tally.by_revision()) == 2
    assert store.node in view.nodes(view.status.active_revision)
    stagers = {pod["metadata"]["uid"]: pod for pod in await world.pods(NAME, COMPONENT_STAGER)}
    again = [p for uid, p in stagers.items() if uid != victim["metadata"]["uid"] and is_on(p, store.node)]
    assert again, "another stager went on there"
    now = await asyncio.to_thread(store.blobs)
    assert {digest: now.get(digest) for digest in there} == there, "nothing of it was fetched a second time"
    wanted = {file.sha256 for file in (await manifest(world, view)).files}
    assert wanted - there.keys() and wanted <= now.keys()
    figures["a node killed in the middle of its pull, under load"] = (
        f"{tally.sent} requests, {tally.count('failed')} failed, {tally.count('broken')} broken; "
        f"{len(there)} of {len(wanted)} files were kept"
    )


def is_on(pod: Obj, node: str) -> bool:
    return bool(pod["spec"].get("nodeName") == node)


async def gateways_move_to(world: World, nodes: set[str]) -> None:
    """Have every gateway pod on one of these nodes, where the scheduler may have put some elsewhere."""
    others = sorted(await workers(world) - nodes)
    await world.kubectl_soon("cordon", *others)
    try:
        for pod in await gateways(world):
            if pod["spec"]["nodeName"] in others:
                await world.kube.delete(POD, world.namespace, pod["metadata"]["name"])

        async def all_there() -> bool:
            pods = await world.pods(NAME, COMPONENT_GATEWAY)
            there = [pod for pod in pods if is_ready(pod) and pod["spec"]["nodeName"] in nodes]
            return len(there) == len(pods) == 2

        await world.poll(all_there, f"both gateway pods serve on {sorted(nodes)}")
    finally:
        await world.kubectl_soon("uncordon", *others)


async def mid_pull(world: World) -> tuple[Obj, NodeStore]:
    """A stager in the middle of its work, and its node's store."""
    found: list[tuple[Obj, NodeStore]] = []

    async def begun() -> bool:
        for pod in await world.pods(NAME, COMPONENT_STAGER):
            if pod["status"].get("phase") == "Running":
                store = NodeStore(pod["spec"]["nodeName"])
                if 20 < len(await asyncio.to_thread(store.blobs)) < 120:
                    found.append((pod, store))
        return bool(found)

    await world.poll(begun, "a pull is under way")
    return found[0]


async def test_going_back_copies_nothing(world: World, checkpoints: Path) -> None:
    first = (await served_afresh(world, blue(world))).status.active_revision
    await world.apply(green(world))
    second = (await moved(world, NAME, first)).status.active_revision
    stores = [NodeStore(node) for node in sorted(await workers(world))]
    before = [store.blobs() for store in stores]
    await world.apply(blue(world))
    view = await moved(world, NAME, second)
    assert view.status.active_revision == first
    assert [store.blobs() for store in stores] == before
    rows = view.staging(first)
    assert {row.bytes_total - row.bytes_reused for row in rows} == {0} and len(rows) == 2


async def test_a_corrupt_file_is_found_and_fetched_again_before_an_engine_starts(world: World) -> None:
    view = await world.serve(blue(world))
    before = view.status.groups[0].incarnation
    pod = await world.rank(NAME, 1)
    store = NodeStore(pod["spec"]["nodeName"])
    digest = store.digest_of(view.status.manifest.view_digest, SHARD)
    store.corrupt(digest)
    assert not store.is_right(digest)
    await world.kube.delete(POD, world.namespace, pod["metadata"]["name"])
    await world.until(
        NAME, lambda v: settled(v) and v.status.groups[0].incarnation > before, "it serves again"
    )
    assert store.is_right(digest) and f"{digest}.bad" in store.trash()
    words = last_words(await world.rank(NAME, 1), "stage")
    assert words["bytesTotal"] - words["bytesReused"] == store.blobs()[digest].size, "that file and no other"
    assert (await world.answers(NAME, NAME)).status_code == 200


async def test_a_full_disk_blocks_the_new_revision_only_until_there_is_room(
    world: World, checkpoints: Path
) -> None:
    view = await served_afresh(world, blue(world))
    first, engines = view.status.active_revision, await world.uids(NAME)
    free = sorted(await workers(world) - set(view.nodes(first)))
    store = NodeStore(free[0])
    with store.on_a_disk_of("1m"):
        await world.apply(green(world))

        async def blocked() -> bool:
            condition = (await world.view(NAME)).status.condition("Stalled")
            return condition is not None and condition.reason == "InsufficientDisk"

        await world.poll(blocked, "the full disk is told")
        view = await world.view(NAME)
        said = re.search(rf"{store.node}: INSUFFICIENT_DISK: .*: (\d+) too few", view.stalled)
        assert said, view.stalled
        assert 0 < int(said[1]) < size_of(checkpoints / "deepseek-v3.1-next")
        assert f"revision {first} keeps serving" in view.stalled
        phases = {row.node: row.phase for row in view.status.staging}
        assert phases[store.node] == "Blocked"
        assert await world.uids(NAME) == engines and view.holds("Ready")
        assert (await world.answers(NAME, NAME)).status_code == 200
        store.grow_disk("64m")
        view = await moved(world, NAME, first)
        assert set(view.nodes(view.status.active_revision)) == set(free[:2]) and not view.stalled
        await world.delete(NAME)  # before its disk goes


async def test_a_revision_with_four_of_93_layers_changed_costs_those_four_files(
    world: World, checkpoints: Path, figures: dict[str, str]
) -> None:
    """K3 takes every GPU there is, so its group ends before the next one's files come to the same nodes."""
    obj = kimi_k3(world.site, world.namespace)
    first = (await served_afresh(world, obj)).status.active_revision
    stores = [NodeStore(node) for node in sorted(await workers(world))]
    before = [store.blobs() for store in stores]
    nothing, later = {"spec": {"replicas": 0}}, with_model(obj, f"{K3}-next")
    await world.apply(merge(obj, nothing))

    async def ended() -> bool:
        return not await world.pods(K3)

    await world.poll(ended, "its engines are gone")
    await world.apply(merge(later, nothing))
    await world.until(K3, lambda v: v.status.active_revision != first, "the next revision will start")
    await world.apply(later)
    view = await moved(world, K3, first)
    changed = changed_files(checkpoints, K3)
    assert len(changed) == 4
    digests = {file.sha256 for file in (await manifest(world, view)).files if file.path in changed}
    for store, old in zip(stores, before, strict=True):
        now = store.blobs()
        assert {digest for digest, blob in now.items() if old.get(digest) != blob} == digests
    rows = view.staging(view.status.active_revision)
    assert [row.bytes_total - row.bytes_reused for row in rows] == [sum(changed.values())] * 4
    figures["K3, 4 of 93 layers changed"] = (
        f"{sum(changed.values())} of {rows[0].bytes_total} bytes copied per node"
    )


async def test_what_nothing_needs_is_freed_and_nothing_else(world: World, checkpoints: Path) -> None:
    view = await served_afresh(world, blue(world, retainRevisions=0))
    first = view.status.active_revision
    orphan = "0f" * 32
    for node in view.nodes(first):
        NodeStore(node).plant(orphan, 1000)
    await world.apply(green(world, retainRevisions=0))
    view = await moved(world, NAME, first)
    kept, digest = await manifest(world, view), view.status.manifest.view_digest

    async def collected() -> bool:
        stores = (await world.view(NAME)).status.stores
        return not await world.pods(NAME, COMPONENT_COLLECTOR) and {
            tuple(store.views) for store in stores
        } == {(digest,)}

    await world.poll(collected, "the old revision's files are freed")
    serving = set(view.nodes(view.status.active_revision))
    for node in await workers(world):
        store = NodeStore(node)
        assert store.views() == ({digest} if node in serving else set())
        assert store.blobs().keys() == ({file.sha256 for file in kept.files} if node in serving else set())
    await world.delete(NAME)
    assert not any(NodeStore(node).blobs() for node in serving), "with a deployment go its files"
