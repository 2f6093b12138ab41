"""How fast groups come to be on a real cluster: ``python -m benchmarks.reconcile_kind``.

Brings up the cluster of ``python -m e2e.kind up``. Side by side in one run: a MoEDeployment and a
StatefulSet with as many pods, from apply until the last pod exists, as 1 group of 4 and as 50 groups of 4.
Then the loss of a rank: from its deletion until the whole group is new and ready. Then the operator's memory
at 10 and at 200 MoEDeployments.

Pods that are only counted carry a scheduler's name that nobody answers to, so the cluster's own work is
creating them, for both sides alike; the nodes they are placed on are objects without a machine.
Writes benchmarks/results/reconcile_kind.json and ends with one ``figure:`` line.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moe_operator.api.names import COMPONENT_ENGINE, LABEL_COMPONENT, LABEL_DEPLOYMENT
from moe_operator.runtime.aio_kube import AioKube
from moe_operator.runtime.kube import MOE_DEPLOYMENT, NODE, POD, Kind

from e2e.checkpoints import build
from e2e.cluster.nodes import Kubectl
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.kind import shared_folder
from e2e.kind.bring_up import Site, bring_up, provide
from e2e.kind.release import NAME as RELEASE
from e2e.kind.release import NAMESPACE as RELEASE_NAMESPACE

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/reconcile_kind.json"
NAMESPACE = "moe-bench"
STATEFUL_SET = Kind("apps", "v1", "StatefulSet", "statefulsets")
NOBODY = "nobody"
NODES = 200
ROUNDS = 7
SECONDS = 600.0
MIB = 1 << 20
NODE_LABEL = "moe-operator.io/benchmark"
# Lets in what asks for next to nothing: the gateways of 200 deployments would fill a laptop.
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "next-to-nothing", "namespace": NAMESPACE},
    "spec": {"hard": {"requests.cpu": "400m"}},
}
LEASES = "kube-node-lease"
HEARTBEAT_SECONDS = 10.0

Obj = dict[str, Any]


def paper_node(number: int) -> Obj:
    """A Node object that no kubelet stands behind."""
    resources = {"nvidia.com/gpu": "8", "cpu": "192", "memory": "2Ti", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"paper-{number:03}",
            "labels": {
                NODE_LABEL: "paper", "nvidia.com/gpu.product": "NVIDIA-H20",
                "nvidia.com/gpu.memory": "97871", "nvidia.com/gpu.count": "8",
            },
        },
        "spec": {"taints": [{"key": NODE_LABEL, "value": "paper", "effect": "NoSchedule"}]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Paper", "message": ""}],
        },
    }  # fmt: skip


def groups(name: str, replicas: int, nodes: int = 4) -> Obj:
    """A MoEDeployment of so many groups of ``nodes`` pods that nobody schedules."""
    return {
        "apiVersion": "moe-operator.io/v1alpha1",
        "kind": "MoEDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {"source": "none"},
            "engine": {"type": "vLLM", "image": "moe-engine-stub:none", "maxModelLen": 4096},
            "parallelism": {"tensor": 8, "data": nodes, "expert": True},
            "replicas": replicas,
            "accelerators": {"product": "NVIDIA-H20", "nodes": nodes, "gpusPerNode": 8},
            "placement": {
                "nodeSelector": {NODE_LABEL: "paper"},
                "schedulerName": NOBODY,
                "tolerations": [{"key": NODE_LABEL, "operator": "Exists"}],
            },
            "resources": {"cpu": "1m"},
            "gateway": {"replicas": 1},
        },
    }


def stateful_set(name: str, replicas: int) -> Obj:
    """As many pods from Kubernetes' own controller."""
    labels = {"app": name}
    container = {"name": "engine", "image": "moe-engine-stub:none", "resources": {"requests": {"cpu": "1m"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "serviceName": name,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"schedulerName": NOBODY, "containers": [container]},
            },
        },
    }


async def seconds_to_pods(
    kube: AioKube, kubectl: Kubectl, obj: Obj, kind: Kind, labels: str, count: int
) -> float:
    """From the moment that the object exists until the last of ``count`` pods does, as watches tell."""
    pods, owners = await kube.list(POD, NAMESPACE, labels=labels), await kube.list(kind, NAMESPACE)
    assert not pods.items
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        begun = tasks.create_task(moment_of(kube, kind, "", 1, owners.resource_version))
        ended = tasks.create_task(moment_of(kube, POD, labels, count, pods.resource_version))
        await asyncio.to_thread(kubectl.apply, obj)
    return ended.result() - begun.result()


async def moment_of(kube: AioKube, kind: Kind, labels: str, count: int, since: str) -> float:
    """When ``count`` objects have come to be."""
    seen: set[str] = set()
    async for event in kube.watch(kind, NAMESPACE, labels=labels, resource_version=since):
        if event.type == "ADDED":
            seen.add(event.object["metadata"]["name"])
        if len(seen) == count:
            return time.monotonic()
    raise AssertionError("a watch does not end")


