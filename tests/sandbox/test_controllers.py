"""Deployments, ReplicaSets and Jobs on virtual time: a step is called, the clock is moved by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from moe_operator.api.moments import moment
from moe_operator.runtime.kube import DEPLOYMENT, JOB, POD, REPLICA_SET
from moe_operator.sandbox import controllers
from moe_operator.sandbox.api import MemoryApi, MemoryKube
from moe_operator.sandbox.deployments import Size, limits, recreate_sizes, rolling_sizes
from moe_operator.sandbox.jobs import failure_action, may_create
from moe_operator.sandbox.objects import condition, status_patch

from tests.sandbox.objects import Obj, container, node, pod


@dataclass
class World:
    """A cluster of one node whose pods do what the test says."""

    now: float = 1_800_000_000.0
    api: MemoryApi = field(init=False)
    kube: MemoryKube = field(init=False)

    def __post_init__(self) -> None:
        self.api = MemoryApi(clock=lambda: self.now)
        self.kube = MemoryKube(self.api)
        made = node("a")
        self.api.apply({k: v for k, v in made.items() if k != "status"}, manager="test")
        self.api.apply(status_patch(made, made["status"]), manager="test", subresource="status")

    async def settle(self) -> None:
        """Steps until one changes nothing. Controllers read the server's own objects: none may be changed."""
        for _ in range(50):
            before = self.api.store.revision
            read = [(s, json.dumps(s.obj)) for t in self.api.store.tables.values() for s in t.everything()]
            await controllers.step(self.kube, self.now)
            assert all(json.dumps(stored.obj) == text for stored, text in read), "changed in place"
            if self.api.store.revision == before:
                return
        raise AssertionError("the controllers never came to rest")

    def pods(self) -> list[Obj]:
        return list(self.api.list(POD).items)

    def names(self) -> set[str]:
        return {p["metadata"]["name"] for p in self.pods()}

    def say(self, pod_: Obj, **status: Any) -> None:
        """A kubelet's word about a pod."""
        self.api.apply(status_patch(pod_, status), manager="kubelet", subresource="status")

    def ready(self, *pods: Obj) -> None:
        for each in pods:
            said = [{"type": "Ready", "status": "True", "lastTransitionTime": moment(self.now)}]
            self.say(each, phase="Running", conditions=said)

    def end(self, pod_: Obj, code: int) -> None:
        ended = {"exitCode": code, "finishedAt": moment(self.now)}
        statuses = [{"name": "main", "state": {"terminated": ended}}]
        self.say(pod_, phase="Failed" if code else "Succeeded", containerStatuses=statuses)

    def let_go(self) -> None:
        """The kubelet releases every pod that is being deleted."""
        for each in self.pods():
            if each["metadata"].get("deletionTimestamp"):
                self.api.delete(POD, "default", each["metadata"]["name"], grace_seconds=0)


def template(image: str = "v1") -> Obj:
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container(image=image)]}}


def deployment(replicas: int = 2, image: str = "v1", **spec: Any) -> Obj:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(image),
            **spec,
        },
    }


def job(**spec: Any) -> Obj:
    body = {"restartPolicy": "Never", "containers": [container()]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "resolve", "namespace": "default"},
        "spec": {"template": {"spec": body}, **spec},
    }


@pytest.mark.parametrize(
    ("strategy", "replicas", "expected"),
    [
        ({}, 4, (1, 1)),
        ({}, 1, (1, 0)),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, 2, (0, 1)),
        ({"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": "0%"}}, 2, (0, 1)),
        ({"rollingUpdate": {"maxSurge": "30%", "maxUnavailable": "30%"}}, 5, (2, 1)),
    ],
)
def test_limits_of_a_rolling_update(strategy: Obj, replicas: int, expected: tuple[int, int]) -> None:
    assert limits(strategy, replicas) == expected


def size(name: str, wanted: int, available: int | None = None) -> Size:
    up = wanted if available is None else available
    return Size(name, wanted, current=wanted, ready=up, available=up)


