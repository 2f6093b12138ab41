from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from moe_operator.hardware.catalogue import CATALOGUE
from moe_operator.hardware.nodes import GpuNode, Taint, tolerated, unusable
from moe_operator.sandbox.nodes import PRESETS, build_nodes, node_status

GPU = "nvidia.com/gpu"
HEALTHY = GpuNode("n", "u", "NVIDIA-H20", 8, 8)


def node(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "metadata": {
            "name": "n",
            "uid": "u",
            "labels": {"nvidia.com/gpu.product": "NVIDIA-H20", "nvidia.com/gpu.memory": "97871"},
        },
        "spec": {},
        "status": {
            "allocatable": {GPU: "8"},
            "capacity": {GPU: "8"},
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True"},
            ],
        },
    }
    for part, members in changes.items():
        base[part] = {**base[part], **members}
    return base


def test_a_node_object_is_read() -> None:
    seen = GpuNode.from_node(node(), GPU)
    assert seen == replace(HEALTHY, memory_mib=97_871, labels=node()["metadata"]["labels"])
    assert unusable(seen) == ""


def test_only_the_resource_that_pods_ask_for_counts() -> None:
    assert GpuNode.from_node(node(), "amd.com/gpu").capacity == 0


@pytest.mark.parametrize(
    "bare",
    [{"metadata": {"name": "n"}}, {"metadata": {"name": "n", "labels": None}, "spec": None, "status": None}],
)
def test_a_node_that_says_nothing_is_not_ready_and_has_no_gpus(bare: dict[str, Any]) -> None:
    seen = GpuNode.from_node(bare, GPU)
    assert (seen.product, seen.allocatable, seen.ready) == ("", 0, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"terminating": True}, "being deleted"),
        ({"ready": False}, "NotReady"),
        ({"cordoned": True}, "cordoned"),
        ({"labels": {"nvidia.com/gpu.sharing-strategy": "none"}}, ""),
        ({"labels": {"nvidia.com/gpu.sharing-strategy": "time-slicing"}}, "time-slicing"),
        ({"labels": {"nvidia.com/mig.strategy": "single"}}, "MIG single"),
        ({"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}}, ""),
        ({"labels": {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}}, "drain-required"),
        ({"taints": (Taint("team", "a", "NoSchedule"),)}, "team=a:NoSchedule"),
        ({"taints": (Taint("team", "a", "NoExecute"),)}, "team=a:NoExecute"),
        ({"taints": (Taint("team", "a", "PreferNoSchedule"),)}, ""),
        ({"allocatable": 7}, "1 unhealthy GPU(s) of 8"),
    ],
)
def test_why_a_node_cannot_be_used(change: dict[str, Any], words: str) -> None:
    said = unusable(replace(HEALTHY, **change))
    assert words in said and bool(words) == bool(said)


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "team", "operator": "Equal", "value": "a"}, True),
        ({"key": "team", "value": "a"}, True),
        ({"key": "team", "value": "b"}, False),
        ({"key": "team"}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_tolerations_follow_kubernetes(toleration: dict[str, Any], expected: bool) -> None:
    assert tolerated(Taint("team", "a", "NoSchedule"), [toleration]) is expected


@pytest.mark.parametrize("preset", PRESETS)
def test_the_nodes_of_every_preset_can_be_used(preset: str) -> None:
    machine = PRESETS[preset].machine
    for built in build_nodes(preset):
        seen = GpuNode.from_node({**built, "status": node_status(built, "10.0.0.1", 0.0)}, GPU)
        assert unusable(seen) == ""
        assert (seen.product, seen.capacity) == (machine.product, machine.gpus)
        assert seen.memory_mib == CATALOGUE[seen.product].memory_mib


def test_a_product_is_catalogued_under_its_own_name() -> None:
    assert all(product == gpu.product and gpu.memory_mib > 40_000 for product, gpu in CATALOGUE.items())
