from __future__ import annotations

from typing import Any

import pytest
from moe_operator.api.policy import OperatorPolicy, Preset
from moe_operator.hardware.gpu_requests import (
    gpu_requests,
    gpu_resource,
    promised_by_placements,
    taken_by_pods,
)

GPU = "nvidia.com/gpu"
POLICY = OperatorPolicy(presets={"mi300": Preset(product="MI300X", resource_name="amd.com/gpu")})


def container(
    gpus: int | str | None = None, *, sidecar: bool = False, only_limit: bool = False
) -> dict[str, Any]:
    made: dict[str, Any] = {"name": "c"}
    if gpus is not None:
        made["resources"] = {"limits": {GPU: str(gpus)}}
        if not only_limit:
            made["resources"]["requests"] = {GPU: str(gpus)}
    if sidecar:
        made["restartPolicy"] = "Always"
    return made


def pod(
    name: str = "p", node: str = "", gpus: int = 8, phase: str = "Running", namespace: str = "ns", **spec: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node, "containers": [container(gpus)], **spec},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [container(8)]}, 8),
        ({"containers": [container(8), container(1), container()]}, 9),
        ({"containers": [container(8, only_limit=True)]}, 8),
        ({"containers": [container("1k")]}, 1000),
        ({"containers": [container(2)], "initContainers": [container(4)]}, 4),
        ({"containers": [container(2)], "initContainers": [container(1), container(1)]}, 2),
        ({"containers": [container(2)], "initContainers": [container(1, sidecar=True)]}, 3),
        ({"containers": [container(2)], "initContainers": [container(1, sidecar=True), container(3)]}, 4),
        ({"containers": [container(2)], "initContainers": [container(3), container(1, sidecar=True)]}, 3),
        ({"containers": [container(2)], "overhead": {GPU: "1", "cpu": "250m"}}, 3),
        ({"containers": [container()]}, 0),
        ({}, 0),
    ],
)
def test_a_pods_request_is_what_the_scheduler_would_count(spec: dict[str, Any], expected: int) -> None:
    assert gpu_requests({"spec": spec}, GPU) == expected


def test_another_resource_is_not_counted() -> None:
    assert gpu_requests({"spec": {"containers": [container(8)]}}, "amd.com/gpu") == 0


def test_bound_pods_of_all_owners_hold_their_gpus_until_they_have_ended() -> None:
    pods = [
        pod("a", "n1", 4),
        pod("b", "n1", 2, phase="Pending"),
        pod("c", "n1", 8, phase="Succeeded"),
        pod("d", "n2", 8, phase="Failed"),
        pod("e", "", 8),
        pod("f", "n3", 0),
    ]
    pods[0]["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    assert taken_by_pods(pods, GPU) == {"n1": 6}


def deployment(*nodes: str, gpus: int | None = 4, **accelerators: Any) -> dict[str, Any]:
    placement: dict[str, Any] = {
        "revision": "abc",
        "replica": 0,
        "ranks": [{"rank": rank, "node": node} for rank, node in enumerate(nodes)],
    }
    if gpus is not None:
        placement["gpusPerNode"] = gpus
    return {
        "metadata": {"name": "m", "namespace": "ns"},
        "spec": {"accelerators": accelerators},
        "status": {"placement": [placement]},
    }


def test_a_rank_counts_as_a_promise_until_its_pod_is_bound() -> None:
    pods = [pod("m-abc-0-0", "n1"), pod("m-abc-0-1", ""), pod("m-abc-0-2", "n3", phase="Failed")]
    promised = promised_by_placements([deployment("n1", "n2", "n3", "n4")], pods, GPU, POLICY)
    assert promised == {"n2": 4, "n3": 4, "n4": 4}


def test_a_pod_of_the_same_name_elsewhere_keeps_no_promise() -> None:
    namesake = pod("m-abc-0-0", "n1", namespace="b")
    assert promised_by_placements([deployment("n1")], [namesake], GPU, POLICY) == {"n1": 4}


@pytest.mark.parametrize(
    ("accelerators", "resource"),
    [
        ({}, GPU),
        ({"resourceName": "amd.com/gpu"}, "amd.com/gpu"),
        ({"product": "mi300", "resourceName": GPU}, "amd.com/gpu"),
    ],
)
def test_the_gpus_are_counted_by_the_presets_resource_or_the_specs(
    accelerators: dict[str, Any], resource: str
) -> None:
    assert gpu_resource(deployment(**accelerators), POLICY) == resource


def test_promises_of_other_gpus_do_not_count() -> None:
    assert promised_by_placements([deployment("n1", resourceName="amd.com/gpu")], [], GPU, POLICY) == {}


@pytest.mark.parametrize(
    ("accelerators", "plan", "expected"),
    [({}, None, 8), ({"gpusPerNode": 2}, None, 2), ({"gpusPerNode": 2}, 4, 4), ({}, 16, 16)],
)
def test_a_placement_without_a_count_is_counted_by_the_larger_of_spec_and_plan(
    accelerators: dict[str, Any], plan: int | None, expected: int
) -> None:
    made = deployment("n1", gpus=None, **accelerators)
    if plan:
        made["status"]["plan"] = {"layout": {"gpusPerNode": plan}}
    assert promised_by_placements([made], [], GPU, POLICY) == {"n1": expected}


def test_a_deployment_without_status_promises_nothing() -> None:
    assert (
        promised_by_placements([{"metadata": {"name": "m", "namespace": "ns"}, "spec": {}}], [], GPU, POLICY)
        == {}
    )
