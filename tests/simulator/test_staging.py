"""Files reach nodes before GPUs are taken, in turns, from each other, and leave when nobody needs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from moe_operator.api.manifest import Manifest, ManifestFile, WeightSummary
from moe_operator.api.policy import OperatorPolicy, SourceLimit, Staging
from moe_operator.runtime.kube import CONTROLLER_REVISION, JOB, NODE, POD
from moe_operator.sandbox import nodes

from tests.simulator.scenes import DSV31, fresh_world, serving, serving_world
from tests.simulator.world import EverythingGoes, World, facts, moe_deployment

Obj = dict[str, Any]
GREEN = "https://models.example/dsv31-next"
SHARD = 10_000_000_000
STAGER = "app.kubernetes.io/component=stager"
SEEDER = "app.kubernetes.io/component=seeder"


def layered(source: str, changed: tuple[int, ...] = (), shards: int = 61) -> Manifest:
    """DeepSeek V3.1 with one layer in each shard; ``changed`` shards have other bytes than the plain one."""
    config = facts(source, "deepseek-v3.1", 1).config
    files = [
        ManifestFile(
            path=f"model-{i:05d}.safetensors",
            size=SHARD,
            sha256=f"{i + (1000 if i in changed else 0):064x}",
            layers=(i, i),
            outside=i in {0, shards - 1},
        )
        for i in range(shards)
    ]
    summary = WeightSummary(tensors=shards, total_bytes=shards * SHARD, shards=shards)
    return Manifest(source=source, resolved="1", files=files, config=config, weights=summary)


def stagers(world: World) -> list[Obj]:
    return list(world.api.list(JOB, labels=STAGER).items)


def is_over(job: Obj) -> bool:
    return any(c["type"] in {"Complete", "Failed"} for c in job.get("status", {}).get("conditions") or ())


def under_way(world: World, *, from_peers: bool) -> int:
    jobs = [job for job in stagers(world) if not is_over(job)]
    return sum(("moe-operator.io/from-peers" in j["metadata"]["annotations"]) is from_peers for j in jobs)


def rows(world: World, name: str = "k3") -> dict[str, Obj]:
    return {row["node"]: row for row in world.status(name).get("staging") or ()}


def views(world: World, node: str) -> set[str]:
    return set(world.kubelet.stores.disk(node).views)


def model(source: str) -> Callable[[Obj], None]:
    return lambda spec: spec["model"].update(source=source)


def active(world: World) -> str:
    return str(world.status("k3").get("activeRevision", ""))


def moved(world: World, before: str) -> Callable[[], bool]:
    return lambda: world.stable("k3") and active(world) != before


async def no_pod_before_its_files(world: World, done: Callable[[], bool], steps: int = 300) -> None:
    """Steps until ``done``; an engine pod exists only where its whole group's nodes hold its files."""
    for _ in range(steps):
        if done():
            return
        await world.step()
        placed = {(p["revision"], p["replica"]): p for p in world.status("k3").get("placement") or ()}
        for pod in world.engine_pods("k3"):
            labels = pod["metadata"]["labels"]
            key = (labels["moe-operator.io/revision"], int(labels["moe-operator.io/replica"]))
            for rank in placed.get(key, {}).get("ranks", ()):
                needed = view_of(world, key[0], rank["rank"])
                assert needed in views(world, rank["node"]), f"{pod['metadata']['name']} before its files"
    raise AssertionError("not reached")


def view_of(world: World, revision: str, rank: int) -> str:
    """The files that a rank needs, by the record of its revision."""
    [record] = world.api.list(CONTROLLER_REVISION, labels=f"moe-operator.io/revision={revision}").items
    by_rank = record["data"].get("rankFiles")
    return str(by_rank[rank]["view"] if by_rank else record["data"]["view"])


# Before any GPU is taken


async def test_every_node_of_a_group_is_verified_before_its_first_pod_exists(fresh: World) -> None:
    fresh.kubelet.slow["h20-1"] = 20.0
    await fresh.apply(moe_deployment())
    await no_pod_before_its_files(fresh, lambda: fresh.stable("k3"))
    assert not fresh.kubelet.stores.late, "the engines' own stagers had nothing left to do"
    assert fresh.condition("k3", "WeightsStaged")["reason"] == "Staged"


