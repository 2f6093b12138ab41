"""The headless Service under which the ranks of one group find each other before any of them is ready."""

from __future__ import annotations

from typing import Any

from moe_operator.api.names import (
    COMPONENT_ENGINE,
    LABEL_DEPLOYMENT,
    LABEL_REPLICA,
    LABEL_REVISION,
    PORT_ENGINE_HTTP,
    group_name,
    label_value,
)
from moe_operator.resources.ownership import Owner

Obj = dict[str, Any]


def group_service(owner: Owner, revision: str, replica: int) -> Obj:
    """Build the Service of one group."""
    group = {LABEL_REVISION: revision, LABEL_REPLICA: str(replica)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owner.metadata(group_name(owner.name, revision, replica), COMPONENT_ENGINE, group),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_DEPLOYMENT: label_value(owner.name), **group},
            "ports": [{"name": "http", "port": PORT_ENGINE_HTTP, "protocol": "TCP"}],
        },
    }
