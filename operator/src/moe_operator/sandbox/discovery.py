"""The documents by which clients find out what is served."""

from __future__ import annotations

from collections.abc import Iterable

from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.api_resources import Resource

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_WRITE_VERBS = ("post", "put", "patch")
VERSION: Obj = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.0+moe-sandbox",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "sandbox/memory",
}


def core_versions() -> Obj:
    """``GET /api``."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(resources: Iterable[Resource]) -> Obj:
    """``GET /apis``."""
    names = dict.fromkeys((r.kind.group, r.kind.version) for r in resources if r.kind.group)
    groups = [_group(group, version) for group, version in names]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _group(group: str, version: str) -> Obj:
    served = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [served], "preferredVersion": served}


def group(resources: Iterable[Resource], name: str) -> Obj | None:
    """``GET /apis/{group}``."""
    for found in group_list(resources)["groups"]:
        if found["name"] == name:
            return {"kind": "APIGroup", "apiVersion": "v1", **found}
    return None


def resource_list(resources: Iterable[Resource], group_version: str) -> Obj | None:
    """``GET /api/v1`` and ``GET /apis/{group}/{version}``."""
    entries = [
        entry
        for resource in resources
        if resource.kind.api_version == group_version
        for entry in _entries(resource)
    ]
    if not entries:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": entries,
    }


def _entries(resource: Resource) -> list[Obj]:
    kind = resource.kind
    main = {
        "name": kind.plural,
        "singularName": resource.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": _VERBS,
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
    }
    below = {"singularName": "", "namespaced": kind.namespaced, "verbs": ["get", "patch", "update"]}
    entries = [main]
    if resource.has_status:
        entries.append({**below, "name": f"{kind.plural}/status", "kind": kind.kind})
    if resource.scale:
        scale = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
        entries.append({**below, "name": f"{kind.plural}/scale", **scale})
    if kind.plural == "pods":
        entries.append({**below, "name": "pods/log", "kind": "Pod", "verbs": ["get"]})
        entries.append({**below, "name": "pods/binding", "kind": "Binding", "verbs": ["create"]})
    return entries


def openapi_index(resources: Iterable[Resource]) -> Obj:
    """``GET /openapi/v3``."""
    paths = dict.fromkeys(_prefix(resource) for resource in resources)
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def openapi_document(resources: Iterable[Resource], prefix: str) -> Obj | None:
    """``GET /openapi/v3/{prefix}``: only that writes take ``fieldValidation``, so that kubectl leaves the
    validation to the server. No schemas: ``kubectl explain`` has nothing to show here.
    """
    paths = {_url(r): _operations(r) for r in resources if _prefix(r) == prefix}
    if not paths:
        return None
    return {"openapi": "3.0.0", "info": {"title": "sandbox", "version": "1"}, "paths": paths}


def _prefix(resource: Resource) -> str:
    return f"apis/{resource.kind.api_version}" if resource.kind.group else f"api/{resource.kind.version}"


def _url(resource: Resource) -> str:
    scope = "/namespaces/{namespace}" if resource.kind.namespaced else ""
    return f"/{_prefix(resource)}{scope}/{resource.kind.plural}/{{name}}"


def _operations(resource: Resource) -> Obj:
    kind = resource.kind
    operation = {
        "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
    }
    return dict.fromkeys(_WRITE_VERBS, operation)
