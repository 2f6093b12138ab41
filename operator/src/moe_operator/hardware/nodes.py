"""Kubernetes nodes as the planner sees them: product, GPUs, and why a node cannot be used.

Labels are GPU Feature Discovery's (k8s-device-plugin docs/gpu-feature-discovery). They may vanish for a
minute when the discovery pod restarts, so they decide where new groups go and never evict a running one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Obj = dict[str, Any]

LABEL_PRODUCT = "nvidia.com/gpu.product"
LABEL_MEMORY_MIB = "nvidia.com/gpu.memory"
LABEL_SHARING = "nvidia.com/gpu.sharing-strategy"
LABEL_MIG = "nvidia.com/mig.strategy"
LABEL_DRIVER_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
WHOLE_GPU = frozenset({"", "none"})
UPGRADE_AT_REST = frozenset({"", "upgrade-done"})


@dataclass(frozen=True, slots=True)
class Taint:
    """One taint; only NoSchedule and NoExecute keep pods away."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class GpuNode:
    """One node with GPUs. ``allocatable`` below ``capacity`` means the device plugin saw a sick GPU."""

    name: str
    uid: str
    product: str
    allocatable: int
    capacity: int
    memory_mib: int = 0  # per GPU; 0 = not said
    ready: bool = True
    cordoned: bool = False
    terminating: bool = False
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_node(cls, node: Obj, resource_name: str) -> GpuNode:
        """Read a Node object; ``resource_name`` is what the pods will ask for, e.g. nvidia.com/gpu."""
        meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        labels = meta.get("labels") or {}
        return cls(
            name=meta["name"],
            uid=meta.get("uid", ""),
            product=labels.get(LABEL_PRODUCT, ""),
            allocatable=_count(status.get("allocatable"), resource_name),
            capacity=_count(status.get("capacity"), resource_name),
            memory_mib=int(labels[LABEL_MEMORY_MIB]) if labels.get(LABEL_MEMORY_MIB, "").isdigit() else 0,
            ready=any(
                c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ()
            ),
            cordoned=bool(spec.get("unschedulable")),
            terminating=bool(meta.get("deletionTimestamp")),
            taints=tuple(
                Taint(t.get("key", ""), t.get("value", ""), t.get("effect", ""))
                for t in spec.get("taints") or ()
            ),
            labels=labels,
        )


def unusable(node: GpuNode, tolerations: Sequence[Obj] = ()) -> str:
    """Why no new group may be placed on ``node``; "" when it may."""
    if node.terminating:
        return "is being deleted"
    if not node.ready:
        return "is NotReady"
    if node.cordoned:
        return "is cordoned"
    if node.labels.get(LABEL_SHARING, "") not in WHOLE_GPU:
        return f"shares its GPUs ({node.labels[LABEL_SHARING]})"
    if node.labels.get(LABEL_MIG, "") not in WHOLE_GPU:
        return f"slices its GPUs (MIG {node.labels[LABEL_MIG]})"
    if node.labels.get(LABEL_DRIVER_UPGRADE, "") not in UPGRADE_AT_REST:
        return f"is in a driver upgrade ({node.labels[LABEL_DRIVER_UPGRADE]})"
    taint = next((t for t in node.taints if not tolerated(t, tolerations)), None)
    if taint:
        return f"has taint {taint.key}={taint.value}:{taint.effect} that is not tolerated"
    if node.allocatable < node.capacity:
        return f"has {node.capacity - node.allocatable} unhealthy GPU(s) of {node.capacity}"
    return ""


def tolerated(taint: Taint, tolerations: Sequence[Obj]) -> bool:
    """Kubernetes' rule: an empty key with Exists tolerates all; an empty effect matches every effect."""
    if taint.effect not in {"NoSchedule", "NoExecute"}:
        return True
    return any(_tolerates(t, taint) for t in tolerations)


def _tolerates(toleration: Obj, taint: Taint) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.effect:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key", "") in {"", taint.key}
    return toleration.get("key", "") == taint.key and (toleration.get("value") or "") == taint.value


def _count(resources: Mapping[str, Any] | None, name: str) -> int:
    text = str((resources or {}).get(name, "0"))
    return int(text) if text.isdigit() else 0