async def gone(kube: AioKube, kind: Kind, name: str, labels: str) -> None:
    """Delete an object and wait until it and its pods are away."""
    await kube.delete(kind, NAMESPACE, name)

    async def away() -> bool:
        objects = (await kube.list(kind, NAMESPACE)).items
        return (
            name not in {o["metadata"]["name"] for o in objects}
            and not (await kube.list(POD, NAMESPACE, labels=labels)).items
        )

    await until(away)


async def until(check: Callable[[], Coroutine[Any, Any, bool]]) -> float:
    """Seconds until ``check`` is true."""
    began = time.monotonic()
    async with asyncio.timeout(SECONDS):
        while not await check():  # noqa: ASYNC110 - what is asked lies in another process
            await asyncio.sleep(0.05)
    return time.monotonic() - began


def pods_of(name: str) -> str:
    """Gateways too: one that ends is still asked what it runs."""
    return f"{LABEL_DEPLOYMENT}={name}"


def engines_of(name: str) -> str:
    return f"{LABEL_DEPLOYMENT}={name},{LABEL_COMPONENT}={COMPONENT_ENGINE}"


async def creation(kube: AioKube, kubectl: Kubectl, replicas: int, rounds: int) -> dict[str, float]:
    """Median seconds of both sides for ``replicas`` groups of 4, taken alternately."""
    sides = (
        ("moedeployment_s", groups("ours", replicas), MOE_DEPLOYMENT, engines_of("ours"), pods_of("ours")),
        ("statefulset_s", stateful_set("theirs", 4 * replicas), STATEFUL_SET, "app=theirs", "app=theirs"),
    )
    taken: dict[str, list[float]] = {side: [] for side, *_ in sides}
    for _ in range(rounds):
        for side, obj, kind, labels, everything in sides:
            taken[side].append(await seconds_to_pods(kube, kubectl, obj, kind, labels, 4 * replicas))
            await gone(kube, kind, obj["metadata"]["name"], everything)
    return {side: statistics.median(seconds) for side, seconds in taken.items()}


async def healing(kube: AioKube, site: Site) -> list[float]:
    """Seconds from the deletion of a rank's pod of a group that serves until four new pods are ready."""
    obj = groups("real", 1)
    obj["spec"]["model"] = {"source": "pvc://checkpoints/kimi-k3", "trustRemoteCode": True}
    obj["spec"]["engine"] = {"type": "vLLM", "image": site.images.stub_of("0.33.0"), "maxModelLen": 131072}
    obj["spec"]["placement"] = {}
    obj["spec"]["restart"] = {"backoffSeconds": 0, "maxGroupRestarts": 100}
    await kube.apply(obj, manager="kubectl")

    async def whole_without(old: set[str]) -> bool:
        pods = (await kube.list(POD, NAMESPACE, labels=engines_of("real"))).items
        fresh = [p for p in pods if p["metadata"]["uid"] not in old and ready(p)]
        return len(pods) == len(fresh) == 4

    async def serves() -> bool:
        status = (await kube.get(MOE_DEPLOYMENT, NAMESPACE, "real")).get("status") or {}
        verified = any(group.get("verified") for group in status.get("groups") or ())
        return verified and await whole_without(set())

    times = []
    for turn in range(ROUNDS):
        await until(serves)
        pods = (await kube.list(POD, NAMESPACE, labels=engines_of("real"))).items
        old = {p["metadata"]["uid"] for p in pods}
        await kube.delete(POD, NAMESPACE, sorted(p["metadata"]["name"] for p in pods)[turn % 4])
        times.append(await until(lambda old=old: whole_without(old)))  # type: ignore[misc]
    await gone(kube, MOE_DEPLOYMENT, "real", engines_of("real"))
    return sorted(times)


def ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def memory(kube: AioKube, kubectl: Kubectl, count: int) -> float:
    """MiB of the working operator once it has seen ``count`` deployments of one pod each."""
    for number in range(count):
        await kube.apply(groups(f"many-{number}", 1, nodes=1), manager="kubectl")

    async def all_seen() -> bool:
        found = (await kube.list(MOE_DEPLOYMENT, NAMESPACE)).items
        seen = [o for o in found if (o.get("status") or {}).get("observedGeneration") == 1]
        return len(seen) == count

    await until(all_seen)
    selector = f"app.kubernetes.io/name={RELEASE},app.kubernetes.io/component=operator"
    names = kubectl("-n", RELEASE_NAMESPACE, "get", "pods", "-l", selector, "-o", "name").split()
    pages = [
        kubectl(
            "get",
            "--raw",
            f"/api/v1/namespaces/{RELEASE_NAMESPACE}/{n.replace('pod/', 'pods/')}:8080/proxy/metrics",
        )
        for n in names
    ]
    sizes = [
        float(found[1])
        for p in pages
        if (found := re.search(r"^process_resident_memory_bytes (\S+)", p, re.M))
    ]
    return max(sizes) / MIB


