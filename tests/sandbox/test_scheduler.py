from __future__ import annotations

from typing import Any

import pytest
from moe_operator.runtime.kube import NODE, POD
from moe_operator.sandbox import scheduler
from moe_operator.sandbox.api import MemoryApi, MemoryKube
from moe_operator.sandbox.objects import Key, condition
from moe_operator.sandbox.scheduler import Bind, Unschedulable, schedule

from tests.sandbox.objects import container, node, pinned_to, pod

NOW = 1_800_000_000.0


def bound(name: str, to: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    made = pod(name, gpus=gpus)
    made["spec"]["nodeName"] = to
    made["status"] = {"phase": phase}
    return made


def waiting(gpus: int = 0, **spec: Any) -> dict[str, Any]:
    return pod("waits", gpus=gpus, **spec)


def verdict(pods: list[Any], nodes: list[Any], claims: tuple[Key, ...] = ()) -> str:
    """``-> node`` or the message of the only pod that waits."""
    (only,) = schedule(pods, nodes, claims)
    return f"-> {only.node}" if isinstance(only, Bind) else only.message


@pytest.mark.parametrize(
    ("spec", "nodes", "expected"),
    [
        ({}, [node("b"), node("a")], "-> a"),
        ({"affinity": pinned_to("b")}, [node("a"), node("b")], "-> b"),
        (
            {"affinity": pinned_to("gone")},
            [node("a"), node("b")],
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
        ),
        ({"nodeSelector": {"kubernetes.io/hostname": "b"}}, [node("a"), node("b")], "-> b"),
        ({}, [node("a", unschedulable=True)], "0/1 nodes are available: 1 node(s) were unschedulable."),
        (
            {},
            [node("a", ready=False)],
            "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }.",
        ),
        (
            {},
            [node("a", taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])],
            "0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}.",
        ),
        (
            {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
            [node("a", taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])],
            "-> a",
        ),
        ({}, [node("a", taints=[{"key": "k", "value": "", "effect": "PreferNoSchedule"}])], "-> a"),
        ({}, [], "0/0 nodes are available: no nodes."),
        (
            {"schedulingGates": [{"name": "moe/weights"}]},
            [node("a")],
            "Scheduling is blocked due to non-empty scheduling gates: moe/weights",
        ),
    ],
)
def test_where_a_pod_may_go(spec: dict[str, Any], nodes: list[Any], expected: str) -> None:
    assert verdict([waiting(**spec)], nodes) == expected


def expressions(*requirements: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": list(requirements)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        ({"key": "clique", "operator": "In", "values": ["x.1", "x.2"]}, True),
        ({"key": "clique", "operator": "NotIn", "values": ["x.1"]}, False),
        ({"key": "absent", "operator": "NotIn", "values": ["x.1"]}, True),
        ({"key": "clique", "operator": "Exists"}, True),
        ({"key": "clique", "operator": "DoesNotExist"}, False),
        ({"key": "memory", "operator": "Gt", "values": ["80000"]}, True),
        ({"key": "memory", "operator": "Lt", "values": ["80000"]}, False),
        ({"key": "absent", "operator": "Gt", "values": ["1"]}, False),
    ],
)
def test_label_expressions(requirement: dict[str, Any], fits: bool) -> None:
    labelled = node("a")
    labelled["metadata"]["labels"] |= {"clique": "x.1", "memory": "97871"}
    (result,) = schedule([waiting(affinity=expressions(requirement))], [labelled])
    assert isinstance(result, Bind) is fits


def test_a_term_without_requirements_selects_nothing() -> None:
    assert "didn't match" in verdict([waiting(affinity=expressions())], [node("a")])


def test_gpus_of_unfinished_pods_are_taken_and_those_of_finished_ones_are_free() -> None:
    nodes = [node("a"), node("b")]
    full = [bound("r", "a", 8), bound("s", "b", 8, phase="Pending")]
    assert verdict([*full, waiting(1)], nodes) == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    done = [bound("r", "a", 8), bound("s", "b", 8, phase="Failed")]
    assert verdict([*done, waiting(8)], nodes) == "-> b"


def test_reasons_are_counted_over_all_nodes() -> None:
    nodes = [node("a"), node("b"), node("c", unschedulable=True)]
    wants = waiting(8, affinity=pinned_to("a", "c"))
    assert verdict([bound("r", "a", 1), wants], nodes) == (
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, "
        "1 node(s) didn't match Pod's node affinity/selector, 1 node(s) were unschedulable."
    )


def test_pods_of_one_round_do_not_share_gpus() -> None:
    pods = [pod(f"p{n}", gpus=8) for n in range(3)]
    placed = schedule(pods, [node("a"), node("b")])
    assert [v.node if isinstance(v, Bind) else v.reason for v in placed] == ["a", "b", "Unschedulable"]


def test_an_init_container_asks_for_its_peak_not_for_a_sum() -> None:
    stage = container("stage", resources={"requests": {"nvidia.com/gpu": "2"}})
    assert verdict([waiting(8, initContainers=[stage])], [node("a")]) == "-> a"
    sidecar = {**stage, "restartPolicy": "Always"}
    assert "Insufficient" in verdict([waiting(8, initContainers=[sidecar])], [node("a")])


def test_a_claim_that_does_not_exist_keeps_the_pod_waiting() -> None:
    wants = waiting(volumes=[{"name": "src", "persistentVolumeClaim": {"claimName": "models"}}])
    assert verdict([wants], [node("a")]) == (
        '0/1 nodes are available: persistentvolumeclaim "models" not found.'
    )
    assert verdict([wants], [node("a")], (Key("default", "models"),)) == "-> a"


def test_pods_of_other_schedulers_and_bound_pods_are_left_alone() -> None:
    pods = [waiting(schedulerName="volcano"), bound("r", "a", 1)]
    assert schedule(pods, [node("a")]) == []


async def test_a_step_says_why_binds_later_and_then_has_nothing_to_do() -> None:
    api = MemoryApi(clock=lambda: NOW)
    kube = MemoryKube(api)
    await kube.create(pod("waits", gpus=8))
    await scheduler.step(kube, api.bind, NOW)
    said = condition(await kube.get(POD, "default", "waits"), "PodScheduled")
    assert said is not None
    assert (said["status"], said["reason"]) == ("False", "Unschedulable")
    before = (await kube.list(POD)).resource_version
    await scheduler.step(kube, api.bind, NOW + 60)
    assert (await kube.list(POD)).resource_version == before

    made = node("a")
    await kube.apply({k: v for k, v in made.items() if k != "status"}, manager="test")
    await kube.apply_status({**made, "spec": {}}, manager="test")
    await scheduler.step(kube, api.bind, NOW + 61)
    placed = await kube.get(POD, "default", "waits")
    assert placed["spec"]["nodeName"] == "a"
    said = condition(placed, "PodScheduled")
    assert said is not None
    assert said["status"] == "True"
    assert "reason" not in said
    assert (await kube.list(NODE)).items


def test_unschedulable_is_a_value_with_its_reason() -> None:
    (result,) = schedule([waiting()], [])
    assert isinstance(result, Unschedulable)
    assert result.reason == "Unschedulable"
