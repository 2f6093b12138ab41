"""JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch, on plain values.

Every function returns a new value and leaves its arguments alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.field_ownership import item_key
from moe_operator.sandbox.merge_shapes import Shape


class PatchError(Exception):
    """The patch does not fit the object; the text says which operation and why."""


def json_patch(obj: Any, operations: Sequence[Obj]) -> Any:
    """Apply the operations in order; the first that fails (a ``test``, an absent path) raises PatchError."""
    if not isinstance(operations, list) or not all(isinstance(each, dict) for each in operations):
        raise PatchError("a JSON patch is a list of operations")
    for operation in operations:
        obj = _operate(obj, operation)
    return obj


def merge_patch(obj: Any, patch: Any) -> Any:
    """RFC 7386: maps merge, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(obj) if isinstance(obj, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_patch(shape: Shape, obj: Any, patch: Any) -> Any:
    """Merge patch in which keyed lists merge by key; ``$patch: delete|replace`` are the only directives
    that act, ordering hints are dropped.
    """
    if isinstance(patch, dict):
        if patch.get("$patch") == "replace":
            return {name: value for name, value in patch.items() if name != "$patch"}
        merged = dict(obj) if isinstance(obj, dict) else {}
        for name, value in patch.items():
            if name.startswith("$deleteFromPrimitiveList/"):
                field = name.partition("/")[2]
                merged[field] = [item for item in merged.get(field, []) if item not in value]
            elif name.startswith("$"):
                continue
            elif value is None:
                merged.pop(name, None)
            else:
                merged[name] = strategic_patch(shape.child(name), merged.get(name), value)
        return merged
    if isinstance(patch, list) and isinstance(obj, list) and shape.rule in ("map", "set"):
        return _strategic_list(shape, obj, patch)
    return patch


def _strategic_list(shape: Shape, live: list[Any], patch: list[Any]) -> list[Any]:
    items = {item_key(shape, item): item for item in live}
    for item in patch:
        key = item_key(shape, item)
        if isinstance(item, dict) and item.get("$patch") == "delete":
            items.pop(key, None)
        else:
            items[key] = strategic_patch(shape.of_item(), items.get(key), item)
    return list(items.values())


def _operate(obj: Any, operation: Obj) -> Any:
    verb, path = operation.get("op"), operation.get("path")
    if path is None:
        raise PatchError(f"operation without a path: {operation}")
    match verb:
        case "add":
            return _put(obj, _tokens(path), _part(operation, "value"), insert=True)
        case "replace":
            _read(obj, path)
            return _put(obj, _tokens(path), _part(operation, "value"), insert=False)
        case "remove":
            _read(obj, path)
            return _cut(obj, _tokens(path))
        case "test":
            if _read(obj, path) != operation.get("value"):
                raise PatchError(f"testing value {path} failed")
            return obj
        case "copy":
            return _put(obj, _tokens(path), _read(obj, _part(operation, "from")), insert=True)
        case "move":
            source = _part(operation, "from")
            value = _read(obj, source)
            return _put(_cut(obj, _tokens(source)), _tokens(path), value, insert=True)
    raise PatchError(f"unknown operation {verb!r}")


def _part(operation: Obj, name: str) -> Any:
    if name not in operation:
        raise PatchError(f"operation without {name!r}: {operation}")
    return operation[name]


def _tokens(path: Any) -> list[str]:
    if path == "":
        return []
    if not isinstance(path, str) or not path.startswith("/"):
        raise PatchError(f"path {path!r} does not start with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def _read(obj: Any, path: str) -> Any:
    for token in _tokens(path):
        obj = _step(obj, token)
    return obj


def _step(obj: Any, token: str) -> Any:
    if isinstance(obj, dict) and token in obj:
        return obj[token]
    if isinstance(obj, list) and token.isdecimal() and int(token) < len(obj):
        return obj[int(token)]
    raise PatchError(f"path element {token!r} does not exist")


def _put(obj: Any, tokens: list[str], value: Any, *, insert: bool) -> Any:
    if not tokens:
        return value
    head, *rest = tokens
    if isinstance(obj, dict):
        return {**obj, head: _put(_step(obj, head), rest, value, insert=insert) if rest else value}
    if not isinstance(obj, list):
        raise PatchError(f"path element {head!r} is below a plain value")
    if rest or not insert:
        index = _index(head, len(obj) - 1)
        return [*obj[:index], _put(obj[index], rest, value, insert=insert), *obj[index + 1 :]]
    index = len(obj) if head == "-" else _index(head, len(obj))
    return [*obj[:index], value, *obj[index:]]


def _cut(obj: Any, tokens: list[str]) -> Any:
    head, *rest = tokens or [""]
    if isinstance(obj, dict):
        if rest:
            return {**obj, head: _cut(obj[head], rest)}
        return {name: value for name, value in obj.items() if name != head}
    index = _index(head, len(obj) - 1)
    return [*obj[:index], *([_cut(obj[index], rest)] if rest else []), *obj[index + 1 :]]


def _index(token: str, last: int) -> int:
    if not token.isdecimal() or int(token) > last:
        raise PatchError(f"list index {token!r} is out of range")
    return int(token)
