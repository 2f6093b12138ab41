from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from moe_operator.api.names import COMPONENT_ENGINE, LABEL_COMPONENT
from moe_operator.reconcile.actions import Apply, Decision
from moe_operator.reconcile.snapshot import Snapshot, Wants
from moe_operator.runtime.execute import Executor, Outcome
from moe_operator.runtime.json_log import JsonFormatter
from moe_operator.runtime.kube import ApiError
from moe_operator.runtime.metrics import OperatorMetrics
from moe_operator.runtime.observe import Observer
from moe_operator.runtime.probes import Probes
from moe_operator.runtime.queue import WorkQueue
from moe_operator.runtime.reconcile_loop import ReconcileLoop, every
from moe_operator.runtime.wakeups import Key, WakeUps

from tests.runtime.virtual_time import VirtualTime, settle
from tests.runtime.world import World, config_map, deployment, never, node, pod, snapshot, status

KIMI = Key("default", "kimi")


@dataclass
class Scripted:
    """Observes from a script of objects and executes by noting."""

    outcomes: list[Outcome | Exception] = field(default_factory=list)
    exists: bool = True
    errors_told: list[str] = field(default_factory=list)
    executed: list[Decision] = field(default_factory=list)

    @asynccontextmanager
    async def observed(self, key: Key, last_error: str = "") -> AsyncIterator[Snapshot | None]:
        self.errors_told.append(last_error)
        meta = {"uid": "u", "resourceVersion": "1", "generation": 3}
        seen = replace(snapshot(deployment(key.name, **meta)), last_error=last_error)
        yield seen if self.exists else None

    async def execute(self, snapshot: Snapshot, decision: Decision) -> Outcome:
        self.executed.append(decision)
        outcome = self.outcomes.pop(0) if self.outcomes else Outcome()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@dataclass
