"""What gateway pods may do at the API server: watch one object, their own ConfigMap, and write nothing."""

from __future__ import annotations

from typing import Any

from moe_operator.api.names import COMPONENT_GATEWAY, gateway_name
from moe_operator.resources.ownership import Owner

Obj = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"


def gateway_access(owner: Owner) -> list[Obj]:
    """Build ServiceAccount, Role and RoleBinding."""
    name = gateway_name(owner.name)
    may = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["watch"]}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": owner.metadata(name, COMPONENT_GATEWAY),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": owner.metadata(name, COMPONENT_GATEWAY),
            "rules": [may],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": owner.metadata(name, COMPONENT_GATEWAY),
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
        },
    ]
