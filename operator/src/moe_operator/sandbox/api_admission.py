"""What becomes of a request's object before it is stored: read, pruned, defaulted, judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from moe_operator.runtime.kube import Obj
from moe_operator.sandbox import api_errors as errors
from moe_operator.sandbox import api_validation
from moe_operator.sandbox.api_catalogue import Catalogue
from moe_operator.sandbox.api_defaults import fill_defaults
from moe_operator.sandbox.api_lifecycle import SYSTEM_META
from moe_operator.sandbox.api_resources import Resource
from moe_operator.sandbox.api_typing import untypable
from moe_operator.sandbox.field_ownership import dotted, owned_fields
from moe_operator.sandbox.wire import clone, plain


class Admission(Protocol):
    """What the server does to custom objects with their CRD's schema; ``api.structural`` is one."""

    def prune(self, schema: Mapping[str, Any], obj: Obj, /) -> Obj:
        """The object without fields that the schema does not know."""
        ...

    def default(self, schema: Mapping[str, Any], obj: Obj, /) -> Obj:
        """The object with the schema's defaults."""
        ...

    def violations(self, schema: Mapping[str, Any], obj: Obj, old: Obj | None = None, /) -> list[str]:
        """Everything the schema and its rules forbid, field first."""
        ...


def received(catalogue: Catalogue, obj: Obj) -> tuple[Resource, Obj]:
    """A request's object, as our own copy; ApiError 400 when it is no object at all."""
    resource, new = _read(catalogue, obj)
    if found := api_validation.misshapen(resource, new):
        kind = resource.kind
        raise errors.bad_request(f"{kind.kind} in version {kind.version!r} cannot be handled: {found[0]}")
    return resource, new


def configured(catalogue: Catalogue, obj: Obj) -> tuple[Resource, Obj]:
    """An applied configuration, as our own copy; ApiError 500 when it cannot be merged."""
    resource, config = _read(catalogue, obj)
    if found := untypable(resource, config):
        meta = config["metadata"]
        raise errors.not_typed(resource.kind, meta.get("namespace", ""), meta.get("name", ""), found[0])
    return resource, config


def _read(catalogue: Catalogue, obj: Obj) -> tuple[Resource, Obj]:
    try:
        new = plain(obj)
    except TypeError as error:
        raise errors.bad_request(str(error)) from error
    if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
        raise errors.bad_request("the object provided has no metadata")
    resource = catalogue.of_object(new)
    if resource.schema is not None:
        free = plain(obj, nulls=True)
        new = {**_without_absent(resource.schema, free), "metadata": new["metadata"]}
    if resource.kind.namespaced and not new["metadata"].get("namespace"):
        raise errors.bad_request("metadata.namespace: an empty namespace may not be set")
    return resource, new


def _without_absent(schema: Mapping[str, Any], value: Any) -> Any:
    """A custom object without the nulls that mean absence; in what no schema describes, null is a value."""
    if isinstance(value, list):
        return [_without_absent(schema.get("items", {}), item) for item in value]
    if not isinstance(value, dict):
        return value
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    members = ((name, part, known.get(name, rest)) for name, part in value.items())
    return {
        name: _without_absent(member or {}, part)
        for name, part, member in members
        if part is not None or member is None or member.get("nullable")
    }


def _without_unchanged(schema: Mapping[str, Any], new: Obj, old: Obj | None) -> Mapping[str, Any]:
    """The schema of the parts that differ: what was accepted once is not judged again (ratcheting)."""
    if old is None:
        return schema
    parts = schema.get("properties", {}).items()
    return {**schema, "properties": {name: part for name, part in parts if new.get(name) != old.get(name)}}


@dataclass(frozen=True, slots=True)
class Gate:
    """The way in; built-in kinds have their rules here, custom ones in ``admission``."""

    admission: Admission

    def admit(self, resource: Resource, new: Obj, old: Obj | None) -> Obj:
        """A copy of ``new`` with defaults; ApiError 422 names every broken rule."""
        new, schema = clone(new), resource.schema
        if schema is None:
            found = api_validation.missing_parts(resource.kind.plural, new)
            if not found:
                fill_defaults(resource.kind.plural, new)
                found = api_validation.problems(resource, new)
        else:
            new = self.admission.default(schema, self.admission.prune(schema, new))
            judged = _without_unchanged(schema, new, old)
            found = api_validation.problems(resource, new) + self.admission.violations(judged, new, old)
        if old is not None and not found:
            found = api_validation.change_problems(resource, old, new)
        if found:
            raise errors.invalid(resource.kind, new["metadata"].get("name", ""), found)
        return new

    def applicable(self, resource: Resource, config: Obj, subresource: str) -> Obj:
        """The part of an applied configuration that this door lets through."""
        if subresource:
            meta = {name: value for name, value in config["metadata"].items() if name in SYSTEM_META}
            kept = {name: config[name] for name in ("apiVersion", "kind", subresource) if name in config}
            config = {**kept, "metadata": meta}
        elif resource.has_status:
            config = {name: value for name, value in config.items() if name != "status"}
        return config

    def unknown_fields(self, resource: Resource, obj: Obj) -> list[str]:
        """Fields of a custom object that its schema does not know and that would be dropped."""
        if resource.schema is None:
            return []
        sent = plain(obj)
        known = self.admission.prune(resource.schema, sent)
        lost = owned_fields(resource.shape, sent) - owned_fields(resource.shape, known)
        return [dotted(path)[1:] for path in sorted(lost)]
