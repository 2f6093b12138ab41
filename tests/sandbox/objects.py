"""Builders of the objects that sandbox tests talk about."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]


def container(name: str = "main", *, image: str = "sh", script: str = "", **more: Any) -> Obj:
    """A container that runs a shell script (image ``sh`` is mapped to a shell)."""
    return {"name": name, "image": image, "args": ["-c", script], **more}


def pod(
    name: str,
    *containers: Obj,
    gpus: int = 0,
    node: str = "",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Obj:
    """A pod; ``gpus`` are asked for by its first container."""
    members = [dict(c) for c in containers] or [container()]
    if gpus:
        members[0]["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    body: Obj = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, **spec, "containers": members}
    if node:
        body["affinity"] = pinned_to(node)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
        "spec": body,
    }


def pinned_to(*nodes: str) -> Obj:
    """The affinity with which the operator pins a pod."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(nodes)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def node(name: str, *, gpus: int = 8, ready: bool = True, **spec: Any) -> Obj:
    """A node as its kubelet reports it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus), "cpu": "64", "memory": "512Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def config_map(name: str, **data: str) -> Obj:
    """A ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": data,
    }


def service(name: str, selector: dict[str, str], *ports: int, **spec: Any) -> Obj:
    """A Service."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": selector,
            "ports": [{"name": f"p{port}", "port": port} for port in ports],
            **spec,
        },
    }
