from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from moe_operator.api.names import (
    COMPONENT_ENGINE,
    COMPONENT_STAGER,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    label_value,
)
from moe_operator.runtime.kube import Obj
from moe_operator.runtime.metrics import OperatorMetrics
from moe_operator.runtime.queue import SPACING_SECONDS, WorkQueue
from moe_operator.runtime.wakeups import Key, WakeUps

from tests.runtime.virtual_time import VirtualTime, settle
from tests.runtime.world import deployment, node, pod, status

KIMI = Key("default", "kimi")


@dataclass
class Bench:
    time: VirtualTime = field(default_factory=VirtualTime)

    def __post_init__(self) -> None:
        rng = random.Random(5)
        self.queue: WorkQueue[Key] = WorkQueue(self.time, rng, OperatorMetrics("test"))
        self.wakeups = WakeUps(self.queue, rng)

    async def woken(self) -> list[Key]:
        """Keys that are due when those that were seen lately may be again, as if their passes had run."""
        await self.time.advance(SPACING_SECONDS)
        keys = []
        while len(self.queue):
            key = await self.queue.take()
            assert key is not None
            self.queue.done(key)
            keys.append(key)
        return keys


@pytest.fixture
def bench() -> Bench:
    return Bench()


def seen(name: str = "kimi", generation: int = 1, **metadata: object) -> Obj:
    return deployment(name, uid=f"uid-{name}", generation=generation, **metadata)


async def test_a_new_deployment_wakes_itself(bench: Bench) -> None:
    bench.wakeups.deployment_changed(seen())
    assert await bench.woken() == [KIMI]


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 2},
        {"annotations": {"moe-operator.io/promote": "abc"}},
        {"labels": {"team": "a"}},
        {"deletionTimestamp": "2026-11-30T00:00:00Z"},
        {"finalizers": ["moe-operator.io/teardown"]},
    ],
)
async def test_what_somebody_wants_of_it_wakes_it(bench: Bench, change: dict[str, object]) -> None:
    bench.wakeups.deployment_changed(seen())
    await bench.woken()
    bench.wakeups.deployment_changed(seen(**change))  # type: ignore[arg-type]
    assert await bench.woken() == [KIMI]


async def test_our_own_status_write_wakes_nobody(bench: Bench) -> None:
    bench.wakeups.deployment_changed(seen())
    await bench.woken()
    bench.wakeups.deployment_changed({**seen(resourceVersion="9"), "status": status()})
    assert await bench.woken() == []


async def test_its_removal_wakes_it_and_its_return_too(bench: Bench) -> None:
    bench.wakeups.deployment_changed(seen())
    await bench.woken()
    bench.wakeups.deployment_changed(seen(), deleted=True)
    assert await bench.woken() == [KIMI]
    bench.wakeups.deployment_changed(seen())
    assert await bench.woken() == [KIMI]


async def test_a_child_wakes_the_deployment_its_label_names(bench: Bench) -> None:
    bench.wakeups.deployment_changed(seen())
    bench.wakeups.deployment_changed(seen("other"))
    await bench.woken()
    bench.wakeups.child_changed(pod("p"))
    assert await bench.woken() == [KIMI]
    bench.wakeups.child_changed(pod("p", namespace="elsewhere"))
    bench.wakeups.child_changed(pod("p", deployment="unknown"))
    assert await bench.woken() == []


async def overtakes(bench: Bench, change: Callable[[], None]) -> bool:
    """Whether ``change`` tells the pass that is in flight."""
    bench.queue.add(KIMI)
    assert await bench.queue.take() == KIMI
    told = asyncio.create_task(bench.queue.overtaken(KIMI))
    change()
    await settle()
    overtaken = told.done()
    told.cancel()
    bench.queue.done(KIMI)
    assert await bench.woken() == [KIMI]
    return overtaken


def engine(**extra: object) -> Obj:
    made = pod("kimi-1")
    made["metadata"] |= {"uid": "uid-1", **extra}
    made["metadata"]["labels"][LABEL_COMPONENT] = COMPONENT_ENGINE
    return made


@pytest.mark.parametrize(
    ("lost", "deleted"),
    [
        (engine(deletionTimestamp="2026-11-30T00:00:00Z"), False),
        ({**engine(), "status": {"phase": "Failed"}}, False),
        ({**engine(), "status": {"phase": "Succeeded"}}, False),
        (engine(), True),  # by force: nothing was heard of it before
    ],
)
async def test_a_lost_rank_overtakes_the_pass_in_flight_and_does_so_once(
    bench: Bench, lost: Obj, deleted: bool
) -> None:
    bench.wakeups.deployment_changed(seen())
    await bench.woken()
    assert not await overtakes(bench, lambda: bench.wakeups.child_changed(engine()))
    assert await overtakes(bench, lambda: bench.wakeups.child_changed(lost, deleted=deleted))
    if not deleted:
        assert not await overtakes(bench, lambda: bench.wakeups.child_changed(lost))
        assert not await overtakes(bench, lambda: bench.wakeups.child_changed(lost, deleted=True))


ENDING = {"deletionTimestamp": "2026-11-30T00:00:00Z"}


