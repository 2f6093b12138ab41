"""Nodes that hand their files on to other nodes of the same deployment.

A seeder reads the store and nothing else. What it sends is worthless unless its SHA-256 is right, so a peer
need not be trusted with integrity. Who may read is told by a token, which every pod of the deployment has
from one ConfigMap (the operator has no verb on Secrets, so it could neither make nor read one), and by a
NetworkPolicy; docs/staging.md has the whole argument.
"""

from __future__ import annotations

from typing import Any

from moe_operator.api.names import (
    ANNOTATION_NODE,
    COMPONENT_SEEDER,
    PATH_PEERS,
    PATH_STORE,
    PORT_PEERS,
    peers_name,
)
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.spec import MoESpec
from moe_operator.resources.model_source import store_volume
from moe_operator.resources.ownership import Owner
from moe_operator.resources.stager import (
    PEERS_MOUNT,
    RESOURCES,
    STORE_MOUNT,
    gpu_node_tolerations,
    node_pod,
    stage_container,
)

Obj = dict[str, Any]
KEY_TOKEN = "token"


def seeder_pod(owner: Owner, spec: MoESpec, policy: OperatorPolicy, name: str, node: str) -> Obj:
    """Build the pod that serves one node's store."""
    cache = policy.cache_classes[spec.weights.cache_class]
    args = [
        "--store", PATH_STORE,
        "--token-file", f"{PATH_PEERS}/{KEY_TOKEN}",
        "--listen", f"0.0.0.0:{PORT_PEERS}",
    ]  # fmt: skip
    container = {
        **stage_container("serve", "serve", args, policy, [PEERS_MOUNT]),
        "ports": [{"name": "peers", "containerPort": PORT_PEERS}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT_PEERS}, "periodSeconds": 2},
        "resources": RESOURCES,
    }
    container["volumeMounts"] = [{**STORE_MOUNT, "readOnly": True}, PEERS_MOUNT]
    volumes = [store_volume(cache), {"name": "peers", "configMap": {"name": peers_name(owner.name)}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": owner.metadata(name, COMPONENT_SEEDER, annotations={ANNOTATION_NODE: node}),
        "spec": {
            **node_pod(node, gpu_node_tolerations(spec), container, volumes, policy),
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 5,
        },
    }


def peers_config(owner: Owner, token: str) -> Obj:
    """Build the ConfigMap with the token; it is written once and then stays."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owner.metadata(peers_name(owner.name), COMPONENT_SEEDER),
        "immutable": True,
        "data": {KEY_TOKEN: token},
    }
