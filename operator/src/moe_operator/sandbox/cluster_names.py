"""What a cluster's DNS would answer, as a function of Services and pods.

``{service}.{namespace}`` is the Service's address, or for a headless one the first of its pods;
``{hostname}.{subdomain}.{namespace}`` is that pod's address, promised before the pod exists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.objects import Key, key_of
from moe_operator.sandbox.services import cluster_ip, endpoints


def address_owner(pod: Obj) -> Hashable:
    """Under what a pod's address is kept: its DNS name when it has one, else the pod itself."""
    spec, namespace = pod["spec"], key_of(pod).namespace
    if spec.get("hostname") and spec.get("subdomain"):
        return "pod", spec["hostname"], spec["subdomain"], namespace
    return "pod", pod["metadata"]["uid"]


def resolver(
    services: Sequence[Obj], pods: Sequence[Obj], address_of: Callable[[Hashable], str]
) -> Callable[[tuple[str, ...]], str | None]:
    """A function from the labels below ``.svc`` to an address; None for a name that does not exist."""
    by_key = {key_of(service): service for service in services}

    def resolve(labels: tuple[str, ...]) -> str | None:
        service = by_key.get(Key(labels[-1], labels[-2]))
        if service is None:
            return None
        if len(labels) == 3:
            return address_of(("pod", *labels))
        if address := cluster_ip(service):
            return address
        behind = endpoints(service, pods)
        return behind[0].address if behind else None

    return resolve