async def test_files_stay_when_their_revision_is_replaced_while_nothing_runs(served: World) -> None:
    """It is the way back, and most of it is in the next revision, too."""
    served.kubelet.manifests[GREEN] = layered(GREEN)
    old, nodes = active(served), {r["node"] for r in served.status("k3")["placement"][0]["ranks"]}
    view = view_of(served, old, 0)
    await served.edit("k3", lambda s: s.update(replicas=0))
    await served.until(lambda: not served.engine_pods("k3") and served.stable("k3"))
    await served.edit("k3", model(GREEN))
    await served.until(moved(served, old))
    await served.settle()
    assert all(view in views(served, node) for node in nodes)


async def test_the_new_files_arrive_while_the_old_revision_serves(served: World) -> None:
    served.kubelet.manifests[GREEN] = layered(GREEN)
    served.kubelet.slow |= {f"h20-{n}": 30.0 for n in range(4)}
    old, before = active(served), served.pods_of("k3", active(served))
    await served.edit("k3", model(GREEN))
    await served.until(lambda: served.status("k3")["rollout"]["phase"] == "Staging")
    for _ in range(10):
        await served.step()
        assert served.pods_of("k3", old) == before and served.is_ready("k3")
        assert not [
            p for p in served.engine_pods() if p["metadata"]["labels"]["moe-operator.io/revision"] != old
        ]
    assert served.condition("k3", "Progressing")["reason"] == "Staging"
    await no_pod_before_its_files(served, moved(served, old))


async def test_staging_asks_for_no_gpu_so_full_nodes_are_no_obstacle() -> None:
    world = await serving_world("h20-4x8")
    await world.apply(moe_deployment("other"))
    await world.until(lambda: world.stable("other"))
    pods = [p for p in world.kubelet.pods() if "stage" in p["metadata"]["name"]]
    assert len(pods) == 4
    assert not any("nvidia.com/gpu" in str(p["spec"]["containers"][0]["resources"]) for p in pods)


async def test_only_changed_files_are_copied_and_none_for_another_image() -> None:
    world = await fresh_world("h20-4x8")
    world.kubelet.manifests |= {DSV31: layered(DSV31), GREEN: layered(GREEN, changed=(3, 4, 5, 6))}
    await serving(world)
    assert world.kubelet.stores.origin == {DSV31: 61 * SHARD}, "two nodes, one copy from the source"
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await world.until(moved(world, active(world)))
    assert world.kubelet.stores.origin == {DSV31: 61 * SHARD}, "the old revision's nodes had it all"
    await world.edit("k3", model(GREEN))
    await world.until(moved(world, active(world)))
    assert world.kubelet.stores.origin == {DSV31: 61 * SHARD, GREEN: 4 * SHARD}


async def test_going_back_copies_nothing(served: World) -> None:
    served.kubelet.manifests[GREEN] = layered(GREEN)
    first = active(served)
    await served.edit("k3", model(GREEN))
    await served.until(moved(served, first))
    await served.settle()
    stores = served.kubelet.stores
    before = stores.from_peers, stores.origin.copy()
    await served.edit("k3", model(DSV31))
    await served.until(lambda: served.stable("k3") and active(served) == first)
    assert (stores.from_peers, stores.origin) == before
    assert {row["bytesReused"] == row["bytesTotal"] for row in rows(served).values()} == {True}


# Turns


async def three_deployments(limit: int, policy: OperatorPolicy | None = None) -> World:
    world = await World("h20-8x8", admission=EverythingGoes(), policy=policy or OperatorPolicy()).build()
    for name in ("a", "b", "c"):
        source = f"https://models.example/{name}"
        world.kubelet.manifests[source] = facts(source, "deepseek-v3.1", 688_000_000_000)
        weights = {"maxConcurrentNodes": limit}
        await world.apply(moe_deployment(name, model={"source": source}, weights=weights))
    return world


@pytest.mark.parametrize("limit", [1, 2])
async def test_three_deployments_together_never_exceed_the_limit_of_a_source(limit: int) -> None:
    world = await three_deployments(limit)
    world.kubelet.slow |= {f"h20-{n}": 7.0 for n in range(8)}
    most, began = 0, []
    for _ in range(150):
        await world.step()
        most = max(most, under_way(world, from_peers=False))
        began += [j["metadata"]["name"][0] for j in stagers(world) if j["metadata"]["name"][0] not in began]
        if all(world.stable(n) for n in "abc"):
            break
    assert all(world.stable(n) for n in "abc")
    assert most == limit
    assert sum(world.kubelet.stores.origin.values()) == 3 * 688_000_000_000, "each model once"