@pytest.mark.parametrize(
    ("change", "deleted", "at_once"),
    [
        (engine(), False, False),
        ({**engine(), "status": {"phase": "Running"}}, False, False),
        ({**engine(**ENDING), "status": {"phase": "Running"}}, False, False),
        ({**engine(**ENDING), "status": {"phase": "Succeeded"}}, False, True),
        ({**engine(**ENDING), "status": {"phase": "Failed"}}, False, True),
        (engine(**ENDING), True, True),
    ],
)
async def test_a_place_that_becomes_free_is_seen_at_once_other_news_are_gathered(
    bench: Bench, change: Obj, deleted: bool, at_once: bool
) -> None:
    bench.wakeups.deployment_changed(seen())
    bench.wakeups.child_changed(engine(**ENDING))  # the loss itself
    await bench.woken()
    bench.wakeups.child_changed(change, deleted=deleted)
    assert (len(bench.queue) > 0) is at_once
    assert await bench.woken() == [KIMI]


async def test_another_pod_that_ends_overtakes_nothing(bench: Bench) -> None:
    bench.wakeups.deployment_changed(seen())
    await bench.woken()
    ended = {**engine(), "status": {"phase": "Succeeded"}}
    ended["metadata"]["labels"][LABEL_COMPONENT] = COMPONENT_STAGER
    assert not await overtakes(bench, lambda: bench.wakeups.child_changed(ended))


async def test_an_edit_overtakes_the_pass_in_flight(bench: Bench) -> None:
    bench.wakeups.deployment_changed(seen())
    await bench.woken()
    assert await overtakes(bench, lambda: bench.wakeups.deployment_changed(seen(generation=2)))


async def test_a_name_too_long_for_a_label_is_found_again(bench: Bench) -> None:
    name = "k" * 100
    bench.wakeups.deployment_changed(seen(name))
    await bench.woken()
    child = pod("p")
    child["metadata"]["labels"][LABEL_DEPLOYMENT] = label_value(name)
    bench.wakeups.child_changed(child)
    assert await bench.woken() == [Key("default", name)]


async def test_a_forgotten_deployment_is_not_woken(bench: Bench) -> None:
    bench.wakeups.deployment_changed(seen())
    await bench.woken()
    bench.wakeups.forget(KIMI)
    bench.wakeups.child_changed(pod("p"))
    bench.wakeups.node_changed({**node("n"), "metadata": {"name": "n", "uid": "n"}})
    await bench.time.advance(10)
    assert await bench.woken() == []


def a_node(name: str = "n1", gpus: int = 8, **spec: object) -> Obj:
    made = node(name, gpus)
    made["metadata"]["uid"] = name
    made["spec"] = spec
    return made


async def test_a_rack_of_nodes_wakes_every_deployment_once(bench: Bench) -> None:
    for name in ("kimi", "other"):
        bench.wakeups.deployment_changed(seen(name))
    await bench.woken()
    for number in range(18):
        bench.wakeups.node_changed(a_node(f"n{number}"))
    assert await bench.woken() == []
    await bench.time.advance(1)
    assert sorted(await bench.woken()) == [KIMI, Key("default", "other")]


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ("heartbeat", False),
        ("cordon", True),
        ("not ready", True),
        ("sick gpu", True),
        ("label", True),
        ("taint", True),
        ("gpus gone", True),
        ("deleted", True),
    ],
)
async def test_only_what_matters_of_a_node_wakes(bench: Bench, change: str, wakes: bool) -> None:
    bench.wakeups.deployment_changed(seen())
    bench.wakeups.node_changed(a_node())
    await bench.time.advance(1)
    await bench.woken()
    changed = a_node()
    match change:
        case "heartbeat":
            changed["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-11-30T00:00:00Z"
            changed["status"]["allocatable"]["memory"] = "900Gi"
        case "cordon":
            changed["spec"]["unschedulable"] = True
        case "not ready":
            changed["status"]["conditions"][0]["status"] = "Unknown"
        case "sick gpu":
            changed["status"]["allocatable"] = {**changed["status"]["allocatable"], "nvidia.com/gpu": "7"}
        case "label":
            changed["metadata"]["labels"]["nvidia.com/gpu.clique"] = "a.1"
        case "taint":
            changed["spec"]["taints"] = [{"key": "maintenance", "effect": "NoSchedule"}]
        case "gpus gone":
            changed = a_node(gpus=0)
    bench.wakeups.node_changed(changed, deleted=change == "deleted")
    await bench.time.advance(1)
    assert (await bench.woken() == [KIMI]) is wakes


async def test_nodes_without_gpus_concern_nobody(bench: Bench) -> None:
    bench.wakeups.deployment_changed(seen())
    await bench.woken()
    bench.wakeups.node_changed(a_node(gpus=0))
    bench.wakeups.node_changed(a_node("n2", gpus=0), deleted=True)
    await bench.time.advance(10)
    assert await bench.woken() == []


async def test_a_sweep_gives_everyone_a_pass_within_two_minutes_but_not_at_once(bench: Bench) -> None:
    bench.wakeups.sweep([seen(f"d{n}") for n in range(100)])
    assert len({round(delay, 3) for delay in bench.time.pending}) == 100
    await bench.time.advance(60)
    early = len(await bench.woken())
    assert 20 < early < 80
    await bench.time.advance(60)
    assert early + len(await bench.woken()) == 100
