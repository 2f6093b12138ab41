"""A cluster seen through kubectl, which answers and errs here in the words of a real one."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from moe_operator.api.manifest import Manifest
from moe_operator.api.policy import OperatorPolicy
from moe_operator.cli.cluster_view import DEPLOYMENTS, ClusterGpus, GpuPod, Kubectl, NoCluster, gpus_of
from moe_operator.cli.kubectl import main

from tests.planning.known_models import CONFIGS

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "kimi-k3-4x8-h20.yaml"
H20 = GpuPod("NVIDIA-H20", 8)
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def node(
    name: str, gpus: int = 8, product: str = "NVIDIA-H20", cordoned: bool = False, **spec: Any
) -> dict[str, Any]:
    resources = {"nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {
            "name": name,
            "labels": {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "97871"},
        },
        "spec": {"unschedulable": cordoned, **spec},
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(on: str, gpus: int) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "metadata": {"name": f"pod-{on}", "namespace": "default"},
        "spec": {"nodeName": on, "containers": [{"resources": limits}]},
        "status": {"phase": "Running"},
    }


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that prints what lies in files, one per resource, and writes down what it was asked."""
    script = tmp_path / "kubectl"
    script.write_text(
        f"""#!/bin/sh
echo "$*" >> {tmp_path}/asked
while [ "$1" != get ]; do shift; done
if [ -f {tmp_path}/$2.json ]; then cat {tmp_path}/$2.json
elif [ -f {tmp_path}/$2.error ]; then cat {tmp_path}/$2.error >&2; exit 1
else echo "error: the server doesn't have a resource type \\"$2\\"" >&2; exit 1
fi
"""
    )
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def put(directory: Path, resource: str, *items: dict[str, Any]) -> None:
    (directory / f"{resource}.json").write_text(json.dumps({"items": list(items)}))


def counted(pod: GpuPod = H20) -> ClusterGpus:
    return gpus_of(Kubectl(), pod, OperatorPolicy())


def test_free_gpus_are_counted_on_nodes_that_may_be_used(kubectl: Path) -> None:
    nodes = [node("a"), node("b"), node("c", cordoned=True), node("d", product="NVIDIA-H200")]
    put(kubectl, "nodes", *nodes)
    put(kubectl, "pods", pod("b", 3))
    put(kubectl, DEPLOYMENTS)
    found = counted()
    assert (found.nodes, found.usable_nodes, found.free_nodes, found.free_gpus) == (3, 2, 1, 13)
    assert found.memory_mib == 97_871 and found.excluded == ("c is cordoned",)


def test_gpus_that_a_placement_promises_are_not_free(kubectl: Path) -> None:
    placement = {"revision": "r1", "replica": 0, "gpusPerNode": 8, "ranks": [{"rank": 0, "node": "b"}]}
    waiting = {
        "metadata": {"name": "m", "namespace": "x"},
        "spec": {"accelerators": {"product": "NVIDIA-H20"}},
        "status": {"placement": [placement]},
    }
    put(kubectl, "nodes", node("a"), node("b"))
    put(kubectl, "pods")
    put(kubectl, DEPLOYMENTS, waiting)
    assert counted().free_gpus == 8


def test_a_cluster_without_the_operator_has_no_promises(kubectl: Path) -> None:
    put(kubectl, "nodes", node("a"))
    put(kubectl, "pods")
    assert counted().free_gpus == 8


def test_a_taint_that_the_pods_will_tolerate_excludes_nothing(kubectl: Path) -> None:
    put(kubectl, "nodes", node("a", taints=[TAINT]))
    put(kubectl, "pods")
    assert counted().excluded == ("a has taint nvidia.com/gpu=present:NoSchedule that is not tolerated",)
    assert (
        counted(
            GpuPod("NVIDIA-H20", 8, tolerations=({"key": "nvidia.com/gpu", "operator": "Exists"},))
        ).excluded
        == ()
    )


