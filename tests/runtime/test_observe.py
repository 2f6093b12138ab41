from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from moe_operator.api.intent import Ack
from moe_operator.api.manifest import Manifest, StageProgress
from moe_operator.api.policy import OperatorPolicy
from moe_operator.reconcile.snapshot import (
    GatewayProbe,
    LeaderProbe,
    ResolverProbe,
    Snapshot,
    Wants,
)
from moe_operator.runtime.kube import INFERENCE_POOL, MOE_DEPLOYMENT, NAMESPACE, ApiError, Obj
from moe_operator.runtime.observe import CHILD_KINDS, Observer, Overtaken
from moe_operator.runtime.wakeups import Key

from tests.gateway_api import published_crd
from tests.runtime.world import World, config_map, controlled_by, deployment, memory_api, never, node, pod

KIMI = Key("default", "kimi")
MANIFEST = Manifest(source="https://models.example/kimi", files=[])


@dataclass
class Answers:
    """Pods that answer from memory and note what they were asked."""

    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def resolver(self, ip: str) -> ResolverProbe:
        self.asked.append(("resolver", ip))
        return ResolverProbe(manifest=MANIFEST)

    async def progress(self, ip: str) -> StageProgress | None:
        self.asked.append(("progress", ip))
        return StageProgress(phase="Pulling") if ip == "10.0.0.1" else None

    async def leader(self, ip: str, *, completion_of: str = "") -> LeaderProbe:
        self.asked.append(("leader", ip, completion_of))
        return LeaderProbe(healthy=True)

    async def gateway(self, pod: str, ip: str, *, wait_generation: int = -1) -> GatewayProbe:
        self.asked.append(("gateway", pod, ip, str(wait_generation)))
        return GatewayProbe(pod, Ack(generation=wait_generation))


@dataclass
class Bench:
    world: World = field(default_factory=World)
    answers: Answers = field(default_factory=Answers)

    overtaken: Callable[[Key], Awaitable[None]] = never

    def observer(self, wants: Callable[[Snapshot], Wants] = lambda _: Wants()) -> Observer:
        return Observer(
            self.world.kube,
            self.answers,
            now=lambda: 1234.5,
            policy=OperatorPolicy(),
            wants=wants,
            overtaken=self.overtaken,
            operator_version="9",
        )

    async def see(self, wants: Wants | None = None) -> Snapshot:
        self.world.calls.clear()
        async with self.observer(lambda _: wants or Wants()).observed(KIMI, "503 Unavailable: away") as seen:
            assert seen is not None
            return seen


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_deployment_that_does_not_exist_is_none(bench: Bench) -> None:
    async with bench.observer().observed(KIMI) as seen:
        assert seen is None


async def test_the_snapshot_holds_our_children_and_nobody_elses(bench: Bench) -> None:
    ours = bench.world.add(deployment())
    other = bench.world.add(deployment("other"))
    mine = bench.world.add(config_map("mine", ours))
    bench.world.add(config_map("others", other))
    bench.world.add(config_map("nobodys"))
    bench.world.add(config_map("other-label", ours, deployment="other"))
    seen = await bench.see()
    assert seen.object == ours
    assert seen.children["ConfigMap"] == (mine,)
    assert set(seen.children) == {kind.kind for kind in CHILD_KINDS}
    assert all(found == () for kind, found in seen.children.items() if kind != "ConfigMap")
    assert (seen.now, seen.last_error, seen.operator_version) == (1234.5, "503 Unavailable: away", "9")


def pool(name: str, owner: Obj | None = None) -> Obj:
    picker = {"name": "picker", "port": {"number": 9002}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [{"number": 8000}]}
    meta = {"name": name, "namespace": "default"}
    owned = {"ownerReferences": controlled_by(owner)} if owner else {}
    kind = {"apiVersion": INFERENCE_POOL.api_version, "kind": INFERENCE_POOL.kind}
    return {**kind, "metadata": {**meta, **owned}, "spec": {**spec, "endpointPickerRef": picker}}


async def test_of_kinds_that_a_cluster_may_lack_the_names_of_others_are_known(bench: Bench) -> None:
    ours, other = bench.world.add(deployment()), bench.world.add(deployment("other"))
    bench.world.add(published_crd(INFERENCE_POOL))
    mine = bench.world.add(pool("mine", ours))
    bench.world.add(pool("others", other))
    bench.world.add(pool("nobodys"))
    seen = await bench.see()
    assert seen.children[INFERENCE_POOL.kind] == (mine,)
    assert seen.taken == {INFERENCE_POOL.kind: {"others", "nobodys"}}


