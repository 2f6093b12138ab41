"""The scale subresource: replicas of anything that says where it keeps them."""

from __future__ import annotations

from typing import Any

from moe_operator.runtime.kube import Kind, Obj
from moe_operator.sandbox import api_errors as errors
from moe_operator.sandbox.api_resources import Resource, ScalePaths
from moe_operator.sandbox.api_server import MemoryApi


def read_scale(api: MemoryApi, kind: Kind, namespace: str, name: str) -> Obj:
    """``autoscaling/v1 Scale`` of an object; ApiError 404 when its kind has none."""
    _, paths = _scalable(api, kind)
    obj = api.get(kind, namespace, name)
    meta = {
        field: obj["metadata"][field]
        for field in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    }
    status = {"replicas": _read(obj, paths.status_replicas) or 0}
    if selector := _selector_text(_read(obj, paths.selector)):
        status["selector"] = selector
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": meta,
        "spec": {"replicas": _read(obj, paths.spec_replicas) or 0},
        "status": status,
    }


def write_scale(api: MemoryApi, kind: Kind, namespace: str, name: str, scale: Obj, *, manager: str) -> Obj:
    """Set the replicas to what ``scale`` says; its resourceVersion, when given, is a precondition."""
    _, paths = _scalable(api, kind)
    replicas = scale.get("spec", {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        raise errors.invalid(kind, name, [f"spec.replicas: Invalid value: {replicas}: must be at least 0"])
    patch: Obj = {"metadata": {}}
    if version := scale.get("metadata", {}).get("resourceVersion"):
        patch["metadata"]["resourceVersion"] = version
    node = patch
    for part in paths.spec_replicas[:-1]:
        node = node.setdefault(part, {})
    node[paths.spec_replicas[-1]] = replicas
    api.patch(kind, namespace, name, patch, patch_type="merge", manager=manager)
    return read_scale(api, kind, namespace, name)


def _scalable(api: MemoryApi, kind: Kind) -> tuple[Resource, ScalePaths]:
    resource = api.catalogue.of_kind(kind)
    if resource.scale is None:
        raise errors.no_such_resource()
    return resource, resource.scale


def _read(obj: Obj, path: tuple[str, ...]) -> Any:
    value: Any = obj if path else None
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _selector_text(selector: Any) -> str:
    if isinstance(selector, dict):
        return ",".join(f"{key}={value}" for key, value in sorted(selector.get("matchLabels", {}).items()))
    return str(selector or "")