def test_nodes_that_the_spec_does_not_select_are_not_counted(kubectl: Path) -> None:
    put(kubectl, "nodes", node("a"))
    put(kubectl, "pods")
    found = counted(GpuPod("NVIDIA-H20", 8, node_selector={"pool": "moe"}))
    assert found.free_gpus == 0
    assert found.excluded == ("a has no label pool=moe, which placement.nodeSelector asks for",)


def test_a_cluster_without_the_product_says_what_it_has(kubectl: Path) -> None:
    put(kubectl, "nodes", node("a", product="NVIDIA-H200"))
    with pytest.raises(NoCluster, match=r"no node with GPUs of product NVIDIA-H20 .*NVIDIA-H200"):
        counted()


@pytest.mark.parametrize("resource", ["nodes", "pods", DEPLOYMENTS])
def test_what_kubectl_refuses_is_said_in_its_words(kubectl: Path, resource: str) -> None:
    put(kubectl, "nodes", node("a"))
    put(kubectl, "pods")
    (kubectl / f"{resource}.json").unlink(missing_ok=True)
    (kubectl / f"{resource}.error").write_text("Error from server (Forbidden): nothing for you\n")
    with pytest.raises(NoCluster, match=f"kubectl get {resource}: .*nothing for you"):
        counted()


def test_a_machine_without_kubectl_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCluster, match="kubectl is not on PATH"):
        Kubectl().items("nodes")


def test_a_manifest_that_is_not_there_is_none_and_one_that_cannot_be_read_is_an_error(kubectl: Path) -> None:
    (kubectl / "configmap.json").write_text("")  # what --ignore-not-found prints
    assert Kubectl().manifest("ns", "m") is None
    (kubectl / "configmap.json").write_text(json.dumps({"metadata": {"name": "m"}, "data": {}}))
    with pytest.raises(NoCluster, match="ConfigMap ns/m holds no manifest"):
        Kubectl().manifest("ns", "m")
    (kubectl / "configmap.json").unlink()
    (kubectl / "configmap.error").write_text("Error from server (Forbidden): not yours\n")
    with pytest.raises(NoCluster, match="not yours"):
        Kubectl().manifest("ns", "m")


def collected(kubectl: Path, total_bytes: int) -> None:
    """What the operator keeps of a resolved Kimi-K3."""
    manifest = Manifest.model_validate(
        {
            "source": "hf://moonshotai/Kimi-K3",
            "config": json.loads((CONFIGS / "moonshotai--Kimi-K3.config.json").read_text()),
            "weights": {"totalBytes": total_bytes},
            "files": [],
        }
    )
    data = {"manifest.json": manifest.model_dump_json(by_alias=True)}
    (kubectl / "configmap.json").write_text(json.dumps({"metadata": {"name": "m"}, "data": data}))


def planned(*more: str) -> Any:
    asked = ["plan", "-f", str(EXAMPLE), "--against-cluster", "-o", "yaml", *more]
    result = CliRunner().invoke(main, asked, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return yaml.safe_load(result.stdout)


def test_the_collected_manifest_goes_before_the_catalogue(kubectl: Path) -> None:
    collected(kubectl, 1_560_860_324_864)
    put(kubectl, "nodes", *(node(f"n{i}") for i in range(4)))
    put(kubectl, "pods", pod("n0", 8))
    found = planned("--context", "kind-x", "-n", "team")
    assert found["model"]["factsFrom"].startswith("ConfigMap team/")
    assert found["cluster"]["free_nodes"] == 3
    lines = (kubectl / "asked").read_text().splitlines()
    assert lines and all(line.startswith("--context kind-x get ") for line in lines)


def test_weights_that_the_operator_counted_by_their_shapes_are_counted_so_here(kubectl: Path) -> None:
    collected(kubectl, 687_156)  # a checkpoint whose tensors were shrunk for a trial
    put(kubectl, "nodes", *(node(f"n{i}") for i in range(4)))
    put(kubectl, "pods")
    found = planned()
    assert found["model"]["weightsBytes"] > 1_560_000_000_000
    assert any("the index says 687,156 bytes" in said for said in found["assumptions"])