class Bench:
    script: Scripted = field(default_factory=Scripted)
    time: VirtualTime = field(default_factory=VirtualTime)
    gone: list[Key] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metrics = OperatorMetrics("test")
        self.queue: WorkQueue[Key] = WorkQueue(self.time, random.Random(3), self.metrics)

    def loop(self, decide: Callable[[Snapshot], Decision] = lambda _: Decision(None)) -> ReconcileLoop:
        return ReconcileLoop(
            self.queue,
            self.script,
            decide,
            self.script,
            self.metrics,
            gone=self.gone.append,
            clock=self.time.time,
        )

    def count(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("moe_operator_reconcile_total", {"result": result}) or 0


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_pass_wakes_again_when_the_decision_says(bench: Bench) -> None:
    bench.script.outcomes = [Outcome(writes=1, wake_after=5.0)]
    await bench.loop().reconcile(KIMI)
    assert bench.time.pending == [5.0]
    assert bench.count("ok") == 1


async def test_after_an_irreversible_action_the_next_pass_is_due_at_once(bench: Bench) -> None:
    bench.script.outcomes = [Outcome(writes=1, wake_after=0.0)]
    await bench.loop().reconcile(KIMI)
    assert await bench.queue.take() == KIMI


async def test_with_nothing_to_wait_for_nothing_is_scheduled(bench: Bench) -> None:
    await bench.loop().reconcile(KIMI)
    assert (bench.time.pending, len(bench.queue)) == ([], 0)


async def test_a_deployment_that_is_gone_is_forgotten(bench: Bench) -> None:
    bench.script.exists = False
    await bench.loop().reconcile(KIMI)
    assert bench.gone == [KIMI]
    assert bench.count("gone") == 1


async def test_an_error_is_retried_with_backoff_and_told_to_the_next_decision_once(bench: Bench) -> None:
    refused = ApiError(403, "Forbidden", "exceeded quota")
    bench.script.outcomes = [Outcome(1, 60.0, refused), Outcome(1, 60.0, refused), Outcome()]
    loop = bench.loop()
    for _ in range(4):
        await loop.reconcile(KIMI)
    assert bench.script.errors_told == ["", str(refused), str(refused), ""]
    assert bench.count("error") == 2
    assert bench.metrics.registry.get_sample_value(
        "moe_operator_reconcile_errors_total", {"reason": "Forbidden"}
    )


@pytest.mark.parametrize(("code", "longest"), [(0, 15), (429, 15), (503, 15), (403, 300), (422, 300)])
async def test_an_api_server_that_was_away_is_used_soon_after_it_comes_back(
    bench: Bench, code: int, longest: float
) -> None:
    bench.script.outcomes = [Outcome(error=ApiError(code, "Word", "message")) for _ in range(12)]
    loop = bench.loop()
    for _ in range(12):
        await bench.time.advance(1000)
        while len(bench.queue):
            bench.queue.done(await bench.queue.take() or KIMI)
        await loop.reconcile(KIMI)
    assert longest / 2 <= bench.time.pending[0] <= longest


async def test_backoff_grows_while_errors_go_on_and_starts_again_after_success(bench: Bench) -> None:
    refused = ApiError(403, "Forbidden", "quota")
    loop, delays = bench.loop(), []
    bench.script.outcomes = [*(Outcome(error=refused) for _ in range(4)), Outcome(), Outcome(error=refused)]
    for _ in range(6):
        await loop.reconcile(KIMI)
        delays.append(bench.time.pending[0] if bench.time.pending else 0.0)
        await bench.time.advance(1000)
        while len(bench.queue):
            bench.queue.done(await bench.queue.take() or KIMI)
    assert delays[0] < 2 <= delays[1] < 4 <= delays[2] < 8 <= delays[3] < 16
    assert (delays[4], delays[5] < 2) == (0.0, True)


async def test_a_conflict_looks_again_at_once_but_not_for_ever(bench: Bench) -> None:
    moved_on = Outcome(error=ApiError(409, "Conflict", "moved on"))
    bench.script.outcomes = [moved_on, moved_on]
    loop = bench.loop()
    await loop.reconcile(KIMI)
    assert await bench.queue.take() == KIMI
    bench.queue.done(KIMI)
    await loop.reconcile(KIMI)
    assert len(bench.queue) == 0
    assert bench.time.pending[0] >= 1
    assert (bench.script.errors_told, bench.count("conflict")) == (["", ""], 2)


async def test_an_api_server_that_is_away_is_retried_and_not_reported_to_the_user(bench: Bench) -> None:
    world = World()
    world.faults["get"] = ApiError(0, "Unreachable", "connection refused")
    probes = Probes()
    observer = Observer(
        world.kube,
        probes,
        now=lambda: 0.0,
        policy=snapshot(deployment()).policy,
        wants=lambda _: Wants(),
        overtaken=never,
    )
    loop = ReconcileLoop(
        bench.queue,
        observer,
        lambda _: Decision(None),
        bench.script,
        bench.metrics,
        gone=bench.gone.append,
    )
    await loop.reconcile(KIMI)
    assert bench.gone == []
    assert 1 <= bench.time.pending[0] <= 2
    assert bench.count("error") == 1
    await probes.aclose()


async def test_a_bug_in_one_deployments_path_is_loud_and_does_not_end_the_worker(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def decide(_: Snapshot) -> Decision:
        raise KeyError("placement")

    await bench.loop(decide).reconcile(KIMI)
    assert bench.count("error") == 1
    assert bench.time.pending[0] >= 1
    assert [r.levelname for r in caplog.records if r.exc_info] == ["ERROR"]


async def test_each_pass_logs_one_line_with_key_generation_revision_writes(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.script.outcomes = [Outcome(writes=2, wake_after=5.0)]
    await bench.loop(lambda _: Decision(status("abc"))).reconcile(KIMI)
    (record,) = caplog.records
    line = json.loads(JsonFormatter().format(record))
    del line["time"]
    assert line == {
        "level": "info",
        "logger": "moe_operator.runtime.reconcile_loop",
        "event": "reconciled",
        "key": "default/kimi",
        "generation": 3,
        "revision": "abc",
        "duration_ms": 0.0,
        "writes": 2,
        "result": "ok",
        "wake_after_s": 5.0,
    }


def claim_free_node(seen: Snapshot) -> Decision:
    """Promise one whole free node, once."""
    if (seen.object.get("status") or {}).get("placement"):
        return Decision(None)
    assert seen.cluster is not None
    spoken_for = {*seen.cluster.taken, *seen.cluster.promised}
    free = [n for n in seen.cluster.nodes if n.name not in spoken_for]
    if not free:
        return Decision(status("full"))
    placement = {"revision": "r", "ranks": [{"rank": 0, "node": free[0].name}], "gpusPerNode": 8}
    return Decision(status("r", placement=[placement]), claims=True)


async def test_deployments_that_claim_at_the_same_instant_never_get_the_same_node(bench: Bench) -> None:
    world = World()
    names = [f"d{n}" for n in range(6)]
    for name in names:
        world.add(deployment(name))
    for number in range(4):
        world.add(node(f"n{number}"))
    loop = _real_loop(bench, world, claim_free_node)
    await asyncio.gather(*(loop.reconcile(Key("default", name)) for name in names))
    statuses = [world.read(name)["status"] for name in names]
    nodes = [s["placement"][0]["ranks"][0]["node"] for s in statuses if s.get("placement")]
    assert sorted(nodes) == ["n0", "n1", "n2", "n3"]
    assert sum(s["targetRevision"] == "full" for s in statuses) == 2


async def test_if_others_could_look_meanwhile_they_would(bench: Bench) -> None:
    """The race is real: claims written once others may look again oversubscribe."""
    world = World()
    for name in ("a", "b"):
        world.add(deployment(name))
    for number in range(2):
        world.add(node(f"n{number}"))
    loop = _real_loop(bench, world, lambda seen: replace(claim_free_node(seen), claims=False))
    await asyncio.gather(*(loop.reconcile(Key("default", name)) for name in "ab"))
    nodes = [world.read(name)["status"]["placement"][0]["ranks"][0]["node"] for name in "ab"]
    assert nodes == ["n0", "n0"]


def _real_loop(bench: Bench, world: World, decide: Callable[[Snapshot], Decision]) -> ReconcileLoop:
    class Slow(Executor):
        """Gives way to other tasks before each decision is written, as a network does."""

        async def execute(self, snapshot: Snapshot, decision: Decision) -> Outcome:
            for _ in range(100):
                await asyncio.sleep(0)
            return await super().execute(snapshot, decision)

    unused: Any = None
    observer = Observer(
        world.kube,
        unused,
        now=lambda: 0.0,
        policy=snapshot(deployment()).policy,
        wants=lambda _: Wants(cluster=True),
        overtaken=never,
    )
    return ReconcileLoop(
        bench.queue,
        observer,
        decide,
        Slow(world.kube, lambda: 0.0),
        bench.metrics,
        gone=bench.gone.append,
    )


async def test_a_lost_rank_is_seen_while_its_leader_is_asked_for_a_completion(bench: Bench) -> None:
    """vLLM's leader may never answer when one of its ranks is gone: the pass gives up, and looks again."""
    world = World()
    wakeups = WakeUps(bench.queue, random.Random(3))
    wakeups.deployment_changed(world.add(deployment()))
    rank = pod("kimi-1")
    rank["metadata"]["uid"] = "uid-1"
    rank["metadata"]["labels"][LABEL_COMPONENT] = COMPONENT_ENGINE
    asked = asyncio.Event()

    class Silent:
        async def leader(self, ip: str, *, completion_of: str = "") -> None:
            asked.set()
            await asyncio.Event().wait()

    serves = True
    observer = Observer(
        world.kube,
        Silent(),  # type: ignore[arg-type]
        now=lambda: 0.0,
        policy=snapshot(deployment()).policy,
        wants=lambda _: Wants(leaders={"kimi-0": "10.0.0.1"}) if serves else Wants(),
        overtaken=bench.queue.overtaken,
    )
    loop = ReconcileLoop(
        bench.queue, observer, lambda _: Decision(None), bench.script, bench.metrics, gone=bench.gone.append
    )
    working = asyncio.create_task(bench.queue.work(1, loop.reconcile))
    await asked.wait()
    wakeups.child_changed(rank)  # news, but nothing that makes the answer worthless
    await settle()
    assert (len(bench.script.executed), bench.count("overtaken")) == (0, 0)
    serves = False
    rank["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    wakeups.child_changed(rank)
    await settle()
    assert (len(bench.script.executed), bench.count("overtaken"), bench.count("ok")) == (1, 1, 1)
    bench.queue.close()
    await working


async def test_a_converged_deployment_costs_no_write(bench: Bench) -> None:
    world = World()
    obj = world.add(deployment())

    def decide(seen: Snapshot) -> Decision:
        have = seen.child("ConfigMap", "a")
        return Decision(status("abc"), () if have else (Apply(config_map("a", obj)),))

    unused: Any = None
    observer = Observer(
        world.kube,
        unused,
        now=lambda: 0.0,
        policy=snapshot(obj).policy,
        wants=lambda _: Wants(),
        overtaken=never,
    )
    loop = ReconcileLoop(
        bench.queue,
        observer,
        decide,
        Executor(world.kube, lambda: 0.0),
        bench.metrics,
        gone=bench.gone.append,
    )
    await loop.reconcile(KIMI)
    assert world.writes == ["apply_status", "apply"]
    world.calls.clear()
    for _ in range(10):
        await loop.reconcile(KIMI)
    assert world.writes == []


async def test_a_sweep_that_fails_is_tried_again_at_its_next_time(bench: Bench) -> None:
    runs: list[float] = []

    async def sweep() -> None:
        runs.append(bench.time.now)
        if len(runs) == 1:
            raise ApiError(503, "ServiceUnavailable", "away")

    task = asyncio.create_task(every(180, sweep, bench.time.sleep))
    await bench.time.advance(400)
    assert runs == [1000.0, 1180.0, 1360.0]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
