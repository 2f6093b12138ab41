"""Whether an applied configuration can be merged at all.

The server reads a configuration by its schema before any door, default or rule looks at it: every field must
be declared and of its type, every item of a keyed list must have its key, once. Of the built-in kinds only
the shapes are known here, so their undeclared fields go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.api_resources import Resource
from moe_operator.sandbox.api_validation import misshapen
from moe_operator.sandbox.field_ownership import repeated_items

_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "object": ((dict,), "map"),
    "array": ((list,), "list"),
    "string": ((str,), "string"),
    "boolean": ((bool,), "boolean"),
    "integer": ((int, float), "numeric (int or float)"),
    "number": ((int, float), "numeric (int or float)"),
}
_TYPED_ELSEWHERE = ("apiVersion", "kind", "metadata")


def untypable(resource: Resource, config: Obj) -> list[str]:
    """What keeps ``config`` from being merged, path first; empty when nothing does."""
    if resource.schema is not None:
        content = {name: part for name, part in config.items() if name not in _TYPED_ELSEWHERE}
        if found := list(_undeclared(resource.schema, content, "")):
            return found
    found = misshapen(resource, config) or repeated_items(resource.shape, config)
    return [f".{problem}" for problem in found]


def _undeclared(schema: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
    types, word = _TYPES[schema["type"]]
    if value is None:
        return
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        yield f"{where}: expected {word}, got {value!r}"
    elif isinstance(value, dict):
        yield from _undeclared_members(schema, value, where)
    elif isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys", ())
        for index, item in enumerate(value):
            if keys and isinstance(item, dict) and not item.keys() & set(keys):
                yield f"{where}: element {index}: omits all key fields {list(keys)}"
            yield from _undeclared(schema["items"], item, f"{where}[{index}]")


def _undeclared_members(schema: Mapping[str, Any], value: Obj, where: str) -> Iterator[str]:
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for name, part in value.items():
        if member := known.get(name, rest):
            yield from _undeclared(member, part, f"{where}.{name}")
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{where}.{name}: field not declared in schema"
