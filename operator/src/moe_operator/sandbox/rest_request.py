"""What an HTTP request means: which resource, which object, through which door, to do what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import yaml

from moe_operator.runtime.kube import ApiError, Obj
from moe_operator.sandbox import api_errors as errors
from moe_operator.sandbox.api_resources import Resource
from moe_operator.sandbox.garbage import Propagation

_NO_PROTOBUF = (
    "protobuf is not spoken here, and some kubectl commands send nothing else; "
    "use `kubectl create … --dry-run=client -o yaml | kubectl apply -f -`"
)
_NAMESPACE_DOORS = ("status", "finalize")
_VERBS: Mapping[str, tuple[str, str]] = {  # method -> verb on a collection, on an object
    "GET": ("list", "get"),
    "POST": ("create", "create"),
    "PUT": ("", "update"),
    "PATCH": ("", "patch"),
    "DELETE": ("deletecollection", "delete"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL points at; no ``name`` = the collection."""

    resource: Resource
    namespace: str | None = None
    name: str = ""
    subresource: str = ""

    def verb(self, method: str, *, watching: bool) -> str:
        """The RBAC verb of a request."""
        if watching and not self.name:
            return "watch"
        return _VERBS[method][bool(self.name)]

    @property
    def path(self) -> str:
        """``plural`` or ``plural/subresource``, as Roles name it."""
        plural = self.resource.kind.plural
        return f"{plural}/{self.subresource}" if self.subresource else plural


def target_of(resources: Iterable[Resource], group_version: str, parts: list[str]) -> Target:
    """Read the part of a path below the version; ApiError 404 when nothing is served there."""
    scoped = parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in _NAMESPACE_DOORS
    namespace, rest = (parts[1], parts[2:]) if scoped else (None, parts)
    if len(rest) > 3:
        raise errors.no_such_resource()
    for resource in resources:
        kind = resource.kind
        if kind.api_version != group_version or kind.plural != rest[0] or (scoped and not kind.namespaced):
            continue
        name, subresource = (*rest[1:], "", "")[:2]
        if name and kind.namespaced and not scoped:
            break
        return Target(resource, namespace, name, subresource)
    raise errors.no_such_resource()


def body_of(text: bytes, content_type: str) -> Any:
    """A request's body; ApiError 400 when it cannot be read, 415 for protobuf."""
    if "protobuf" in content_type:
        raise ApiError(415, "UnsupportedMediaType", _NO_PROTOBUF)
    try:
        return yaml.safe_load(text) if "yaml" in content_type and text[:1] != b"{" else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise errors.bad_request(f"the body cannot be read: {error}") from error


def addressed(target: Target, body: Any) -> Obj:
    """The body as the object that the URL names; ApiError 400 when they disagree."""
    if not isinstance(body, dict):
        raise errors.bad_request("the body is not an object")
    kind, meta = target.resource.kind, body.get("metadata") or {}
    obj: Obj = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
    if (obj["apiVersion"], obj["kind"]) != (kind.api_version, kind.kind):
        raise errors.bad_request(
            f"the API version in the data ({obj['apiVersion']} {obj['kind']}) does not match the expected "
            f"({kind.api_version} {kind.kind})"
        )
    for field, wanted in (("namespace", target.namespace), ("name", target.name)):
        if wanted and meta.get(field, wanted) != wanted:
            raise errors.bad_request(
                f"the {field} of the provided object does not match the {field} of the request"
            )
    place = {"namespace": target.namespace} if target.namespace else {}
    return {**obj, "metadata": {**meta, **place, **({"name": target.name} if target.name else {})}}


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Body of a DELETE, or its query."""

    uid: str | None = None
    resource_version: str | None = None
    grace_seconds: int | None = None
    propagation: Propagation = "Background"


def delete_options(body: Obj, query: Mapping[str, str]) -> DeleteOptions:
    """Read them; what the body does not say may be in the query."""
    preconditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    propagation = body.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
    if propagation not in ("Background", "Foreground", "Orphan"):
        raise errors.bad_request(f"propagationPolicy: Unsupported value: {propagation!r}")
    return DeleteOptions(
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        grace_seconds=None if grace is None else int(grace),
        propagation=cast("Propagation", propagation),
    )
