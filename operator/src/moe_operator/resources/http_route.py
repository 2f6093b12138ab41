"""Behind a gateway that the user brings: an HTTPRoute with one weighted backend for each revision.

A backend is a Service that selects the leaders which the operator has marked as serving. The route passes the
paths of the spec, each exactly as written, without a time limit of its own: a stream may last for hours.
It belongs to the MoEDeployment and is never meant to be kept in Git.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moe_operator.api.names import (
    ANNOTATION_ROUTE_GENERATION,
    ANNOTATION_ROUTE_SINCE,
    COMPONENT_GATEWAY,
    LABEL_DEPLOYMENT,
    LABEL_REVISION,
    LABEL_ROLE,
    LABEL_SERVING,
    PORT_ENGINE_HTTP,
    ROLE_LEADER,
    bounded,
    gateway_name,
    label_value,
)
from moe_operator.api.spec import HttpRouteRef, MoESpec
from moe_operator.resources.ownership import Owner

Obj = dict[str, Any]
GATEWAY_API = "gateway.networking.k8s.io"
SERVING = {LABEL_SERVING: "true"}
NO_LIMIT = "0s"  # gateways have limits of their own otherwise, 15 s for example, that cut streams


def serving_leaders(owner: Owner, revision: str) -> dict[str, str]:
    """Labels by which a gateway of others finds the leaders of one revision that it may send to."""
    leaders = {LABEL_DEPLOYMENT: label_value(owner.name), LABEL_REVISION: revision, LABEL_ROLE: ROLE_LEADER}
    return {**leaders, **SERVING}


def backend_name(deployment: str, revision: str) -> str:
    """Service of the serving leaders of one revision."""
    return bounded(deployment, revision)


def backend_service(owner: Owner, revision: str) -> Obj:
    """Build the Service of one revision."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owner.metadata(
            backend_name(owner.name, revision), COMPONENT_GATEWAY, {LABEL_REVISION: revision}
        ),
        "spec": {
            "type": "ClusterIP",
            "selector": serving_leaders(owner, revision),
            "ports": [
                {
                    "name": "http",
                    "port": PORT_ENGINE_HTTP,
                    "targetPort": PORT_ENGINE_HTTP,
                    "protocol": "TCP",
                    "appProtocol": "http",
                }
            ],
        },
    }


def http_route(
    owner: Owner, spec: MoESpec, to: HttpRouteRef, weights: Mapping[str, int], generation: int, since: str
) -> Obj:
    """Build the route. ``weights``: revision → share; ``generation`` and ``since`` say what it stands for."""
    stands_for = {ANNOTATION_ROUTE_GENERATION: str(generation), ANNOTATION_ROUTE_SINCE: since}
    rule = {
        "matches": [{"path": {"type": "Exact", "value": path}} for path in spec.gateway.allowed_paths],
        "timeouts": {"request": NO_LIMIT, "backendRequest": NO_LIMIT},
        "backendRefs": [_backend(owner, revision, weights[revision]) for revision in sorted(weights)],
    }
    return {
        "apiVersion": f"{GATEWAY_API}/v1",
        "kind": "HTTPRoute",
        "metadata": owner.metadata(gateway_name(owner.name), COMPONENT_GATEWAY, annotations=stands_for),
        "spec": {
            "parentRefs": [_parent(owner, to)],
            **({"hostnames": list(to.hostnames)} if to.hostnames else {}),
            "rules": [rule],
        },
    }


def _parent(owner: Owner, to: HttpRouteRef) -> Obj:
    parent = {
        "group": GATEWAY_API,
        "kind": "Gateway",
        "name": to.name,
        "namespace": to.namespace or owner.namespace,
    }
    return {**parent, **({"sectionName": to.section_name} if to.section_name else {})}


def _backend(owner: Owner, revision: str, weight: int) -> Obj:
    name = backend_name(owner.name, revision)
    return {"group": "", "kind": "Service", "name": name, "port": PORT_ENGINE_HTTP, "weight": weight}
