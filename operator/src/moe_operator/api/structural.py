"""What an API server does to an object with a structural schema: prune, default, validate.

Semantics of apiextensions-apiserver (pkg/apiserver/schema/{pruning,defaulting,listtype,cel}): unknown
members go first; an explicit null of a member that may not be null is absence; defaults fill what is
absent, parents before children; CEL rules run only on objects without any other error, transition rules
(those that mention ``oldSelf``) only where an old value exists.

Functions return new objects and never change their arguments.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from moe_operator.api.fields import FieldError, below

Schema = Mapping[str, Any]

_META = frozenset({"apiVersion", "kind", "metadata"})
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def admit(schema: Schema, obj: Mapping[str, Any]) -> dict[str, Any]:
    """The object as the API server would keep it: pruned, then defaulted."""
    admitted: dict[str, Any] = default(schema, prune(schema, obj))
    return admitted


def prune(schema: Schema, obj: Any) -> Any:
    """``obj`` without the members that ``schema`` does not know; the root keeps its metadata."""
    pruned = _prune(schema, obj)
    if isinstance(obj, dict):
        kept = {key: copy.deepcopy(value) for key, value in obj.items() if key in _META}
        return {**pruned, **kept}
    return pruned


def _prune(schema: Schema | None, value: Any) -> Any:
    schema = schema or {}
    if isinstance(value, list):
        return [_prune(schema.get("items"), item) for item in value]
    if not isinstance(value, dict):
        return value
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return {
            key: _prune(_member(schema, key), item) if _member(schema, key) else copy.deepcopy(item)
            for key, item in value.items()
        }
    return {
        key: _prune(_member(schema, key), item)
        for key, item in value.items()
        if _member(schema, key) is not None
    }


def default(schema: Schema, value: Any) -> Any:
    """``value`` with defaults filled in and nulls that mean absence taken out."""
    if isinstance(value, list):
        items = schema.get("items", {})
        return [default(items, item) for item in value]
    if not isinstance(value, dict):
        return value
    given = {key: item for key, item in value.items() if not _absent(_member(schema, key), item)}
    missing = {
        key: copy.deepcopy(member["default"])
        for key, member in schema.get("properties", {}).items()
        if key not in given and "default" in member
    }
    return {key: default(_member(schema, key) or {}, item) for key, item in {**given, **missing}.items()}


def _absent(schema: Schema | None, value: Any) -> bool:
    return value is None and schema is not None and not schema.get("nullable")


def _member(schema: Schema, key: str) -> Schema | None:
    """Schema of one member; None when the schema does not know it."""
    members: Mapping[str, Schema] = schema.get("properties", {})
    extra: Schema | None = schema.get("additionalProperties")
    return members.get(key, extra)


def violations(schema: Schema, obj: Any, old: Any = None) -> list[str]:
    """Everything wrong with an admitted object, as ``path: message``; empty = accepted."""
    return [f"{path}: {message}" for path, message in field_errors(schema, obj, old)]


def field_errors(schema: Schema, obj: Any, old: Any = None) -> list[FieldError]:
    """Like :func:`violations`, with path and message apart."""
    return list(_errors(schema, obj, "")) or list(_broken_rules(schema, obj, old, ""))


def _errors(schema: Schema, value: Any, path: str) -> Iterator[FieldError]:
    kind = schema.get("type")
    if value is None and schema.get("nullable"):
        return
    if kind and not _TYPES[kind](value):
        yield FieldError(path, f"must be of type {kind}, not {_type_name(value)}")
        return
    if "enum" in schema and value not in schema["enum"]:
        yield FieldError(path, f"must be one of {', '.join(map(str, schema['enum']))}, not {_short(value)}")
    if isinstance(value, str):
        yield from _string_errors(schema, value, path)
    elif isinstance(value, dict):
        yield from _object_errors(schema, value, path)
    elif isinstance(value, list):
        yield from _list_errors(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_errors(schema, value, path)


def _string_errors(schema: Schema, value: str, path: str) -> Iterator[FieldError]:
    yield from _size_errors(schema, "Length", len(value), "characters", path)
    pattern = schema.get("pattern")
    if pattern and not _regex(pattern).search(value):
        yield FieldError(path, f"must match {pattern}, which {_short(value)} does not")


def _number_errors(schema: Schema, value: float, path: str) -> Iterator[FieldError]:
    if value < schema.get("minimum", value):
        yield FieldError(path, f"must be at least {schema['minimum']}, not {value}")
    if value > schema.get("maximum", value):
        yield FieldError(path, f"must be at most {schema['maximum']}, not {value}")


def _object_errors(schema: Schema, value: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    yield from _size_errors(schema, "Properties", len(value), "members", path)
    for key in schema.get("required", ()):
        if key not in value:
            yield FieldError(below(path, key), "is required")
    for key, item in value.items():
        member = _member(schema, key)
        if member is not None:
            yield from _errors(member, item, below(path, key))


def _list_errors(schema: Schema, value: list[Any], path: str) -> Iterator[FieldError]:
    yield from _size_errors(schema, "Items", len(value), "items", path)
    for index, item in enumerate(value):
        yield from _errors(schema.get("items", {}), item, f"{path}[{index}]")
    if schema.get("x-kubernetes-list-type") not in {"map", "set"}:
        return
    seen: set[str] = set()
    for index, item in enumerate(value):
        identity = _identity(schema, item)
        if identity in seen:
            yield FieldError(f"{path}[{index}]", f"duplicate item {identity}")
        seen.add(identity)


def _identity(schema: Schema, item: Any) -> str:
    """What tells an item of a set or map list apart from the others."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys and isinstance(item, dict):
        item = {key: item.get(key) for key in keys}
    return json.dumps(item, sort_keys=True)


