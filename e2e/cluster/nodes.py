"""The cluster's nodes through its API server: wait for them, wire them, give them their GPUs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from e2e.cluster import containers, wiring
from e2e.cluster.command import attempt, run
from e2e.cluster.settings import POD_SUBNET
from e2e.cluster.topology import NodePatch, Topology, missing
from e2e.cluster.wiring import WiredNode

Obj = dict[str, Any]
T = TypeVar("T")
_POLL_SECONDS = 0.5
_DNS = ("-n", "kube-system", "-l", "k8s-app=kube-dns")
_REQUEST = "--request-timeout=5s"


class NotInTime(Exception):
    """The cluster did not reach a state before its deadline."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with the cluster's credentials."""

    program: Path
    kubeconfig: Path

    def __call__(self, *arguments: str) -> str:
        """Run a command; raises CommandFailed."""
        return run(self.program, "--kubeconfig", self.kubeconfig, *arguments)

    def apply(self, *objects: Obj) -> None:
        """Server-side apply; raises CommandFailed."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        argv = (self.program, "--kubeconfig", self.kubeconfig, "apply", "--server-side", "-f", "-")
        run(*argv, stdin=text)

    def items(self, *arguments: str) -> list[Obj] | None:
        """Objects of a list, or None when the API server does not answer."""
        outcome = attempt(
            self.program,
            "--kubeconfig",
            self.kubeconfig,
            "get",
            *arguments,
            "-o",
            "json",
            _REQUEST,
            timeout=15,
        )
        return list(json.loads(outcome.out)["items"]) if outcome.ok else None


def readiness(nodes: list[Obj] | None) -> dict[str, bool] | None:
    """Node → Ready; None stays None."""
    return None if nodes is None else {node["metadata"]["name"]: is_ready(node) for node in nodes}


def is_ready(node: Obj) -> bool:
    """Whether a Node object's Ready condition is True."""
    conditions = node["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def renewed_since(leases: list[Obj], moment: datetime) -> set[str]:
    """Nodes whose kubelet spoke after ``moment``: until then Ready may be a memory of an earlier life."""
    return {
        lease["metadata"]["name"]
        for lease in leases
        if (renewed := lease["spec"].get("renewTime")) and datetime.fromisoformat(renewed) >= moment
    }


def wire(kubectl: Kubectl, size: int, seconds: float) -> None:
    """Wire every node's pod network, once each has its range of addresses."""

    def ranges() -> dict[str, str] | None:
        known = {
            node["metadata"]["name"]: node["spec"].get("podCIDR", "") for node in kubectl.items("nodes") or ()
        }
        return known if len(known) == size and all(known.values()) else None

    cidrs = wait_for("every node to have its range of pod addresses", seconds, ranges)
    here = containers.addresses(cidrs)
    wired = [WiredNode(name, cidr, here[name]) for name, cidr in cidrs.items()]
    with ThreadPoolExecutor(max_workers=len(wired)) as pool:
        scripts = {node.name: wiring.script(node, wired, POD_SUBNET) for node in wired}
        list(pool.map(containers.run_in, scripts.keys(), scripts.values()))


def wait_until_ready(kubectl: Kubectl, size: int, seconds: float, since: datetime | None = None) -> list[Obj]:
    """The Node objects, once all are Ready and, with ``since``, their kubelets have spoken after it."""

    def all_ready() -> list[Obj] | None:
        nodes = kubectl.items("nodes") or []
        if len(nodes) != size or not all(is_ready(node) for node in nodes):
            return None
        if since is None:
            return nodes
        leases = kubectl.items("leases.coordination.k8s.io", "-n", "kube-node-lease") or []
        return nodes if len(renewed_since(leases, since)) == size else None

    return wait_for(f"{size} nodes to be Ready", seconds, all_ready)


def wait_until_useful(kubectl: Kubectl, worker: str, seconds: float) -> None:
    """Pods can be made (default ServiceAccount) and names resolve, as seen from inside ``worker``."""

    def account() -> bool | None:
        found = kubectl.items("serviceaccounts", "-n", "default", "--field-selector", "metadata.name=default")
        return bool(found) or None

    def names_resolve() -> bool | None:
        # After a restart the Deployment still says what was true before, so CoreDNS itself is asked.
        pods = kubectl.items("pods", *_DNS)
        services = kubectl.items("services", *_DNS)
        if not pods or not services:
            return None
        return containers.try_in(worker, name_service_check(pods, services[0])) or None

    wait_for("the default ServiceAccount", seconds, account)
    wait_for("CoreDNS", seconds, names_resolve)


def name_service_check(pods: list[Obj], service: Obj) -> str:
    """A shell command that succeeds when every CoreDNS pod is ready and their Service leads to them."""
    urls = [f"http://{pod['status'].get('podIP', 'none')}:8181/ready" for pod in pods]
    urls.append(f"http://{service['spec']['clusterIP']}:9153/metrics")
    return " && ".join(f"curl -sf -m 2 -o /dev/null {url}" for url in urls)


def pretend_gpus(kubectl: Kubectl, topology: Topology, nodes: list[Obj]) -> int:
    """Give the workers the labels and devices that they lack; returns how many needed any."""
    patches = missing(topology, nodes)
    for patch in patches:
        _apply(kubectl, patch)
    return len(patches)


def wait_for(what: str, seconds: float, observe: Callable[[], T | None]) -> T:
    """Ask until there is an answer; raises NotInTime."""
    deadline = time.monotonic() + seconds
    while (answer := observe()) is None:
        if time.monotonic() > deadline:
            raise NotInTime(f"waited {seconds:.0f} s for {what}")
        time.sleep(_POLL_SECONDS)
    return answer


def now() -> datetime:
    """The moment, as the API server writes it."""
    return datetime.now(UTC)


def _apply(kubectl: Kubectl, patch: NodePatch) -> None:
    if patch.labels:
        body = json.dumps({"metadata": {"labels": dict(patch.labels)}})
        kubectl("patch", "node", patch.node, "--type=merge", "-p", body)
    if patch.capacity:
        # The kubelet copies capacity to allocatable within seconds; written at once, nobody has to wait.
        devices = dict(patch.capacity)
        body = json.dumps({"status": {"capacity": devices, "allocatable": devices}})
        kubectl("patch", "node", patch.node, "--subresource=status", "--type=merge", "-p", body)
