"""What a live cluster adds to a plan, read with the user's own ``kubectl``.

kubectl brings credentials, exec plugins, proxies and contexts along. Nothing is written: nodes, pods,
MoEDeployments and the manifest that the operator collected are read.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moe_operator.api.manifest import Manifest
from moe_operator.api.policy import OperatorPolicy
from moe_operator.hardware.gpu_requests import promised_by_placements, taken_by_pods
from moe_operator.hardware.nodes import GpuNode, unusable
from moe_operator.resources.manifest_config_map import manifest_of

Obj = dict[str, Any]
TIMEOUT_SECONDS = 60


class NoCluster(Exception):
    """Why the cluster cannot be read, in one line."""


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
class Kubectl:
    """``kubectl`` with the flags that select a cluster."""

    flags: tuple[str, ...] = ()

    def items(self, *resource: str) -> list[Obj]:
        """``kubectl get RESOURCE -o json``; NoCluster when it fails."""
        return list(self._get(*resource).get("items", ()))

    def deployment(self, name: str, namespace: str | None) -> Obj:
        """One MoEDeployment; NoCluster when it cannot be read."""
        return self._get("moedeployment", name, *(("-n", namespace) if namespace else ()))

    def manifest(self, namespace: str, name: str) -> Manifest | None:
        """The manifest ConfigMap, None when there is none."""
        try:
            return manifest_of(self._get("configmap", name, "-n", namespace))
        except NoCluster:
            return None
        except ValueError as error:
            raise NoCluster(str(error)) from error

    def _get(self, *resource: str) -> Obj:
        command = ["kubectl", *self.flags, "get", *resource, "-o", "json"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
        except FileNotFoundError:
            raise NoCluster("kubectl is not on PATH") from None
        except subprocess.TimeoutExpired:
            raise NoCluster(f"kubectl did not answer within {TIMEOUT_SECONDS} s") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise NoCluster(f"kubectl get {resource[0]}: {said[-1] if said else 'failed'}")
        try:
            found = json.loads(done.stdout)
        except ValueError as error:
            raise NoCluster(f"kubectl get {resource[0]} did not answer in JSON: {error}") from error
        return dict(found)


def gpus_of(
    kubectl: Kubectl, product: str, per_node: int, resource: str, tolerations: Sequence[Obj] = ()
) -> ClusterGpus:
    """Count the nodes of ``product`` and what is free on them."""
    every = [GpuNode.from_node(node, resource) for node in kubectl.items("nodes")]
    nodes = [node for node in every if node.product == product]
    if not nodes:
        others = ", ".join(sorted({node.product for node in every if node.product})) or "none with GPU labels"
        raise NoCluster(f"the cluster has no node with GPUs of product {product} (it has: {others})")
    pods = kubectl.items("pods", "--all-namespaces")
    deployments = kubectl.items("moedeployments", "--all-namespaces")
    taken = taken_by_pods(pods, resource)
    promised = promised_by_placements(deployments, pods, resource, OperatorPolicy())
    excluded = {node.name: why for node in nodes if (why := unusable(node, tolerations))}
    free = {
        node.name: node.allocatable - taken.get(node.name, 0) - promised.get(node.name, 0)
        for node in nodes
        if node.name not in excluded
    }
    return ClusterGpus(
        product=product,
        nodes=len(nodes),
        memory_mib=min((node.memory_mib for node in nodes if node.memory_mib), default=0),
        usable_nodes=len(free),
        free_nodes=sum(1 for gpus in free.values() if gpus >= per_node),
        free_gpus=sum(max(0, gpus) for gpus in free.values()),
        excluded=tuple(f"{name} {why}" for name, why in sorted(excluded.items())),
    )