async def test_nobody_gets_a_second_turn_before_everybody_had_a_first() -> None:
    world = await three_deployments(1, OperatorPolicy(staging=Staging(peers=False)))
    world.kubelet.slow |= {f"h20-{n}": 5.0 for n in range(8)}
    order: list[str] = []
    for _ in range(200):
        await world.step()
        seen = sorted(stagers(world), key=lambda j: j["metadata"]["creationTimestamp"])
        order = [j["metadata"]["name"][0] for j in seen]
        if all(world.stable(n) for n in "abc"):
            break
    assert len(order) == 6 and set(order[:3]) == {"a", "b", "c"} == set(order[3:])


async def test_the_admins_limit_and_share_go_before_the_tenants() -> None:
    limits = {"models.example": SourceLimit(max_concurrent_nodes=2, bytes_per_second=1000)}
    policy = OperatorPolicy(staging=Staging(source_limits=limits))
    world = await three_deployments(8, policy)
    world.kubelet.slow |= {f"h20-{n}": 5.0 for n in range(8)}
    most = 0
    for _ in range(60):
        await world.step()
        most = max(most, under_way(world, from_peers=False))
    assert most == 2
    args = [j["spec"]["template"]["spec"]["containers"][0]["args"] for j in stagers(world)]
    assert {a[a.index("--bandwidth") + 1] for a in args} == {"500"}


async def test_who_waits_for_a_turn_says_so() -> None:
    world = await three_deployments(1)
    world.kubelet.slow |= {f"h20-{n}": 1000.0 for n in range(8)}
    for _ in range(20):
        await world.step()
    waiting = [n for n in "abc" if world.condition(n, "WeightsStaged")["reason"] == "WaitingForSource"]
    assert len(waiting) == 2
    said = world.condition(waiting[0], "WeightsStaged")["message"]
    assert "waits for its turn at models.example" in said
    assert {row["phase"] for row in rows(world, waiting[0]).values()} == {"Waiting"}
    for name in "abc":
        await world.edit(name, lambda s: s["weights"].update(maxConcurrentNodes=3, bandwidthPerNode="1Mi"))
    await world.until(lambda: under_way(world, from_peers=False) == 3)
    [newest, *_] = sorted(stagers(world), key=lambda j: j["metadata"]["creationTimestamp"], reverse=True)
    assert "1048576" in newest["spec"]["template"]["spec"]["containers"][0]["args"], (
        "an edit is heard at once"
    )


# Peers


async def test_later_nodes_copy_from_earlier_ones_and_servers_go_when_all_is_done(fresh: World) -> None:
    accelerators = {"product": "NVIDIA-H20", "nodes": 4}
    await fresh.apply(moe_deployment(accelerators=accelerators, weights={"maxConcurrentNodes": 1}))
    fanned = 0
    for _ in range(100):
        await fresh.step()
        fanned = max(fanned, under_way(fresh, from_peers=True))
        if fresh.stable("k3"):
            break
    assert fanned >= 2, "a node that holds the files feeds several, whatever the source's limit"
    stores = fresh.kubelet.stores
    assert stores.origin == {DSV31: 688_000_000_000} and stores.from_peers == 3 * 688_000_000_000
    await fresh.settle()
    assert not fresh.api.list(POD, labels=SEEDER).items
    peers = {row["node"]: row.get("bytesFromPeers", 0) for row in rows(fresh).values()}
    assert sorted(peers.values()) == [0, *[688_000_000_000] * 3]


async def test_servers_that_never_come_up_are_done_without(fresh: World) -> None:
    fresh.kubelet.seeders_boot = False
    await fresh.apply(moe_deployment())
    await fresh.until(lambda: fresh.stable("k3"))
    assert fresh.kubelet.stores.origin == {DSV31: 2 * 688_000_000_000}


