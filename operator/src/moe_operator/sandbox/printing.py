"""Tables for ``kubectl get``: columns of a kind, cells of an object.

Custom kinds bring their columns (``additionalPrinterColumns``); of the built-in ones those are here that
somebody watching a deployment looks at, the rest show name and age.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.api_resources import Resource

_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\['([^']+)'\]|\[(\d+)\]|\[\?\(@\.([\w.]+)==\"([^\"]*)\"\)\]")


@dataclass(frozen=True, slots=True)
class Column:
    """One column; ``priority`` above 0 shows with ``-o wide`` only."""

    name: str
    cell: Callable[[Obj, float], Any]  # (object, now in epoch seconds)
    type: str = "string"
    priority: int = 0


def table(resource: Resource, objects: Iterable[Obj], now: float, list_meta: Obj, include: str) -> Obj:
    """``meta.k8s.io/v1 Table`` of some objects; ``include`` as in ``includeObject``."""
    columns = _columns(resource)
    rows = [
        {"cells": [column.cell(obj, now) for column in columns], "object": _included(obj, include)}
        for obj in objects
    ]
    definitions = [
        {
            "name": column.name,
            "type": column.type,
            "format": "name" if column.name == "Name" else "",
            "description": "",
            "priority": column.priority,
        }
        for column in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_meta,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _included(obj: Obj, include: str) -> Obj | None:
    if include == "None":
        return None
    if include == "Object":
        return obj
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _columns(resource: Resource) -> tuple[Column, ...]:
    if resource.custom:
        own = tuple(_custom_column(column) for column in resource.columns)
        return (_NAME, *own) if own else (_NAME, _AGE)
    return (_NAME, *_BUILTIN.get(resource.kind.plural, (_AGE,)))


def _custom_column(column: Obj) -> Column:
    path, kind = column["jsonPath"], column["type"]

    def cell(obj: Obj, now: float) -> Any:
        value = read_path(obj, path)
        return age(value, now) if kind == "date" else value

    return Column(column["name"], cell, "string" if kind == "date" else kind, column.get("priority", 0))


def read_path(obj: Obj, path: str) -> Any:
    """First value at a JSONPath of members, indexes and one-field filters; None when absent."""
    value: Any = obj
    for name, quoted, index, field, wanted in _STEP.findall(path):
        if name or quoted:
            value = value.get(name or quoted) if isinstance(value, dict) else None
        elif not isinstance(value, list):
            return None
        elif index:
            value = value[int(index)] if int(index) < len(value) else None
        else:
            value = next((item for item in value if read_path(item, f".{field}") == wanted), None)
    return value


def age(timestamp: str | None, now: float) -> str:
    """Time since, as kubectl writes it: 12s, 5m3s, 3h, 2d."""
    if not timestamp:
        return "<unknown>"
    seconds = max(0, int(now - datetime.fromisoformat(timestamp).timestamp()))
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        rest = seconds % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    return f"{hours}h" if hours < 48 else f"{days}d"


def _at(path: str, default: Any = "<none>") -> Callable[[Obj, float], Any]:
    def cell(obj: Obj, now: float) -> Any:
        value = read_path(obj, path)
        return default if value is None else value

    return cell


def _pod_ready(pod: Obj, now: float) -> str:
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return f"{sum(bool(s.get('ready')) for s in statuses)}/{len(pod['spec']['containers'])}"


def _pod_status(pod: Obj, now: float) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    status = pod.get("status", {})
    for field, prefix in (("initContainerStatuses", "Init:"), ("containerStatuses", "")):
        for container in status.get(field, ()):
            state = container.get("state", {})
            why = state.get("waiting", {}).get("reason") or _failure(state.get("terminated"))
            if why and why != "PodInitializing":
                return f"{prefix}{why}"
    return str(status.get("reason") or status.get("phase", "Unknown"))


def _failure(terminated: Obj | None) -> str:
    if not terminated or not terminated.get("exitCode"):
        return ""
    return str(terminated.get("reason") or f"ExitCode:{terminated['exitCode']}")


def _pod_restarts(pod: Obj, now: float) -> int:
    return sum(s.get("restartCount", 0) for s in pod.get("status", {}).get("containerStatuses", ()))


def _node_status(node: Obj, now: float) -> str:
    ready = read_path(node, '.status.conditions[?(@.type=="Ready")].status')
    cordoned = ",SchedulingDisabled" if node.get("spec", {}).get("unschedulable") else ""
    return ("Ready" if ready == "True" else "NotReady") + cordoned


def _deployment_ready(deployment: Obj, now: float) -> str:
    return f"{deployment.get('status', {}).get('readyReplicas', 0)}/{deployment['spec'].get('replicas', 0)}"


def _service_ports(service: Obj, now: float) -> str:
    ports = service.get("spec", {}).get("ports", ())
    return ",".join(f"{port['port']}/{port.get('protocol', 'TCP')}" for port in ports) or "<none>"


def _job_completions(job: Obj, now: float) -> str:
    return f"{job.get('status', {}).get('succeeded', 0)}/{job['spec'].get('completions', 1)}"


def _data_count(obj: Obj, now: float) -> int:
    return len(obj.get("data", {})) + len(obj.get("binaryData", {}))


def _event_object(event: Obj, now: float) -> str:
    involved = event.get("involvedObject", {})
    return f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"


def _last_seen(event: Obj, now: float) -> str:
    return age(event.get("lastTimestamp") or event["metadata"]["creationTimestamp"], now)


_NAME = Column("Name", _at(".metadata.name"))
_AGE = Column("Age", lambda obj, now: age(obj["metadata"]["creationTimestamp"], now))
_BUILTIN: Mapping[str, tuple[Column, ...]] = {
    "pods": (
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts, "integer"),
        _AGE,
        Column("IP", _at(".status.podIP"), priority=1),
        Column("Node", _at(".spec.nodeName"), priority=1),
    ),
    "nodes": (Column("Status", _node_status), _AGE),
    "namespaces": (Column("Status", _at(".status.phase")), _AGE),
    "services": (
        Column("Type", _at(".spec.type")),
        Column("Cluster-IP", _at(".spec.clusterIP")),
        Column("Ports", _service_ports),
        _AGE,
    ),
    "deployments": (
        Column("Ready", _deployment_ready),
        Column("Up-to-date", _at(".status.updatedReplicas", 0), "integer"),
        Column("Available", _at(".status.availableReplicas", 0), "integer"),
        _AGE,
    ),
    "replicasets": (
        Column("Desired", _at(".spec.replicas", 0), "integer"),
        Column("Current", _at(".status.replicas", 0), "integer"),
        Column("Ready", _at(".status.readyReplicas", 0), "integer"),
        _AGE,
    ),
    "jobs": (Column("Completions", _job_completions), _AGE),
    "configmaps": (Column("Data", _data_count, "integer"), _AGE),
    "leases": (Column("Holder", _at(".spec.holderIdentity")), _AGE),
    "events": (
        Column("Last Seen", _last_seen),
        Column("Type", _at(".type")),
        Column("Reason", _at(".reason")),
        Column("Object", _event_object),
        Column("Message", _at(".message")),
    ),
    "customresourcedefinitions": (Column("Created At", _at(".metadata.creationTimestamp")),),
}