def _size_errors(schema: Schema, what: str, size: int, unit: str, path: str) -> Iterator[FieldError]:
    least, most = schema.get(f"min{what}", 0), schema.get(f"max{what}", size)
    if size < least:
        yield FieldError(path, f"must have at least {least} {unit}, not {size}")
    if size > most:
        yield FieldError(path, f"must have at most {most} {unit}, not {size}")


def _broken_rules(schema: Schema, value: Any, old: Any, path: str) -> Iterator[FieldError]:
    """CEL rules of the object itself, then of what is below it."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] or old is not None or rule.get("optionalOldSelf"):
            yield from _broken_rule(rule, value, old, path)
    if isinstance(value, dict):
        for key, item in value.items():
            before = old.get(key) if isinstance(old, dict) else None
            yield from _broken_rules(_member(schema, key) or {}, item, before, below(path, key))
    elif isinstance(value, list):
        before_by_key = _correlated(schema, old)
        for index, item in enumerate(value):
            before = before_by_key.get(_identity(schema, item)) if before_by_key else None
            yield from _broken_rules(schema.get("items", {}), item, before, f"{path}[{index}]")


def _broken_rule(rule: Schema, value: Any, old: Any, path: str) -> Iterator[FieldError]:
    where = below(path, rule.get("fieldPath", "").removeprefix(".")).removesuffix(".")
    try:
        holds = _program(rule["rule"]).execute({"self": value, "oldSelf": old})
    except Exception as error:  # cel raises bare builtins: a rule that cannot be evaluated does not hold
        yield FieldError(where, f"rule {rule['rule']!r} failed: {error}")
        return
    if holds is not True:
        yield FieldError(where, rule.get("message") or f"failed rule: {rule['rule']}")


def _correlated(schema: Schema, old: Any) -> dict[str, Any]:
    """Old items by identity; only items of map lists have an old self (a changed set item is another)."""
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list):
        return {}
    return {_identity(schema, item): item for item in old}


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    """RE2's ``$`` is the very end; Python's also stands before a last newline."""
    return re.compile(re.sub(r"\$$", r"\\Z", pattern))


@cache
def _program(expression: str) -> Any:
    """A compiled CEL expression; the library is only needed by whoever plays the API server."""
    import cel

    return cel.compile(expression)


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    return next((name for name, check in _TYPES.items() if check(value)), type(value).__name__)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