async def test_without_peers_nobody_serves_files() -> None:
    world = await World("h20-4x8", policy=OperatorPolicy(staging=Staging(peers=False))).build()
    world.kubelet.manifests[DSV31] = facts(DSV31, "deepseek-v3.1", 688_000_000_000)
    await world.apply(moe_deployment())
    for _ in range(60):
        await world.step()
        assert not world.api.list(POD, labels=SEEDER).items
    assert world.stable("k3")


# Trouble


async def test_a_full_disk_blocks_only_the_new_revision_and_staging_goes_on_when_there_is_room(
    served: World,
) -> None:
    served.kubelet.manifests[GREEN] = layered(GREEN)
    old, before = active(served), served.pods_of("k3", active(served))
    served.kubelet.stores.capacity |= {f"h20-{n}": 700_000_000_000 for n in range(4)}
    served.kubelet.stores.capacity["h20-3"] = 600_000_000_000
    await served.edit("k3", model(GREEN))
    await served.until(lambda: served.condition("k3", "Stalled").get("status") == "True")
    stalled = served.condition("k3", "Stalled")
    assert stalled["reason"] == "InsufficientDisk"
    assert "h20-3" in stalled["message"] and "10000000000 bytes too few" in stalled["message"]
    assert f"revision {old} keeps serving" in stalled["message"]
    assert rows(served)["h20-3"]["phase"] == "Blocked" and rows(served)["h20-2"]["phase"] == "Ready"
    statuses = served.kube.log
    seen = len([w for w in statuses if w.verb == "apply_status"])
    for _ in range(200):
        await served.step()
    assert len([w for w in statuses if w.verb == "apply_status"]) == seen, "a recheck is no news"
    assert served.pods_of("k3", old) == before and served.is_ready("k3")
    del served.kubelet.stores.capacity["h20-3"]
    await served.until(moved(served, old))
    assert not served.condition("k3", "Stalled")


async def test_a_disk_that_is_not_mounted_is_waited_for(fresh: World) -> None:
    fresh.kubelet.stores.unmounted.add("h20-0")
    await fresh.apply(moe_deployment())
    await fresh.until(lambda: fresh.condition("k3", "Stalled").get("reason") == "StoreUnusable")
    assert not fresh.engine_pods()
    fresh.kubelet.stores.unmounted.clear()
    await fresh.until(lambda: fresh.stable("k3"))


async def test_a_disk_that_goes_away_under_a_group_is_waited_for_and_costs_one_restart(served: World) -> None:
    victim = served.engine_pods()[1]
    node = victim["spec"]["nodeName"]
    served.kubelet.stores.unmounted.add(node)
    served.kubelet.kill(victim)
    await served.until(lambda: served.condition("k3", "Stalled").get("reason") == "StoreUnusable")
    assert rows(served)[node]["phase"] == "Blocked" and not served.engine_pods()
    for _ in range(200):
        await served.step(5.0)
    group = served.group("k3", active(served))
    assert (group["phase"], group["restarts"]) == ("Restarting", 2), "one for the rank, one for the disk"
    served.kubelet.stores.unmounted.clear()
    await served.until(lambda: served.stable("k3"))
    assert not served.condition("k3", "Stalled")


async def killed(world: World, pod: Obj) -> None:
    world.kubelet.kill(pod)


async def evicted(world: World, pod: Obj) -> None:
    await world.user.delete(POD, "default", pod["metadata"]["name"])


@pytest.mark.parametrize("end", [killed, evicted])
async def test_a_stager_that_dies_midway_is_followed_by_one_that_goes_on_from_there(
    end: Callable[[World, Obj], Awaitable[None]],
) -> None:
    world = await fresh_world()
    world.policy = OperatorPolicy(staging=Staging(peers=False))
    world.kubelet.manifests[DSV31] = layered(DSV31)
    world.kubelet.slow |= {"h20-0": 10.0, "h20-1": 10.0}
    await world.apply(moe_deployment())
    disk = world.kubelet.stores.disk("h20-0")
    await world.until(lambda: 20 < len(disk.blobs) < 61)
    [victim] = [p for p in world.kubelet.pods() if is_stager(p) and p["spec"]["nodeName"] == "h20-0"]
    await end(world, victim)
    await world.step()
    assert not disk.views and not world.engine_pods()
    await no_pod_before_its_files(world, lambda: world.stable("k3"))
    assert world.kubelet.stores.origin == {DSV31: 2 * 61 * SHARD}, "each node pulled each byte once"
    assert not world.condition("k3", "Stalled")


