"""The gateway's pods: Envoy and its agent, never fewer than before while they are being replaced.

Envoy is a native sidecar: it starts before the agent and ends after it. So the one preStop hook of the pod,
the agent's, decides how long Envoy lives, and clients finish before it goes. The hook is a command inside the
pod that asks the agent on loopback; nothing on the network can take a gateway out of service.

What a missing Secret does is part of the contract. API keys are an optional mount: a pod without them starts
and lets nobody in, so switching keys on can only close doors, and deleting the Secret closes them all.
Certificates are a required mount: a pod that cannot speak HTTPS does not replace one that serves.

The containers share one process namespace. The first process of a namespace is deaf to SIGTERM until it has
a handler: an Envoy that was told to end while it started would run on until the grace period is over.
"""

from __future__ import annotations

from posixpath import relpath
from typing import Any

from moe_operator.api.intent import INTENT_KEY
from moe_operator.api.names import (
    ANNOTATION_OTLP,
    COMPONENT_GATEWAY,
    PATH_CLIENT_CA,
    PATH_INTENT,
    PATH_KEYS,
    PATH_SERVICE_ACCOUNT,
    PATH_TLS,
    PATH_XDS,
    PORT_ENVOY_ADMIN,
    PORT_GATEWAY_AGENT,
    PORT_GATEWAY_HTTP,
    PORT_GATEWAY_OWN_POD,
    common_labels,
    gateway_name,
)
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.spec import MoESpec
from moe_operator.resources.gateway_service import gateway_selector
from moe_operator.resources.ownership import Owner, pull_secrets
from moe_operator.resources.security import RESTRICTED_CONTAINER

Obj = dict[str, Any]
KEYS_VOLUME = "keys"
DRAIN_MARGIN_SECONDS = 30
STUCK_GRACE_SECONDS = 10  # a container that fails its liveness probe has nothing to drain any more
READY_SECONDS = 5  # a new pod has to be ready this long before an old one goes
LISTENER_DRAIN_SECONDS = 86_400  # no listener change may ever cut a stream (--drain-time-s)
ENVOY_WORKERS = 2
LOG_FLUSH_MILLISECONDS = 1000
XDS_SIZE = "64Mi"
INTENT_FILE = f"{PATH_INTENT}/{INTENT_KEY}"
LISTEN = f"0.0.0.0:{PORT_GATEWAY_HTTP}"
ADMIN = f"127.0.0.1:{PORT_ENVOY_ADMIN}"
OWN = f"127.0.0.1:{PORT_GATEWAY_OWN_POD}"
XDS_MOUNT: Obj = {"name": "xds", "mountPath": PATH_XDS}
INTENT_MOUNT: Obj = {"name": "intent", "mountPath": PATH_INTENT, "readOnly": True}


def seen_from_xds(mount: str) -> str:
    """A mount as an intent names it, from the directory of Envoy's files: a sandbox has no root."""
    return relpath(mount, PATH_XDS)


def gateway_deployment(owner: Owner, spec: MoESpec, policy: OperatorPolicy) -> Obj:
    """Build the Deployment."""
    name, secrets = gateway_name(owner.name), _secrets(spec)
    mounts = [{"name": volume["name"], "mountPath": path, "readOnly": True} for volume, path in secrets]
    annotations = {"kubectl.kubernetes.io/default-container": "envoy", **_born_with(spec)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owner.metadata(name, COMPONENT_GATEWAY),
        "spec": {
            "replicas": spec.gateway.replicas,
            "minReadySeconds": READY_SECONDS,
            "selector": {"matchLabels": gateway_selector(owner)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {
                    "labels": common_labels(owner.name, COMPONENT_GATEWAY),
                    "annotations": annotations,
                },
                "spec": {
                    "serviceAccountName": name,
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "shareProcessNamespace": True,
                    "terminationGracePeriodSeconds": spec.rollout.drain_seconds + DRAIN_MARGIN_SECONDS,
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "topologySpreadConstraints": _spread(owner),
                    **pull_secrets(policy.images.pull_secrets),
                    "initContainers": [_bootstrap(policy, mounts), _envoy(policy, mounts)],
                    "containers": [_agent(owner, policy, mounts)],
                    "volumes": [
                        # in memory: each file is synced before Envoy sees it, and a busy disk takes its time
                        {"name": "xds", "emptyDir": {"medium": "Memory", "sizeLimit": XDS_SIZE}},
                        {"name": "intent", "configMap": {"name": name}},
                        *(volume for volume, _ in secrets),
                    ],
                },
            },
        },
    }


def _born_with(spec: MoESpec) -> dict[str, str]:
    """What a pod takes from its first intent and keeps, beyond its mounts: a change needs new pods."""
    return {ANNOTATION_OTLP: spec.gateway.otlp.endpoint} if spec.gateway.otlp else {}


def _secrets(spec: MoESpec) -> list[tuple[Obj, str]]:
    """Volumes of Secrets, each with the path where it is mounted."""
    auth, tls = spec.gateway.auth, spec.gateway.tls
    found = []
    if auth:
        keys = {"secretName": auth.secret_ref.name, "optional": True}
        found.append(({"name": KEYS_VOLUME, "secret": keys}, PATH_KEYS))
    if tls:
        found.append(({"name": "tls", "secret": {"secretName": tls.secret_ref.name}}, PATH_TLS))
    if tls and tls.client_ca_ref:
        authority = {"secretName": tls.client_ca_ref.name}
        found.append(({"name": "client-ca", "secret": authority}, PATH_CLIENT_CA))
    return found


def _bootstrap(policy: OperatorPolicy, mounts: list[Obj]) -> Obj:
    return {
        "name": "bootstrap",
        "image": policy.images.operator,
        "command": ["moe-gateway-agent"],
        "args": ["init", "--xds", PATH_XDS, "--intent", INTENT_FILE, "--listen", LISTEN, "--admin", ADMIN],
        "securityContext": RESTRICTED_CONTAINER,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [XDS_MOUNT, INTENT_MOUNT, *mounts],
    }


def _envoy(policy: OperatorPolicy, mounts: list[Obj]) -> Obj:
    return {
        "name": "envoy",
        "image": policy.images.envoy,
        "restartPolicy": "Always",  # what makes an init container a sidecar
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
            "terminationGracePeriodSeconds": STUCK_GRACE_SECONDS,
        },
        "securityContext": RESTRICTED_CONTAINER,
        "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        # keys reach Envoy as sums only, in the files that the agent writes
        "volumeMounts": [XDS_MOUNT, *(mount for mount in mounts if mount["name"] != KEYS_VOLUME)],
    }  # fmt: skip


def _agent(owner: Owner, policy: OperatorPolicy, mounts: list[Obj]) -> Obj:
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
            "--own", OWN,
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
            "terminationGracePeriodSeconds": STUCK_GRACE_SECONDS,
        },
        "lifecycle": {"preStop": {"exec": {"command": ["moe-gateway-agent", "drain", "--agent", OWN]}}},
        "securityContext": RESTRICTED_CONTAINER,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [XDS_MOUNT, INTENT_MOUNT, *mounts],
    }  # fmt: skip


def _spread(owner: Owner) -> list[Obj]:
    """Over nodes and zones where there are several; pods of another template do not count."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": gateway_selector(owner)},
            "matchLabelKeys": ["pod-template-hash"],
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]
