"""The environment a container is given: its own variables, the downward API, ConfigMaps and Secrets.

Later definitions win and may refer to earlier ones with ``$(VAR)``. What is missing is an error in the
kubelet's words, unless it was marked optional.
"""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass

from moe_operator.api.quantity import parse_amount
from moe_operator.runtime.kube import CONFIG_MAP, SECRET, ApiError, Kind, Kube, Obj
from moe_operator.sandbox.rewrite import expand

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigMissing(Exception):
    """A ConfigMap, Secret or key is not there: CreateContainerConfigError in the kubelet's words."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What only the kubelet knows of a pod before its status is written."""

    pod_ip: str
    host_ip: str


async def resolve(kube: Kube, pod: Obj, container: Obj, facts: PodFacts) -> dict[str, str]:
    """Variables of ``envFrom`` and ``env`` as the container sees them (not yet rewritten)."""
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        kind, reference = (
            (CONFIG_MAP, source["configMapRef"])
            if "configMapRef" in source
            else (SECRET, source["secretRef"])
        )
        data = await read_data(kube, kind, pod["metadata"]["namespace"], reference)
        prefix = source.get("prefix") or ""
        variables |= {prefix + key: value.decode(errors="replace") for key, value in data.items()}
    for entry in container.get("env") or ():
        if "valueFrom" in entry:
            value = await _value_from(kube, pod, container, entry["valueFrom"], facts)
        else:
            value = expand(entry.get("value") or "", variables)
        if value is not None:
            variables[entry["name"]] = value
    return variables


async def _value_from(kube: Kube, pod: Obj, container: Obj, source: Obj, facts: PodFacts) -> str | None:
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"], facts)
    if "resourceFieldRef" in source:
        return _resource_value(pod, container, source["resourceFieldRef"])
    kind, reference = (
        (CONFIG_MAP, source["configMapKeyRef"])
        if "configMapKeyRef" in source
        else (SECRET, source["secretKeyRef"])
    )
    namespace, key = pod["metadata"]["namespace"], reference["key"]
    data = await read_data(kube, kind, namespace, reference)
    if key in data:
        return data[key].decode(errors="replace")
    if reference.get("optional"):
        return None
    raise ConfigMissing(f"couldn't find key {key} in {kind.kind} {namespace}/{reference['name']}")


def field_value(pod: Obj, path: str, facts: PodFacts) -> str:
    """A downward API field; ConfigMissing for one that a kubelet does not know either."""
    meta, spec = pod["metadata"], pod["spec"]
    if subscript := _SUBSCRIPT.fullmatch(path):
        return str((meta.get(subscript.group(1)) or {}).get(subscript.group(2), ""))
    fields = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta.get("uid", ""),
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
    }
    for whole in ("labels", "annotations"):
        lines = (f'{k}="{v}"' for k, v in sorted((meta.get(whole) or {}).items()))
        fields[f"metadata.{whole}"] = "\n".join(lines)
    if path not in fields:
        raise ConfigMissing(f"unsupported fieldPath: {path}")
    return str(fields[path])


def _resource_value(pod: Obj, container: Obj, reference: Obj) -> str:
    name = reference.get("containerName") or container["name"]
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    named = next(c for c in containers if c["name"] == name)
    section, _, resource = reference["resource"].partition(".")
    amount = ((named.get("resources") or {}).get(section) or {}).get(resource, "0")
    divisor = parse_amount(str(reference.get("divisor") or "1"))
    return str(math.ceil(parse_amount(str(amount)) / (divisor or 1)))


async def read_data(kube: Kube, kind: Kind, namespace: str, reference: Obj) -> dict[str, bytes]:
    """Keys of a ConfigMap or Secret; empty when it is absent and optional, else ConfigMissing."""
    name = reference.get("name") or reference["secretName"]
    try:
        found = await kube.get(kind, namespace, name)
    except ApiError as error:
        if not error.not_found:
            raise
        if reference.get("optional"):
            return {}
        raise ConfigMissing(f'{kind.kind.lower()} "{name}" not found') from error
    return data_of(found, kind)


def data_of(obj: Obj, kind: Kind) -> dict[str, bytes]:
    """The bytes under each key."""
    encoded = (obj.get("data") if kind is SECRET else obj.get("binaryData")) or {}
    plain = (obj.get("stringData") if kind is SECRET else obj.get("data")) or {}
    return {k: v.encode() for k, v in plain.items()} | {k: base64.b64decode(v) for k, v in encoded.items()}
