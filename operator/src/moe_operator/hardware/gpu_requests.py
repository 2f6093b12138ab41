"""How many GPUs of which node are spoken for: by pods that hold them, by placements that promise them.

A pod holds GPUs from the moment it is bound until it has ended, whoever owns it. A placement promises
GPUs while no such pod stands for its rank: before the pod is created, before it is bound, and between
two lives of a group. So every rank counts exactly once, as a pod or as a promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moe_operator.api.names import pod_name
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.quantity import parse_quantity

Obj = dict[str, Any]

DEFAULT_GPUS_PER_NODE = 8  # an HGX baseboard
TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


def gpu_resource(deployment: Obj, policy: OperatorPolicy) -> str:
    """Extended resource that counts the GPUs of a MoEDeployment; a preset's own goes first."""
    accelerators = _accelerators(deployment)
    preset = policy.presets.get(accelerators.get("product", ""))
    return preset.resource_name if preset else str(accelerators.get("resourceName", "nvidia.com/gpu"))


def gpu_requests(pod: Obj, resource: str) -> int:
    """Effective request of ``pod`` for the extended resource ``resource``, in whole GPUs.

    Kubernetes' rule (pkg/api/v1/resource PodRequests): containers and sidecars add up; an init container
    runs beside the sidecars started before it; the larger of both counts, plus the runtime's overhead.
    """
    spec = pod.get("spec") or {}
    sidecars = peak = 0
    for container in spec.get("initContainers") or ():
        amount = _request(container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars += amount
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + amount)
    running = sidecars + sum(_request(c, resource) for c in spec.get("containers") or ())
    return max(running, peak) + _count(_mapping(spec, "overhead").get(resource))


def holds_gpus(pod: Obj) -> bool:
    """Whether ``pod`` is bound to a node and has not ended; a terminating pod still holds."""
    phase = _mapping(pod, "status").get("phase")
    return bool(_mapping(pod, "spec").get("nodeName")) and phase not in TERMINAL_PHASES


def taken_by_pods(pods: Iterable[Obj], resource: str) -> dict[str, int]:
    """Node name → GPUs held by ``pods``; nodes without any are absent."""
    taken: dict[str, int] = {}
    for pod in pods:
        amount = gpu_requests(pod, resource) if holds_gpus(pod) else 0
        if amount:
            node = pod["spec"]["nodeName"]
            taken[node] = taken.get(node, 0) + amount
    return taken


def promised_by_placements(
    deployments: Iterable[Obj], pods: Iterable[Obj], resource: str, policy: OperatorPolicy
) -> dict[str, int]:
    """Node name → GPUs that the placements in the status of ``deployments`` promise beyond ``pods``.

    ``pods`` are all pods of the cluster. Only MoEDeployments that ask for ``resource`` count.
    """
    standing = {(p["metadata"]["namespace"], p["metadata"]["name"]) for p in pods if holds_gpus(p)}
    promised: dict[str, int] = {}
    for deployment in deployments:
        if gpu_resource(deployment, policy) != resource:
            continue
        name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
        for placement in _mapping(deployment, "status").get("placement") or ():
            amount = _gpus_per_rank(deployment, placement)
            revision, replica = placement.get("revision", ""), placement.get("replica", 0)
            for rank in placement.get("ranks") or ():
                if (namespace, pod_name(name, revision, replica, rank.get("rank", 0))) not in standing:
                    promised[rank["node"]] = promised.get(rank["node"], 0) + amount
    return promised


def _gpus_per_rank(deployment: Obj, placement: Obj) -> int:
    """What was recorded with the placement; else the most that the plan or the spec would take."""
    recorded = placement.get("gpusPerNode")
    if recorded:
        return int(recorded)
    planned = _mapping(_mapping(_mapping(deployment, "status"), "plan"), "layout").get("gpusPerNode", 0)
    asked = _accelerators(deployment).get("gpusPerNode") or 0
    return max(planned, asked) or DEFAULT_GPUS_PER_NODE


def _accelerators(deployment: Obj) -> Mapping[str, Any]:
    return _mapping(_mapping(deployment, "spec"), "accelerators")


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return parent.get(key) or {}


def _request(container: Obj, resource: str) -> int:
    """A limit without a request is a request: the API server defaults it so."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    return _count(requests.get(resource, limits.get(resource)))


def _count(quantity: object) -> int:
    return parse_quantity(str(quantity)) if quantity is not None else 0