@pytest.fixture
def uncollected() -> Bench:
    """Between a deletion and the garbage collector's work."""
    return Bench(World(memory_api(collects_garbage=False)))


async def test_pods_are_ours_by_owner_or_by_an_owner_that_is_ours(uncollected: Bench) -> None:
    bench = uncollected
    ours = bench.world.add(deployment())
    predecessor = {**ours, "metadata": {**ours["metadata"], "uid": "deleted-last-week"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "resolve", "uid": "j"}}
    kept = [bench.world.add(pod("engine", ours)), bench.world.add(pod("resolve-x", job))]
    leftover = pod("engine-old")
    leftover["metadata"]["ownerReferences"] = controlled_by(predecessor)
    bench.world.add(leftover)
    bench.world.add(pod("elsewhere", ours, deployment="other"))
    assert (await bench.see()).pods == tuple(kept)


async def test_without_wants_neither_cluster_nor_pods_are_asked(bench: Bench) -> None:
    bench.world.add(deployment())
    seen = await bench.see()
    assert bench.answers.asked == []
    assert bench.world.reads["Node"] == 0
    assert bench.world.reads["Pod"] == 1
    assert seen.cluster is None
    assert bench.world.writes == []


async def test_wants_sees_the_children(bench: Bench) -> None:
    ours = bench.world.add(deployment())
    bench.world.add(pod("engine", ours))
    shown: list[Snapshot] = []

    def wants(seen: Snapshot) -> Wants:
        shown.append(seen)
        return Wants()

    async with bench.observer(wants).observed(KIMI):
        pass
    assert [p["metadata"]["name"] for p in shown[0].pods] == ["engine"]


async def test_every_pod_is_asked_what_was_wanted(bench: Bench) -> None:
    bench.world.add(deployment())
    seen = await bench.see(
        Wants(
            resolver_pod_ip="10.0.0.9",
            stager_pods={"a": "10.0.0.1", "b": "10.0.0.2"},
            leaders={"l0": "10.0.0.3", "l1": "10.0.0.4"},
            completions={"l1": "kimi"},
            gateway_pods={"g": "10.0.0.5"},
            ack_generation=7,
        )
    )
    assert sorted(bench.answers.asked) == [
        ("gateway", "g", "10.0.0.5", "7"),
        ("leader", "10.0.0.3", ""),
        ("leader", "10.0.0.4", "kimi"),
        ("progress", "10.0.0.1"),
        ("progress", "10.0.0.2"),
        ("resolver", "10.0.0.9"),
    ]
    assert seen.resolver == ResolverProbe(manifest=MANIFEST)
    assert seen.stagers == {"a": StageProgress(phase="Pulling")}  # b said nothing
    assert seen.leaders == {"l0": LeaderProbe(healthy=True), "l1": LeaderProbe(healthy=True)}
    assert seen.gateways == (GatewayProbe("g", Ack(generation=7)),)


def warning(uid: str, message: str, at: str, kind: str = "Warning") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{uid}.{message}", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "uid": uid},
        "type": kind,
        "reason": "FailedMount",
        "message": message,
        "lastTimestamp": at,
    }


async def test_the_newest_warning_about_a_pod_that_waits_silently_is_brought_along(bench: Bench) -> None:
    bench.world.add(deployment())
    for event in (
        warning("u1", "new", "2026-11-30T00:00:09Z"),
        warning("u1", "old", "2026-11-30T00:00:01Z"),
        warning("u1", "newer-but-normal", "2026-11-30T00:00:20Z", "Normal"),
        warning("u2", "not-asked", "2026-11-30T00:00:09Z"),
    ):
        bench.world.add(event)
    seen = await bench.see(Wants(complaints=frozenset({"u1", "u3"})))
    assert seen.complaints == {"u1": "FailedMount: new"}
    assert (await bench.see(Wants())).complaints == {}