@asynccontextmanager
async def prepared(site: Site, folders: Folders) -> AsyncIterator[AioKube]:
    """A namespace for as long as it is entered."""
    kubectl = site.record.client
    build("kimi-k3", shared_folder.checkpoints(folders) / "kimi-k3")
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    kubectl("delete", "pv", f"checkpoints-{NAMESPACE}", "--ignore-not-found")
    kubectl("create", "namespace", NAMESPACE)
    provide(site.record, (NAMESPACE,))
    async with await AioKube.connect(site.record.kubeconfig, manager="kubectl") as kube:
        try:
            yield kube
        finally:
            kubectl("delete", "moed", "--all", "-n", NAMESPACE)
            kubectl("delete", "namespace", NAMESPACE, "--wait=false")
            kubectl("delete", "pv", f"checkpoints-{NAMESPACE}", "--ignore-not-found", "--wait=false")


@asynccontextmanager
async def paper_nodes(kube: AioKube, kubectl: Kubectl) -> AsyncIterator[None]:
    """Nodes that are Ready for as long as it is entered."""
    nodes = [paper_node(number) for number in range(NODES)]
    names = [node["metadata"]["name"] for node in nodes]
    for node in nodes:
        await kube.apply({k: v for k, v in node.items() if k != "status"}, manager="kubectl")
    await beat(kube, names)
    for node, name in zip(nodes, names, strict=True):
        await kube.apply_status({**node, "metadata": {"name": name}}, manager="kubelet")
    heart = asyncio.create_task(keep_beating(kube, names))
    try:
        await until(lambda: all_usable(kube))
        yield
    finally:
        heart.cancel()
        await asyncio.gather(heart, return_exceptions=True)
        kubectl("delete", "nodes", "-l", f"{NODE_LABEL}=paper")
        kubectl("delete", "leases", "-n", LEASES, "-l", f"{NODE_LABEL}=paper")


async def all_usable(kube: AioKube) -> bool:
    """Whether the cluster has taken its own taint off the new nodes, which it does a few at a time."""
    nodes = (await kube.list(NODE, labels=f"{NODE_LABEL}=paper")).items
    return all(len(node["spec"]["taints"]) == 1 for node in nodes)


async def keep_beating(kube: AioKube, nodes: Sequence[str]) -> None:
    while True:
        await beat(kube, nodes, pause=HEARTBEAT_SECONDS / len(nodes))


async def beat(kube: AioKube, nodes: Sequence[str], pause: float = 0.0) -> None:
    """What a kubelet does every ten seconds, each at its own time; a node without it is NotReady after 40."""
    for node in nodes:
        await asyncio.sleep(pause)
        meta = {"name": node, "namespace": LEASES, "labels": {NODE_LABEL: "paper"}}
        spec = {
            "holderIdentity": node,
            "leaseDurationSeconds": 40,
            "renewTime": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        await kube.apply(lease, manager="kubelet", force=True)


async def run(site: Site, folders: Folders) -> dict[str, Any]:
    """Everything, as figures."""
    kubectl = site.record.client
    figures: dict[str, Any] = {}
    async with prepared(site, folders) as kube:
        async with paper_nodes(kube, kubectl):
            figures["one group of 4"] = await creation(kube, kubectl, 1, ROUNDS)
            print(figures, flush=True)
            figures["50 groups of 4"] = await creation(kube, kubectl, 50, 1)
            print(figures, flush=True)
        figures["rank deleted to whole group ready, s"] = await healing(kube, site)
        print(figures, flush=True)
        async with paper_nodes(kube, kubectl):
            kubectl.apply(QUOTA)
            figures["operator MiB at 10"] = await memory(kube, kubectl, 10)
            figures["operator MiB at 200"] = await memory(kube, kubectl, 200)
            kubectl("delete", "moed", "--all", "-n", NAMESPACE)
    return figures


def main() -> int:
    folders = Folders.from_environment()
    site = bring_up(folders, Progress(), bootstrap=False)
    figures = asyncio.run(run(site, folders))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    one, fifty = figures["one group of 4"], figures["50 groups of 4"]
    healed = figures["rank deleted to whole group ready, s"]
    print(
        f"figure: 4 pods after {one['moedeployment_s']:.2f} s (StatefulSet {one['statefulset_s']:.2f}), "
        f"200 after {fifty['moedeployment_s']:.1f} s (StatefulSet {fifty['statefulset_s']:.1f}); "
        f"a group is whole {statistics.median(healed):.1f} s (worst {healed[-1]:.1f}) after a rank's "
        f"deletion; operator {figures['operator MiB at 10']:.0f} / {figures['operator MiB at 200']:.0f} MiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