@pytest.mark.parametrize(
    ("surge", "unavailable", "new", "old", "expected"),
    [
        # the first pods of a new template come beside the old ones
        (1, 0, size("new", 0), size("old", 2), {"new": 1, "old": 2}),
        # an old one goes only when a new one is available
        (1, 0, size("new", 1, 0), size("old", 2), {"new": 1, "old": 2}),
        (1, 0, size("new", 1), size("old", 2), {"new": 1, "old": 1}),
        (1, 0, size("new", 1), size("old", 1), {"new": 2, "old": 1}),
        (1, 0, size("new", 2), size("old", 1), {"new": 2, "old": 0}),
        # without surge an old one makes room first
        (0, 1, size("new", 0), size("old", 2), {"new": 0, "old": 1}),
        (0, 1, size("new", 0), size("old", 1), {"new": 1, "old": 1}),
        # what is broken anyway goes first
        (1, 0, size("new", 1, 0), size("old", 2, 1), {"new": 1, "old": 2}),
        (1, 1, size("new", 1, 0), size("old", 2, 1), {"new": 1, "old": 1}),
        # shrinking a deployment that is not rolling
        (1, 0, size("new", 5), size("old", 0), {"new": 2, "old": 0}),
    ],
)
def test_sizes_of_a_rolling_update(
    surge: int, unavailable: int, new: Size, old: Size, expected: dict[str, int]
) -> None:
    assert rolling_sizes(2, surge, unavailable, new, [old]) == expected


def test_recreate_waits_until_the_old_pods_are_gone() -> None:
    assert recreate_sizes(2, size("new", 0), [size("old", 2)]) == {"new": 0, "old": 0}
    assert recreate_sizes(2, size("new", 0), [size("old", 0)]) == {"new": 2, "old": 0}


async def test_a_deployment_becomes_pods_of_its_template_with_its_labels() -> None:
    world = World()
    await world.kube.create(deployment())
    await world.settle()
    pods = world.pods()
    assert len(pods) == 2
    assert {p["metadata"]["labels"]["app"] for p in pods} == {"web"}
    (replica_set,) = world.api.list(REPLICA_SET).items
    assert {p["metadata"]["ownerReferences"][0]["uid"] for p in pods} == {replica_set["metadata"]["uid"]}
    assert all(p["spec"]["nodeName"] == "a" for p in pods)
    world.ready(*pods)
    await world.settle()
    status = world.api.get(DEPLOYMENT, "default", "web")["status"]
    assert (status["readyReplicas"], status["availableReplicas"], status["updatedReplicas"]) == (2, 2, 2)
    assert [(c["type"], c["reason"]) for c in status["conditions"]] == [
        ("Available", "MinimumReplicasAvailable"),
        ("Progressing", "NewReplicaSetAvailable"),
    ]


async def test_a_rollout_never_has_too_few_available_or_too_many_pods() -> None:
    world = World()
    limits_ = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await world.kube.create(deployment(strategy=limits_))
    await world.settle()
    world.ready(*world.pods())
    await world.settle()
    old = world.names()
    await world.kube.apply(deployment(image="v2", strategy=limits_), manager="test")
    for _ in range(10):
        await world.settle()
        live = [p for p in world.pods() if not p["metadata"].get("deletionTimestamp")]
        assert len(live) <= 3
        assert sum(condition(p, "Ready") is not None for p in live) >= 2
        world.ready(*live)
        world.let_go()
    assert len(world.names()) == 2
    assert not world.names() & old
    assert {p["spec"]["containers"][0]["image"] for p in world.pods()} == {"v2"}


async def test_a_lost_pod_is_replaced_under_a_new_name_and_an_unready_one_goes_first() -> None:
    world = World()
    await world.kube.create(deployment())
    await world.settle()
    first, second = world.pods()
    world.end(first, 1)
    await world.settle()
    assert len(world.names()) == 3
    world.ready(second)
    await world.kube.apply(deployment(replicas=1), manager="test")
    await world.settle()
    world.let_go()
    left = [p for p in world.pods() if p["status"]["phase"] != "Failed"]
    assert [p["metadata"]["name"] for p in left] == [second["metadata"]["name"]]