def is_stager(pod: Obj) -> bool:
    return bool(pod["metadata"]["labels"].get("app.kubernetes.io/component") == "stager")


CORRUPT = {"code": 30, "reason": "CHECKSUM_MISMATCH", "message": "model-00001 twice the same wrong bytes"}


async def test_a_corrupt_source_is_not_asked_again_until_somebody_says_so(served: World) -> None:
    served.kubelet.manifests[GREEN] = layered(GREEN)
    served.kubelet.altered[GREEN] = CORRUPT
    old, before = active(served), served.pods_of("k3", active(served))
    await served.edit("k3", model(GREEN))
    await served.until(lambda: served.condition("k3", "Stalled").get("reason") == "ChecksumMismatch")
    await served.settle()
    writes = served.kube.writes
    for _ in range(100):
        await served.step(5.0)
    assert served.kube.writes == writes, "no retry storm"
    assert served.pods_of("k3", old) == before and served.is_ready("k3")
    served.kubelet.altered.clear()
    await served.annotate("k3", "moe-operator.io/retry", "repaired")
    await served.until(moved(served, old))
    assert served.status("k3")["rollout"]["lastCommand"] == "retry=repaired"


async def test_a_source_that_does_not_answer_is_tried_again(fresh: World) -> None:
    away = {"code": 40, "reason": "NETWORK", "message": "no answer"}
    fresh.kubelet.altered[DSV31] = away
    await fresh.apply(moe_deployment())
    await fresh.until(lambda: fresh.condition("k3", "WeightsStaged").get("reason") == "SourceUnreachable")
    assert {row["phase"] for row in rows(fresh).values()} & {"Retrying"}
    assert not fresh.condition("k3", "Stalled")
    fresh.kubelet.altered.clear()
    await fresh.until(lambda: fresh.stable("k3"), seconds=10.0)


async def test_each_step_of_staging_is_told_once(fresh: World) -> None:
    fresh.kubelet.stores.unmounted.add("h20-0")
    await fresh.apply(moe_deployment())
    await fresh.until(lambda: bool(fresh.condition("k3", "Stalled")))
    fresh.kubelet.stores.unmounted.clear()
    await fresh.until(lambda: fresh.stable("k3"))
    told = [w.object["reason"] for w in fresh.kube.log if w.kind == "Event"]
    assert [told.count(reason) for reason in ("Staging", "StoreUnusable", "Staged")] == [1, 1, 1]


# Nodes


async def test_a_node_that_came_back_with_an_empty_disk_is_staged_again(served: World) -> None:
    victim = served.engine_pods()[1]["spec"]["nodeName"]
    await served.user.delete(NODE, None, victim)
    for pod in served.kubelet.pods():
        if pod["spec"].get("nodeName") == victim:
            await served.user.delete(POD, "default", pod["metadata"]["name"], grace_seconds=0)
    for node in nodes.build_nodes("h20-4x8"):
        await served.user.apply(node, manager="kubelet")
    await nodes.heartbeat(served.user, served.now, lambda name: "10.1.0.1")
    assert not views(served, victim)
    await no_pod_before_its_files(
        served, lambda: served.group("k3", active(served)).get("incarnation") == 1 and served.stable("k3")
    )
    uid = served.api.get(NODE, None, victim)["metadata"]["uid"]
    ranks = {r["node"]: r["nodeUID"] for r in served.status("k3")["placement"][0]["ranks"]}
    assert ranks[victim] == uid and not served.kubelet.stores.late


# Freeing


async def test_a_node_keeps_what_serves_and_one_way_back_and_nothing_else() -> None:
    world = await fresh_world("h20-4x8")
    sources = [f"https://models.example/{n}" for n in range(4)]
    for number, source in enumerate(sources):
        world.kubelet.manifests[source] = layered(source, changed=(number + 1,))
    await serving(world, model={"source": sources[0]})
    for source in sources[1:]:
        await world.edit("k3", model(source))
        await world.until(moved(world, active(world)))
        await world.settle()
    await world.until(lambda: not world.api.list(JOB, labels="app.kubernetes.io/component=collector").items)
    kept = {view for node in range(4) for view in views(world, f"h20-{node}")}
    recorded = {v for store in world.status("k3")["stores"] for v in store["views"]}
    assert kept == recorded and len(kept) == 2
    for node in range(4):
        disk = world.kubelet.stores.disk(f"h20-{node}")
        assert set(disk.blobs) == {sha for blobs in disk.views.values() for sha in blobs}


