"""How long a decision takes, and how much memory the operator needs: ``python -m benchmarks.reconcile``.

Decisions: 200 MoEDeployments, each decided on a snapshot that has to be planned and placed, on clusters of
100, 1,000 and 5,000 nodes of which a third is taken. Memory: the real ``moe-operator run`` as a process,
against the in-memory API over HTTP, with 200 MoEDeployments on 1,000 nodes, once it has seen them all.
Writes benchmarks/results/reconcile.json and ends with one ``figure:`` line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moe_operator.api.crd import custom_resource_definition
from moe_operator.api.manifest import Manifest, ManifestFile, WeightSummary
from moe_operator.api.names import FINALIZER, manifest_name
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.spec import MoEDeployment
from moe_operator.hardware.nodes import GpuNode
from moe_operator.reconcile.decide import decide
from moe_operator.reconcile.plan import source_digest
from moe_operator.reconcile.snapshot import Cluster, Snapshot
from moe_operator.resources.manifest_config_map import manifest_config_map
from moe_operator.resources.ownership import Owner
from moe_operator.runtime.kube import MOE_DEPLOYMENT
from moe_operator.sandbox.api import MemoryApi, MemoryKube
from moe_operator.sandbox.rest import RestServer

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "e2e/checkpoints/data/kimi-k3.config.json"
DEPLOYMENTS = 200
CLUSTERS = (100, 1_000, 5_000)
ROUNDS = 5
NOW = 1_796_000_000.0
SETTLE_SECONDS = 180.0
MIB = 1 << 20

Obj = dict[str, Any]


def deployment(number: int) -> Obj:
    return {
        "apiVersion": "moe-operator.io/v1alpha1",
        "kind": "MoEDeployment",
        "metadata": {
            "name": f"k3-{number}", "namespace": "default", "uid": f"uid-{number}", "generation": 1,
            "resourceVersion": "1", "finalizers": [FINALIZER],
        },
        "spec": {
            "model": {"source": "https://models.example/k3"},
            "engine": {"type": "vLLM", "image": "vllm:1", "maxModelLen": 131072},
            "accelerators": {"product": "NVIDIA-H20", "nodes": 4},
        },
    }  # fmt: skip


def facts() -> Manifest:
    files = [
        ManifestFile(path=f"model-{n:05}.safetensors", size=16_258_961_717, sha256=f"{n:064x}")
        for n in range(96)
    ]
    total = sum(file.size for file in files)
    weights = WeightSummary(tensors=497_220, total_bytes=total, shards=len(files))
    return Manifest(
        source="https://models.example/k3",
        files=files,
        config=json.loads(CONFIG.read_text()),
        weights=weights,
    )


def node(number: int) -> Obj:
    resources = {"nvidia.com/gpu": "8", "cpu": "192", "memory": "2Ti", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"h20-{number:05}", "uid": f"node-{number}",
            "labels": {
                "nvidia.com/gpu.product": "NVIDIA-H20", "nvidia.com/gpu.memory": "97871",
                "fabric.topograph.run/tier-0": f"leaf-{number // 16}",
            },
        },
        "status": {
            "capacity": resources, "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }  # fmt: skip


def snapshots(nodes: int) -> Iterator[Snapshot]:
    names = [node(n) for n in range(nodes)]
    cluster = Cluster(
        nodes=tuple(GpuNode.from_node(n, "nvidia.com/gpu") for n in names),
        taken={n["metadata"]["name"]: 8 for n in names[::3]},
    )
    manifest = facts()
    for number in range(DEPLOYMENTS):
        obj = deployment(number)
        spec = MoEDeployment.parse(obj).spec
        owner = Owner(obj["metadata"]["name"], "default", obj["metadata"]["uid"])
        config_map = manifest_config_map(owner, manifest_name(owner.name, source_digest(spec)), manifest)
        yield Snapshot(
            now=NOW,
            policy=OperatorPolicy(),
            object=obj,
            children={"ConfigMap": (config_map,)},
            cluster=cluster,
        )


def decision_times(nodes: int) -> list[float]:
    """Sorted milliseconds of every decision."""
    prepared = list(snapshots(nodes))
    times = []
    for _ in range(ROUNDS):
        for snapshot in prepared:
            began = time.perf_counter()
            decision = decide(snapshot)
            times.append(1000 * (time.perf_counter() - began))
            assert decision.claims, "this decision was to place a replica"
    return sorted(times)


def share(times: list[float], part: float) -> float:
    return round(times[min(len(times) - 1, int(part * len(times)))], 2)


async def operator_memory() -> dict[str, float]:
    """MiB of the operator's process with 200 deployments on 1,000 nodes."""
    api = MemoryApi()
    api.create(custom_resource_definition())
    kube = MemoryKube(api, manager="kubectl")
    for number in range(1_000):
        made = node(number)
        await kube.create({key: value for key, value in made.items() if key != "status"})
        await kube.apply_status({**made, "metadata": {"name": made["metadata"]["name"]}}, manager="kubelet")
    for number in range(DEPLOYMENTS):
        obj = deployment(number)
        await kube.create({**obj, "metadata": {"name": obj["metadata"]["name"], "namespace": "default"}})
    with tempfile.TemporaryDirectory() as directory:
        async with RestServer(api, admin_token="benchmark") as rest:
            await rest.start("127.0.0.1", 0)
            kubeconfig = Path(directory, "kubeconfig")
            rest.write_kubeconfig(kubeconfig)
            arguments = ("run", "--kubeconfig", kubeconfig, "--listen", "127.0.0.1:0")
            operator = await asyncio.create_subprocess_exec(
                Path(sys.executable).parent / "moe-operator", *arguments, stdout=DEVNULL, stderr=DEVNULL
            )
            try:
                took = await _all_seen(api)
                return {"mib": round(_most_memory(operator.pid) / MIB, 1), "seconds": round(took, 1)}
            finally:
                operator.terminate()
                await operator.wait()


async def _all_seen(api: MemoryApi) -> float:
    began = time.monotonic()
    while time.monotonic() - began < SETTLE_SECONDS:
        found = api.list(MOE_DEPLOYMENT).items
        if all((o.get("status") or {}).get("observedGeneration") == 1 for o in found):
            return time.monotonic() - began
        await asyncio.sleep(0.2)
    raise TimeoutError(f"the operator did not get to all {DEPLOYMENTS} within {SETTLE_SECONDS:.0f} s")


def _most_memory(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(row for row in text.splitlines() if row.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    rows = []
    for nodes in CLUSTERS:
        times = decision_times(nodes)
        row = {"nodes": nodes, "p50_ms": share(times, 0.5), "p99_ms": share(times, 0.99)}
        rows.append(row)
        print(f"decide, {nodes:5} nodes × {DEPLOYMENTS}: p50 {row['p50_ms']} ms, p99 {row['p99_ms']} ms")
    memory = asyncio.run(operator_memory())
    print(f"operator, 1,000 nodes × {DEPLOYMENTS}: {memory['mib']} MiB, all seen after {memory['seconds']} s")
    results = ROOT / "benchmarks/results"
    results.mkdir(exist_ok=True)
    (results / "reconcile.json").write_text(json.dumps({"decide": rows, "operator": memory}, indent=1) + "\n")
    growth = round(rows[-1]["p50_ms"] / rows[0]["p50_ms"], 2)
    print(
        f"figure: decide p99 {rows[1]['p99_ms']} ms at 1,000 nodes × {DEPLOYMENTS}; 50 × the nodes cost "
        f"{growth} × the time; operator {memory['mib']} MiB at {DEPLOYMENTS}"
    )


if __name__ == "__main__":
    main()
