"""Defaults that the API server writes into built-in kinds, as far as the operator's objects meet them.

They matter because what is read back is not what was sent: a controller that compares whole objects
would never come to rest.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from moe_operator.runtime.kube import Obj

_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_POD_SPEC = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}


def fill_defaults(plural: str, obj: Obj) -> None:
    """Write the defaults of a built-in kind into ``obj``, which must already have its uid."""
    if rule := _RULES.get(plural):
        rule(obj)


def _defaults(target: Obj, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        target.setdefault(name, value)


def _pod_spec(spec: Obj) -> None:
    _defaults(spec, _POD_SPEC)
    spec.setdefault("securityContext", {})
    for field in ("containers", "initContainers"):
        for container in spec.get(field, ()):
            _container(container)
    for volume in spec.get("volumes", ()):
        for source in ("configMap", "secret", "projected", "downwardAPI"):
            if source in volume:
                volume[source].setdefault("defaultMode", 0o644)
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")


def _container(container: Obj) -> None:
    _defaults(
        container,
        {
            "imagePullPolicy": _pull_policy(container.get("image", "")),
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        },
    )
    resources = container.setdefault("resources", {})
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **resources.get("requests", {})}
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for variable in container.get("env", ()):
        if reference := variable.get("valueFrom", {}).get("fieldRef"):
            reference.setdefault("apiVersion", "v1")
    for probe in filter(None, map(container.get, _PROBES)):
        _defaults(probe, _PROBE)
        if "httpGet" in probe:
            _defaults(probe["httpGet"], {"path": "/", "scheme": "HTTP"})


def _pull_policy(image: str) -> str:
    name, _, tag = image.rpartition("/")[2].partition(":")
    latest = "@" not in name and tag in ("", "latest")
    return "Always" if latest else "IfNotPresent"


def _pod(pod: Obj) -> None:
    _pod_spec(pod["spec"])
    pod.setdefault("status", {}).setdefault("phase", "Pending")


def _service(service: Obj) -> None:
    spec = service.setdefault("spec", {})
    _defaults(spec, {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"})
    for port in spec.get("ports", ()):
        _defaults(port, {"protocol": "TCP", "targetPort": port.get("port")})
    service.setdefault("status", {"loadBalancer": {}})


def _deployment(deployment: Obj) -> None:
    spec = deployment["spec"]
    _defaults(spec, {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600})
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _defaults(strategy.setdefault("rollingUpdate", {}), {"maxSurge": "25%", "maxUnavailable": "25%"})
    _pod_spec(spec["template"]["spec"])


def _replica_set(replica_set: Obj) -> None:
    spec = replica_set["spec"]
    spec.setdefault("replicas", 1)
    _pod_spec(spec["template"]["spec"])


def _job(job: Obj) -> None:
    spec, meta = job["spec"], job["metadata"]
    _defaults(
        spec,
        {
            "backoffLimit": 6,
            "completions": 1,
            "parallelism": 1,
            "completionMode": "NonIndexed",
            "suspend": False,
        },
    )
    identity = {
        "batch.kubernetes.io/controller-uid": meta["uid"],
        "batch.kubernetes.io/job-name": meta["name"],
    }
    if not spec.get("manualSelector"):
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}}
        labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
        labels.update(identity)
    _pod_spec(spec["template"]["spec"])


def _namespace(namespace: Obj) -> None:
    namespace["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = namespace["metadata"][
        "name"
    ]
    namespace.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    namespace.setdefault("status", {}).setdefault("phase", "Active")


def _secret(secret: Obj) -> None:
    secret.setdefault("type", "Opaque")
    for name, value in secret.pop("stringData", {}).items():
        secret.setdefault("data", {})[name] = base64.b64encode(value.encode()).decode()


def _claim(claim: Obj) -> None:
    claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    claim.setdefault("status", {}).setdefault("phase", "Pending")


def _crd(crd: Obj) -> None:
    names = crd["spec"]["names"]
    _defaults(names, {"singular": names["kind"].lower(), "listKind": f"{names['kind']}List"})
    crd["spec"].setdefault("conversion", {"strategy": "None"})


_RULES: Mapping[str, Callable[[Obj], None]] = {
    "pods": _pod,
    "services": _service,
    "deployments": _deployment,
    "replicasets": _replica_set,
    "jobs": _job,
    "namespaces": _namespace,
    "secrets": _secret,
    "persistentvolumeclaims": _claim,
    "customresourcedefinitions": _crd,
}
