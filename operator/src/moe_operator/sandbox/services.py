"""Service → the pods behind it.

An endpoint is a pod that matches the selector, has an address and is not on its way out; it must be
Ready unless the Service publishes addresses that are not (``publishNotReadyAddresses``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.objects import deleting, finished, is_true, key_of

HEADLESS = "None"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One pod behind a Service; ``ports`` maps the Service's port numbers to the pod's."""

    pod: str
    address: str
    ports: Mapping[int, int]


def endpoints(service: Obj, pods: Iterable[Obj]) -> tuple[Endpoint, ...]:
    """Where a Service leads, in the order of pod names."""
    spec = service["spec"]
    selector, namespace = spec.get("selector") or {}, key_of(service).namespace
    unready_too = bool(spec.get("publishNotReadyAddresses"))
    found = [
        Endpoint(key_of(pod).name, pod["status"]["podIP"], _ports(spec, pod))
        for pod in pods
        if selector
        and key_of(pod).namespace == namespace
        and _carries(pod, selector)
        and (pod.get("status") or {}).get("podIP")
        and not finished(pod)
        and (unready_too or (is_true(pod, "Ready") and not deleting(pod)))
    ]
    return tuple(sorted(found, key=lambda e: e.pod))


def _carries(pod: Obj, selector: Mapping[str, str]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(k) == v for k, v in selector.items())


def _ports(spec: Obj, pod: Obj) -> dict[int, int]:
    """Ports by a name that the pod does not use are left out."""
    wanted = {entry["port"]: entry.get("targetPort") or entry["port"] for entry in spec.get("ports") or ()}
    return {port: number for port, target in wanted.items() if (number := container_port(pod, target))}


def container_port(pod: Obj, port: int | str) -> int:
    """A port by number or by the name some container of ``pod`` gives it; 0 when none does."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    named = {
        entry["name"]: int(entry["containerPort"])
        for container in pod["spec"]["containers"]
        for entry in container.get("ports") or ()
        if entry.get("name")
    }
    return named.get(port, 0)


def cluster_ip(service: Obj) -> str:
    """The address of a Service; "" while it has none or when it is headless."""
    address = str(service["spec"].get("clusterIP") or "")
    return "" if address == HEADLESS else address
