"""The stable address of a model: a Service whose selector never changes, and the budget of its pods."""

from __future__ import annotations

from typing import Any

from moe_operator.api.names import (
    COMPONENT_GATEWAY,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    PORT_GATEWAY_HTTP,
    gateway_name,
    label_value,
)
from moe_operator.api.spec import MoESpec
from moe_operator.resources.ownership import Owner

Obj = dict[str, Any]


def gateway_selector(owner: Owner) -> dict[str, str]:
    """Labels that every gateway pod has, whatever it serves."""
    return {LABEL_DEPLOYMENT: label_value(owner.name), LABEL_COMPONENT: COMPONENT_GATEWAY}


def gateway_service(owner: Owner, spec: MoESpec) -> Obj:
    """Build the Service."""
    service = spec.gateway.service
    meta = owner.metadata(gateway_name(owner.name), COMPONENT_GATEWAY, annotations=service.annotations)
    port = {
        "name": "https" if spec.gateway.tls else "http",
        "port": service.port,
        "targetPort": PORT_GATEWAY_HTTP,
        "protocol": "TCP",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {"type": service.type, "selector": gateway_selector(owner), "ports": [port]},
    }


def gateway_budget(owner: Owner) -> Obj:
    """Node drains take one gateway at a time, and one that is not ready at once."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owner.metadata(gateway_name(owner.name), COMPONENT_GATEWAY),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": gateway_selector(owner)},
        },
    }