async def test_a_job_is_complete_when_its_pod_succeeded_and_then_rests() -> None:
    world = World()
    await world.kube.create(job())
    await world.settle()
    (only,) = world.pods()
    assert only["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "resolve"
    assert world.api.get(JOB, "default", "resolve")["status"]["active"] == 1
    world.end(only, 0)
    await world.settle()
    done = world.api.get(JOB, "default", "resolve")
    assert condition(done, "Complete") is not None
    assert (done["status"]["succeeded"], done["status"]["active"]) == (1, 0)
    world.now += 3600
    before = world.api.store.revision
    await world.settle()
    assert world.api.store.revision == before


async def test_a_failed_pod_is_followed_by_another_after_a_growing_pause_until_the_limit() -> None:
    world = World()
    await world.kube.create(job(backoffLimit=2))
    for failures, pause in ((1, 10), (2, 20)):
        await world.settle()
        world.end(world.pods()[-1] if failures == 1 else newest(world), 40)
        world.now += pause - 1
        await world.settle()
        assert len(world.names()) == failures
        world.now += 1
        await world.settle()
        assert len(world.names()) == failures + 1
    world.end(newest(world), 40)
    await world.settle()
    failed = condition(world.api.get(JOB, "default", "resolve"), "Failed")
    assert failed is not None
    assert failed["reason"] == "BackoffLimitExceeded"
    world.now += 3600
    await world.settle()
    assert len(world.names()) == 3


def newest(world: World) -> Obj:
    """The pod that has not ended."""
    (live,) = [p for p in world.pods() if p["status"]["phase"] not in {"Failed", "Succeeded"}]
    return live


FAIL_ON_PERMANENT = {
    "rules": [
        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [10, 12]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]
}


async def test_a_permanent_exit_code_fails_the_job_at_once() -> None:
    world = World()
    await world.kube.create(job(podFailurePolicy=FAIL_ON_PERMANENT))
    await world.settle()
    world.end(newest(world), 12)
    await world.settle()
    failed = condition(world.api.get(JOB, "default", "resolve"), "Failed")
    assert failed is not None
    assert failed["reason"] == "PodFailurePolicy"
    assert "failed with exit code 12" in failed["message"]
    assert len(world.names()) == 1


@pytest.mark.parametrize(
    ("operator", "values", "code", "action"),
    [
        ("In", [12], 12, "FailJob"),
        ("In", [12], 40, "Count"),
        ("NotIn", [40], 12, "FailJob"),
        ("NotIn", [40], 40, "Count"),
    ],
)
def test_exit_codes_choose_the_action(operator: str, values: list[int], code: int, action: str) -> None:
    rule = {"action": "FailJob", "onExitCodes": {"operator": operator, "values": values}}
    ended = pod("p")
    ended["status"] = {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": code}}}]}
    assert failure_action({"rules": [rule]}, ended)[0] == action


def test_a_disrupted_pod_may_be_ignored() -> None:
    disrupted = pod("p")
    disrupted["status"] = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert failure_action(FAIL_ON_PERMANENT, disrupted)[0] == "Ignore"
    assert failure_action(None, disrupted)[0] == "Count"


def test_the_pause_has_an_upper_bound() -> None:
    ended = {"finishedAt": moment(1000.0), "exitCode": 1}
    failed = pod("p")
    failed["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "main", "state": {"terminated": ended}}],
    }
    assert not may_create([failed] * 12, 1000.0 + 359)
    assert may_create([failed] * 12, 1000.0 + 360)


async def test_a_deadline_ends_the_job_and_its_pod() -> None:
    world = World()
    await world.kube.create(job(activeDeadlineSeconds=60))
    await world.settle()
    world.now += 59
    await world.settle()
    assert condition(world.api.get(JOB, "default", "resolve"), "Failed") is None
    world.now += 1
    await world.settle()
    failed = condition(world.api.get(JOB, "default", "resolve"), "Failed")
    assert failed is not None
    assert failed["reason"] == "DeadlineExceeded"
    assert all(p["metadata"].get("deletionTimestamp") for p in world.pods())


async def test_deleting_a_deployment_takes_its_replica_sets_and_pods_along() -> None:
    world = World()
    await world.kube.create(deployment())
    await world.settle()
    await world.kube.delete(DEPLOYMENT, "default", "web")
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.names() == set()
    assert world.api.list(REPLICA_SET).items == ()