async def test_a_collector_spares_the_files_of_every_other_deployment() -> None:
    world = await fresh_world("h20-4x8")
    world.kubelet.manifests[GREEN] = layered(GREEN)
    half = {"product": "NVIDIA-H20", "nodes": 2, "gpusPerNode": 4}
    await serving(
        world, model={"source": "https://models.example/dsv31"}, accelerators={**half, "gpusPerNode": 8}
    )
    shared = [p["spec"]["nodeName"] for p in world.engine_pods("k3")]
    await world.apply(moe_deployment("other", model={"source": GREEN}))
    await world.until(lambda: world.stable("other"))
    theirs = {n: views(world, n) for n in (f"h20-{i}" for i in range(4)) if n not in shared}
    world.kubelet.stores.disk(shared[0]).views["f" * 64] = {"e" * 64}  # nobody's
    world.kubelet.stores.disk(shared[0]).blobs["e" * 64] = 1
    await world.step(25 * 3600.0)
    await world.until(lambda: "f" * 64 not in views(world, shared[0]))
    assert {n: views(world, n) for n in theirs} == theirs
    assert views(world, shared[0]), "what serves stays"


async def test_a_deleted_deployment_leaves_nothing_on_the_disks(served: World) -> None:
    assert any(views(served, f"h20-{n}") for n in range(4))
    await served.delete("k3")
    await served.until(lambda: not served.exists("k3"))
    assert not any(views(served, f"h20-{n}") for n in range(4))


async def test_no_store_is_filled_and_freed_at_the_same_time() -> None:
    world = await fresh_world("h20-4x8")
    sources = [f"https://models.example/{n}" for n in range(4)]
    for number, source in enumerate(sources):
        world.kubelet.manifests[source] = layered(source, changed=(number + 1,))
    await serving(world, model={"source": sources[0]}, weights={"retainRevisions": 0})
    for source in sources[1:]:
        await world.edit("k3", model(source))
        for _ in range(60):
            await world.step()
            busy = [
                j["metadata"]["annotations"]["moe-operator.io/node"]
                for j in world.api.list(JOB).items
                if not is_over(j) and "moe-operator.io/node" in j["metadata"].get("annotations", {})
            ]
            assert len(busy) == len(set(busy))
    await world.settle()
    assert len({v for n in range(4) for v in views(world, f"h20-{n}")}) == 1


# Parts of a model


async def test_with_pipeline_stages_each_node_gets_the_layers_of_its_stages_only() -> None:
    world = await fresh_world("h20-4x8")
    world.kubelet.manifests[DSV31] = layered(DSV31)
    parallelism = {"tensor": 8, "pipeline": 2, "data": 1, "expert": False}
    await world.apply(moe_deployment(parallelism=parallelism, weights={"selection": "PerRank"}))
    await no_pod_before_its_files(world, lambda: world.stable("k3"))
    ranks = world.status("k3")["placement"][0]["ranks"]
    held = [set(world.kubelet.stores.disk(r["node"]).blobs) for r in ranks]
    assert [len(h) for h in held] == [32, 31], "layers 0–30 and the head's shard; 31–60 and the embedding's"
    assert len(held[0] | held[1]) == 61 and len(held[0] & held[1]) == 2
    paths = {
        next(a for a in p["spec"]["containers"][0]["args"] if "/views/" in a) for p in world.engine_pods()
    }
    assert len(paths) == 2
    await world.settle()


async def test_a_selection_that_is_not_safe_is_refused_with_its_code(fresh: World) -> None:
    engine = {"type": "vLLM", "image": "vllm:blue", "expertBalancing": {"enabled": True}}
    await fresh.apply(moe_deployment(engine=engine, weights={"selection": "PerRank"}))
    await fresh.until(lambda: fresh.condition("k3", "PlanAccepted").get("status") == "False")
    assert [r["code"] for r in fresh.status("k3")["plan"]["refusals"]] == ["PER_RANK_EXPERT_BALANCING"]
    assert not fresh.engine_pods() and not stagers(fresh)
