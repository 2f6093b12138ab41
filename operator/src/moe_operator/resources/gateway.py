"""The gateway's objects: two Envoys with their agents behind one Service whose selector never changes.

The pods may read one object of the API server, their own ConfigMap, and write nothing. Both containers wait
for the same drain before they end, so a rolling update of the gateway lets streams finish.
"""

from __future__ import annotations

from typing import Any

from moe_operator.api.intent import INTENT_KEY, Intent
from moe_operator.api.names import (
    COMPONENT_GATEWAY,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    PATH_INTENT,
    PATH_SERVICE_ACCOUNT,
    PATH_XDS,
    PORT_ENVOY_ADMIN,
    PORT_GATEWAY_AGENT,
    PORT_GATEWAY_HTTP,
    common_labels,
    gateway_name,
    label_value,
)
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.spec import MoESpec
from moe_operator.resources.ownership import Owner
from moe_operator.resources.security import RESTRICTED_CONTAINER

Obj = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
DRAIN_MARGIN_SECONDS = 30
LISTENER_DRAIN_SECONDS = 86_400  # no listener change may ever cut a stream (--drain-time-s)
ENVOY_WORKERS = 2
LOG_FLUSH_MILLISECONDS = 1000
INTENT_FILE = f"{PATH_INTENT}/{INTENT_KEY}"
LISTEN = f"0.0.0.0:{PORT_GATEWAY_HTTP}"
ADMIN = f"127.0.0.1:{PORT_ENVOY_ADMIN}"
XDS_MOUNT: Obj = {"name": "xds", "mountPath": PATH_XDS}
INTENT_MOUNT: Obj = {"name": "intent", "mountPath": PATH_INTENT, "readOnly": True}


def intent_config_map(owner: Owner, intent: Intent) -> Obj:
    """The one object the gateway pods follow."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owner.metadata(gateway_name(owner.name), COMPONENT_GATEWAY),
        "data": {INTENT_KEY: intent.model_dump_json(by_alias=True)},
    }


def gateway_objects(owner: Owner, spec: MoESpec, policy: OperatorPolicy) -> list[Obj]:
    """Everything but the intent, in the order in which it has to exist."""
    return [*_access(owner), gateway_deployment(owner, spec, policy), gateway_service(owner, spec)]


def gateway_service(owner: Owner, spec: MoESpec) -> Obj:
    """The stable address of the model."""
    service = spec.gateway.service
    meta = owner.metadata(gateway_name(owner.name), COMPONENT_GATEWAY, annotations=service.annotations)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {
            "type": service.type,
            "selector": _selector(owner),
            "ports": [
                {"name": "http", "port": service.port, "targetPort": PORT_GATEWAY_HTTP, "protocol": "TCP"}
            ],
        },
    }


def gateway_deployment(owner: Owner, spec: MoESpec, policy: OperatorPolicy) -> Obj:
    """Envoy and its agent; never fewer than before while it is being replaced."""
    labels = common_labels(owner.name, COMPONENT_GATEWAY)
    name = gateway_name(owner.name)
    drain = spec.rollout.drain_seconds
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owner.metadata(name, COMPONENT_GATEWAY),
        "spec": {
            "replicas": spec.gateway.replicas,
            "selector": {"matchLabels": _selector(owner)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": name,
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": drain + DRAIN_MARGIN_SECONDS,
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "affinity": _spread(owner),
                    "initContainers": [_bootstrap(policy)],
                    "containers": [_envoy(policy), _agent(owner, policy)],
                    "volumes": [
                        {"name": "xds", "emptyDir": {}},
                        {"name": "intent", "configMap": {"name": name}},
                    ],
                },
            },
        },
    }


def _access(owner: Owner) -> list[Obj]:
    name = gateway_name(owner.name)
    may = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get", "watch"]}
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


def _bootstrap(policy: OperatorPolicy) -> Obj:
    return {
        "name": "bootstrap",
        "image": policy.images.operator,
        "command": ["moe-gateway-agent"],
        "args": ["init", "--xds", PATH_XDS, "--intent", INTENT_FILE, "--listen", LISTEN, "--admin", ADMIN],
        "securityContext": RESTRICTED_CONTAINER,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [XDS_MOUNT, INTENT_MOUNT],
    }


def _envoy(policy: OperatorPolicy) -> Obj:
    return {
        "name": "envoy",
        "image": policy.images.envoy,
        "command": ["envoy"],
        "args": [
            "-c", f"{PATH_XDS}/bootstrap.json",
            "--use-dynamic-base-id",
            "--concurrency", str(ENVOY_WORKERS),
            "--drain-time-s", str(LISTENER_DRAIN_SECONDS),
            "--reject-unknown-dynamic-fields",
            "--file-flush-interval-msec", str(LOG_FLUSH_MILLISECONDS),
            "--log-level", "warning",
        ],
        "ports": [{"name": "http", "containerPort": PORT_GATEWAY_HTTP}],
        # a port, not /-/ready: a draining Envoy is unready on purpose and must not be killed for it
        "livenessProbe": {
            "tcpSocket": {"port": PORT_GATEWAY_HTTP},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "lifecycle": {"preStop": _finish()},
        "securityContext": RESTRICTED_CONTAINER,
        "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [XDS_MOUNT],
    }  # fmt: skip


def _agent(owner: Owner, policy: OperatorPolicy) -> Obj:
    return {
        "name": "agent",
        "image": policy.images.operator,
        "command": ["moe-gateway-agent"],
        "args": [
            "run",
            "--xds", PATH_XDS,
            "--intent", INTENT_FILE,
            "--config-map", f"{owner.namespace}/{gateway_name(owner.name)}",
            "--admin", ADMIN,
            "--listen", f"0.0.0.0:{PORT_GATEWAY_AGENT}",
            "--service-account", PATH_SERVICE_ACCOUNT,
        ],
        "ports": [{"name": "agent", "containerPort": PORT_GATEWAY_AGENT}],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": PORT_GATEWAY_AGENT},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": PORT_GATEWAY_AGENT},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "lifecycle": {"preStop": _finish()},
        "securityContext": RESTRICTED_CONTAINER,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [XDS_MOUNT, INTENT_MOUNT],
    }  # fmt: skip


def _finish() -> Obj:
    """Both containers wait for the same drain; its time limit is in the intent."""
    return {"httpGet": {"path": "/drain", "port": PORT_GATEWAY_AGENT}}


def _spread(owner: Owner) -> Obj:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": _selector(owner)}}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _selector(owner: Owner) -> dict[str, str]:
    return {LABEL_DEPLOYMENT: label_value(owner.name), LABEL_COMPONENT: COMPONENT_GATEWAY}