async def test_the_cluster_counts_everybodys_pods_and_promises(bench: Bench) -> None:
    bench.world.add(deployment())
    for name in ("n1", "n2", "n3"):
        bench.world.add(node(name))
    bench.world.add(node("control-plane", gpus=0))
    bench.world.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    bench.world.add(pod("training", gpus=3, node="n1", namespace="team"))
    neighbour = bench.world.add(deployment("neighbour", "team"))
    placement = {"revision": "r", "replica": 0, "ranks": [{"rank": 0, "node": "n3"}], "gpusPerNode": 8}
    bench.world.api.apply(
        {
            **{k: neighbour[k] for k in ("apiVersion", "kind")},
            "metadata": {"name": "neighbour", "namespace": "team"},
            "status": {"placement": [placement]},
        },
        manager="test",
        subresource="status",
    )
    seen = await bench.see(Wants(cluster=True))
    assert seen.cluster is not None
    assert [n.name for n in seen.cluster.nodes] == ["n1", "n2", "n3"]
    assert seen.cluster.taken == {"n1": 3}
    assert seen.cluster.promised == {"n3": 8}


async def test_a_namespace_that_is_going_away_is_seen(uncollected: Bench) -> None:
    bench = uncollected
    bench.world.add(deployment())
    assert not (await bench.see()).namespace_terminating
    bench.world.api.delete(NAMESPACE, None, "default")
    assert (await bench.see()).namespace_terminating


async def test_gateways_that_a_namesake_left_behind_are_not_ours() -> None:
    """They run on for as long as their streams do, and answer no question in the end."""
    now = 1_796_000_000.0
    bench = Bench(World(memory_api(clock=lambda: now)))
    bench.world.add(pod("ghost"))
    now += 60.0
    bench.world.add(deployment())
    bench.world.add(pod("gateway"))
    assert [p["metadata"]["name"] for p in (await bench.see()).pods] == ["gateway"]


async def test_whoever_had_to_wait_for_the_others_claims_looks_again(bench: Bench) -> None:
    bench.world.add(deployment())
    observer = bench.observer(lambda _: Wants(cluster=True))

    async def second() -> int:
        async with observer.observed(KIMI) as seen:
            assert seen is not None
            return len(seen.pods)

    async with observer.observed(KIMI):
        waiting = asyncio.create_task(second())
        for _ in range(100):  # until it can do no more
            await asyncio.sleep(0)
        bench.world.add(pod("new"))
    assert await waiting == 1


async def test_a_list_that_fails_is_an_error_and_cancels_the_rest(bench: Bench) -> None:
    bench.world.add(deployment())
    bench.world.faults["list"] = ApiError(503, "ServiceUnavailable", "away")
    with pytest.raises(ApiError, match="away"):
        await bench.see()
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []


async def test_an_observation_that_is_given_up_at_any_moment_leaves_no_question_half_begun(
    bench: Bench,
) -> None:
    """A coroutine that nobody awaits is an error in these tests."""
    bench.world.add(deployment())
    asked = {"a": "10.0.0.1", "b": "10.0.0.2"}
    for steps in range(40):
        observation = asyncio.create_task(
            bench.see(Wants(stager_pods=asked, leaders=asked, gateway_pods=asked))
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        observation.cancel()
        await asyncio.gather(observation, return_exceptions=True)
    assert observation.done() and not observation.cancelled(), "the last one was over before it was given up"
    gc.collect()


async def test_a_question_that_is_out_of_date_is_not_waited_for(bench: Bench) -> None:
    bench.world.add(deployment())
    waits, over = asyncio.Event(), asyncio.Event()

    async def silent(ip: str, *, completion_of: str = "") -> LeaderProbe:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        raise AssertionError

    async def overtaken(key: Key) -> None:
        assert key == KIMI
        await waits.wait()

    bench.answers.leader = silent  # type: ignore[method-assign]
    bench.overtaken = overtaken
    with pytest.raises(Overtaken):
        async with bench.observer(lambda _: Wants(leaders={"p": "10.0.0.1"})).observed(KIMI):
            pass
    assert over.is_set(), "the question was dropped, not forgotten"


async def test_an_unreadable_deployment_is_an_error_not_an_absence(bench: Bench) -> None:
    bench.world.faults["get"] = ApiError(0, "Unreachable", "connection refused")
    with pytest.raises(ApiError, match="refused"):
        async with bench.observer().observed(KIMI):
            pass


def test_observing_a_hundred_times_changes_nothing(bench: Bench) -> None:
    bench.world.add(deployment())
    before = bench.world.read()

    async def many() -> None:
        for _ in range(100):
            async with bench.observer().observed(KIMI):
                pass

    asyncio.run(many())
    assert bench.world.api.get(MOE_DEPLOYMENT, "default", "kimi") == before
