from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from e2e.cluster.topology import load, missing, parse, preset_names, worker_order

TWO = "name: two\nnodes:\n- count: 2\n  labels: {gpu: H20}\n  capacity: {nvidia.com/gpu: 8}\n"


def node(name: str, labels: dict[str, str] | None = None, gpus: str | None = None) -> dict[str, Any]:
    devices = {"nvidia.com/gpu": gpus} if gpus else {}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "status": {"capacity": {"cpu": "2", **devices}, "allocatable": {"cpu": "2", **devices}},
    }


def control_plane() -> dict[str, Any]:
    return node("moe-control-plane", {"node-role.kubernetes.io/control-plane": ""})


def test_the_h20_preset_is_four_nodes_of_eight_without_a_clique() -> None:
    workers = load("h20").workers()
    assert [worker.capacity for worker in workers] == [{"nvidia.com/gpu": 8}] * 4
    assert {worker.labels["nvidia.com/gpu.product"] for worker in workers} == {"NVIDIA-H20"}
    assert not any("nvidia.com/gpu.clique" in worker.labels for worker in workers)
    leaves = [worker.labels["fabric.topograph.run/tier-0"] for worker in workers]
    assert leaves == ["leaf-a", "leaf-a", "leaf-b", "leaf-b"]


def test_the_nvl72_preset_is_one_rack_in_two_cliques_of_two_trays() -> None:
    workers = load("nvl72").workers()
    assert [worker.capacity for worker in workers] == [{"nvidia.com/gpu": 4}] * 4
    cliques = [worker.labels["nvidia.com/gpu.clique"] for worker in workers]
    assert cliques[0] == cliques[1] != cliques[2] == cliques[3]
    assert len({clique.rpartition(".")[0] for clique in cliques}) == 1


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_says_as_many_gpus_in_its_label_as_in_its_capacity(preset: str) -> None:
    for worker in load(preset).workers():
        assert worker.labels["nvidia.com/gpu.count"] == str(worker.capacity["nvidia.com/gpu"])


def test_an_unknown_topology_names_the_presets() -> None:
    with pytest.raises(FileNotFoundError, match="h20, nvl72"):
        load("h2o")


def test_a_file_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TWO)
    assert load(str(path)).name == "two"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("name: x\nnodes: []", "nodes"),
        ("name: x\nnodes: [{count: 0}]", "nodes.0.count"),
        ("name: x\nnodes: [{gpus: 8}]", "nodes.0.gpus"),
        ("name: x\nnodes: [{labels: {a: 'no spaces'}}]", "nodes.0.labels.a"),
        ("name: x\nnodes: [{capacity: {a: -1}}]", "nodes.0.capacity.a"),
    ],
)
def test_a_wrong_file_names_the_field(text: str, field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        parse(text)
    assert [".".join(map(str, error["loc"])) for error in refused.value.errors()] == [field]


def test_workers_are_ordered_as_kind_numbers_them() -> None:
    assert worker_order(["moe-worker10", "moe-worker2", "moe-worker"]) == [
        "moe-worker",
        "moe-worker2",
        "moe-worker10",
    ]


def test_a_new_worker_lacks_its_labels_and_devices_and_the_control_plane_lacks_nothing() -> None:
    dressed = node("moe-worker", {"gpu": "H20"}, "8")
    patches = missing(parse(TWO), [control_plane(), node("moe-worker2"), dressed])
    assert [(patch.node, patch.labels, patch.capacity) for patch in patches] == [
        ("moe-worker2", {"gpu": "H20"}, {"nvidia.com/gpu": "8"})
    ]


def test_devices_that_a_restarted_kubelet_forgot_are_missing_again() -> None:
    forgotten = node("moe-worker", {"gpu": "H20"}, "0")
    half = node("moe-worker2", {"gpu": "H20"}, "8")
    half["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    patches = missing(parse(TWO), [control_plane(), forgotten, half])
    assert [(patch.node, patch.labels, patch.capacity) for patch in patches] == [
        ("moe-worker", {}, {"nvidia.com/gpu": "8"}),
        ("moe-worker2", {}, {"nvidia.com/gpu": "8"}),
    ]
