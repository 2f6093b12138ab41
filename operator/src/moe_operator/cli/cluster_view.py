"""What a live cluster adds to a plan, read with the user's own ``kubectl``.

kubectl brings credentials, exec plugins, proxies and contexts along. It only reads: nodes, pods,
MoEDeployments and the manifest that the operator collected. A cluster in which the operator is not yet
installed has no MoEDeployments, and that is no error: planning comes before installing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moe_operator.api.manifest import Manifest
from moe_operator.api.policy import OperatorPolicy
from moe_operator.hardware.gpu_requests import promised_by_placements, taken_by_pods
from moe_operator.hardware.nodes import GpuNode, unusable
from moe_operator.resources.manifest_config_map import manifest_of

Obj = dict[str, Any]
TIMEOUT_SECONDS = 60
DEPLOYMENTS = "moedeployments.moe-operator.io"
UNKNOWN_RESOURCE = "the server doesn't have a resource type"


class NoCluster(Exception):
    """Why the cluster cannot be read, in one line."""


class NoSuchResource(NoCluster):
    """The API server serves no such kind."""


@dataclass(frozen=True, slots=True)
class ClusterGpus:
    """GPUs of one product. ``free`` counts nodes that could take a whole pod of the layout."""

    product: str
    nodes: int
    memory_mib: int  # the least that a node reports; 0 = none reports
    usable_nodes: int
    free_nodes: int
    free_gpus: int
    excluded: tuple[str, ...]  # "node why", for nodes that may not be used


@dataclass(frozen=True, slots=True)
class GpuPod:
    """What one pod of the layout asks of a node."""

    product: str
    gpus: int
    resource: str = "nvidia.com/gpu"
    tolerations: Sequence[Obj] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)

    def cannot_use(self, node: GpuNode) -> str:
        """Why it may not be placed on ``node``; "" when it may."""
        for key, value in self.node_selector.items():
            if node.labels.get(key) != value:
                return f"has no label {key}={value}, which placement.nodeSelector asks for"
        return unusable(node, self.tolerations)


@dataclass(frozen=True, slots=True)
class Kubectl:
    """``kubectl`` with the flags that select a cluster."""

    flags: tuple[str, ...] = ()

    def items(self, *resource: str) -> list[Obj]:
        """``kubectl get RESOURCE -o json``; NoCluster when it fails."""
        return list(self._get(*resource).get("items", ()))

    def deployment(self, name: str, namespace: str | None) -> Obj:
        """One MoEDeployment; NoCluster when it cannot be read."""
        return self._get("moedeployment", name, *(("-n", namespace) if namespace else ()))

    def deployments(self) -> list[Obj]:
        """Every MoEDeployment; none where the operator's resource is not installed."""
        try:
            return self.items(DEPLOYMENTS, "--all-namespaces")
        except NoSuchResource:
            return []

    def manifest(self, namespace: str, name: str) -> Manifest | None:
        """The manifest in a ConfigMap, None when there is no such one; NoCluster when it cannot be read."""
        found = self._get("configmap", name, "--namespace", namespace, "--ignore-not-found")
        try:
            return manifest_of(found) if found else None
        except ValueError as error:
            raise NoCluster(f"ConfigMap {namespace}/{name} holds no manifest: {error}") from error

    def _get(self, *resource: str) -> Obj:
        command = ["kubectl", *self.flags, "get", *resource, "-o", "json"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
        except FileNotFoundError:
            raise NoCluster("kubectl is not on PATH") from None
        except subprocess.TimeoutExpired:
            raise NoCluster(f"kubectl did not answer within {TIMEOUT_SECONDS} s") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["failed"]
            unknown = said[-1].removeprefix("error: ").startswith(UNKNOWN_RESOURCE)
            kind = NoSuchResource if unknown else NoCluster
            raise kind(f"kubectl get {resource[0]}: {said[-1]}")
        try:
            found = json.loads(done.stdout or b"{}")
        except ValueError as error:
            raise NoCluster(f"kubectl get {resource[0]} did not answer in JSON: {error}") from error
        return dict(found)


def gpus_of(kubectl: Kubectl, pod: GpuPod, policy: OperatorPolicy) -> ClusterGpus:
    """Count the nodes on which ``pod`` may be placed and what is free on them."""
    every = [GpuNode.from_node(node, pod.resource) for node in kubectl.items("nodes")]
    nodes = [node for node in every if node.product == pod.product]
    if not nodes:
        others = ", ".join(sorted({node.product for node in every if node.product})) or "none with GPU labels"
        raise NoCluster(f"the cluster has no node with GPUs of product {pod.product} (it has: {others})")
    pods = kubectl.items("pods", "--all-namespaces")
    taken = taken_by_pods(pods, pod.resource)
    promised = promised_by_placements(kubectl.deployments(), pods, pod.resource, policy)
    excluded = {node.name: why for node in nodes if (why := pod.cannot_use(node))}
    free = {
        node.name: node.allocatable - taken.get(node.name, 0) - promised.get(node.name, 0)
        for node in nodes
        if node.name not in excluded
    }
    return ClusterGpus(
        product=pod.product,
        nodes=len(nodes),
        memory_mib=min((node.memory_mib for node in nodes if node.memory_mib), default=0),
        usable_nodes=len(free),
        free_nodes=sum(1 for gpus in free.values() if gpus >= pod.gpus),
        free_gpus=sum(max(0, gpus) for gpus in free.values()),
        excluded=tuple(f"{name} {why}" for name, why in sorted(excluded.items())),
    )
