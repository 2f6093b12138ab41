"""Who owns which field, and what an apply changes: server-side apply without a server.

A manager's *fields* are the paths of the leaves it last wrote (in FieldsV1 spelling: ``f:spec``,
``k:{"name":"x"}``, ``v:"a"``). Rules, from sigs.k8s.io/structured-merge-diff ``merge/update.go``:

- applying merges the configuration over the live object; the applying manager then owns exactly what it
  applied;
- what it owned before, does not apply any more and nobody else owns is removed;
- a value it changes that another manager owns is a conflict, unless forced: then the other loses it;
- any other write makes its manager an owner of what it changed, and takes those fields from the rest.

Invariant: a path in any manager's set exists in the object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.merge_shapes import Shape

Path = tuple[str, ...]
Fields = frozenset[Path]

_ITEM = object()  # marks "this list item exists" among the leaves
_SERVER_META = (
    "name", "namespace", "generateName", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields",
)  # fmt: skip
_NOBODYS: Fields = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",), *(("f:metadata", f"f:{name}") for name in _SERVER_META)}
)


@dataclass(frozen=True, slots=True)
class Manager:
    """An entry of managedFields is one of these; the same name with another operation is another manager."""

    name: str
    operation: Literal["Apply", "Update"]
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    """What a manager owns and when that last changed (RFC 3339)."""

    fields: Fields
    time: str


Managers = Mapping[Manager, Owned]


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of an apply: the new object and everybody's fields after it."""

    obj: Obj
    fields: Mapping[Manager, Fields]


@dataclass(frozen=True, slots=True)
class Clash:
    """Fields that an apply without force would take from another manager."""

    manager: Manager
    paths: tuple[Path, ...]


def apply(
    shape: Shape, live: Obj, held: Managers, config: Obj, manager: Manager, *, force: bool
) -> Applied | tuple[Clash, ...]:
    """Merge ``config`` into ``live`` on behalf of ``manager``, or say who is in the way."""
    wanted = owned_fields(shape, config)
    others = {who: owned.fields for who, owned in held.items() if who != manager}
    before = held[manager].fields if manager in held else frozenset()
    new = merge(shape, live, config)
    if given_up := before - wanted:
        kept = _with_parents(wanted.union(*others.values())) | _NOBODYS
        # a map or list that is applied empty stays, with nothing in it
        doomed = _with_parents(given_up) - kept - _nodes(shape, config)
        new = _without(shape, new, _tree(doomed))
    if new == live:
        return Applied(live, _holding({**others, manager: wanted}))

    written, removed = _changes(shape, live, new)
    clashes = tuple(
        Clash(who, tuple(sorted(fields & written))) for who, fields in others.items() if fields & written
    )
    if clashes and not force:
        return clashes
    left = {who: fields - written - removed for who, fields in others.items()}
    return Applied(new, _holding({**left, manager: wanted}))


def after_update(
    shape: Shape, live: Obj, new: Obj, held: Managers, manager: Manager
) -> Mapping[Manager, Fields]:
    """Everybody's fields after ``manager`` turned ``live`` into ``new`` by a write other than apply."""
    written, removed = _changes(shape, live, new)
    left = {who: owned.fields - written - removed for who, owned in held.items()}
    return _holding({**left, manager: (left.get(manager, frozenset()) | written) - removed})


def _holding(fields: Mapping[Manager, Fields]) -> Mapping[Manager, Fields]:
    """Only managers that own something."""
    return {who: paths for who, paths in fields.items() if paths}


def fields_of(held: Managers) -> Mapping[Manager, Fields]:
    """What everybody owns, without the times."""
    return {who: owned.fields for who, owned in held.items()}


def dated(fields: Mapping[Manager, Fields], held: Managers, now: str) -> Managers:
    """Owners after a write: those whose fields are as before keep their time."""
    return {
        who: held[who] if who in held and held[who].fields == paths else Owned(paths, now)
        for who, paths in fields.items()
    }


def owned_fields(shape: Shape, obj: Obj) -> Fields:
    """Every leaf of ``obj`` that a manager can own."""
    return frozenset(_leaves(shape, obj)) - _NOBODYS


def merge(shape: Shape, live: Any, config: Any) -> Any:
    """``config`` over ``live``: maps by key, keyed lists by item, everything else replaced."""
    if shape.rule == "atomic":
        return config
    if isinstance(live, dict) and isinstance(config, dict):
        merged = dict(live)
        for name, value in config.items():
            merged[name] = merge(shape.child(name), live[name], value) if name in live else value
        return merged
    if isinstance(live, list) and isinstance(config, list) and shape.rule in ("set", "map"):
        return _merged_items(shape, live, config)
    return config


def _merged_items(shape: Shape, live: list[Any], config: list[Any]) -> list[Any]:
    """Items in the order of ``config``, with those only ``live`` has staying where they were."""
    old = {item_key(shape, item): item for item in live}
    new = {item_key(shape, item): item for item in config}
    merged: list[Any] = []
    live_keys = list(old)
    for key, item in new.items():
        while live_keys and live_keys[0] not in new:
            merged.append(old[live_keys.pop(0)])
        if key in old:
            merged.append(merge(shape.of_item(), old[key], item))
            live_keys.remove(key)
        else:
            merged.append(item)
    return merged + [old[key] for key in live_keys if key not in new]


def item_key(shape: Shape, item: Any) -> str:
    """FieldsV1 element of a list item: ``k:{…}`` for keyed lists, ``v:…`` for sets."""
    if shape.rule == "set":
        return f"v:{json.dumps(item)}"
    values = {
        key: item.get(key, shape.key_defaults.get(key))
        for key in shape.keys
        if key in item or key in shape.key_defaults
    }
    if len(values) == 1:
        [(key, value)] = values.items()
        if type(value) is str:
            return _named(key, value)
    return f"k:{json.dumps(values, sort_keys=True, separators=(',', ':'))}"


@lru_cache(maxsize=65_536)
def _named(key: str, value: str) -> str:
    return f"k:{json.dumps({key: value}, separators=(',', ':'))}"


def repeated_items(shape: Shape, value: Any, where: str = "") -> list[str]:
    """Keyed list items that occur twice, as the server's messages; such an object cannot be merged."""
    if isinstance(value, dict) and shape.rule != "atomic":
        return [
            problem
            for name, part in value.items()
            if isinstance(part, (dict, list))
            for problem in repeated_items(shape.child(name), part, f"{where}.{name}" if where else name)
        ]
    if not isinstance(value, list) or shape.rule not in ("set", "map"):
        return []
    problems, seen = [], set()
    for index, item in enumerate(value):
        key = item_key(shape, item)
        if key in seen:
            problems.append(f"{where}[{index}]: Duplicate value: {key[2:]}")
        seen.add(key)
        problems += repeated_items(shape.of_item(), item, f"{where}[{index}]")
    return problems


@lru_cache(maxsize=65_536)
def _field(name: str) -> str:
    """FieldsV1 element of a map's key; cached, so that thousands of path sets share their strings."""
    return f"f:{name}"


def _leaves(shape: Shape, value: Any) -> dict[Path, Any]:
    found: dict[Path, Any] = {}
    _collect(shape, value, (), found)
    return found


def _collect(shape: Shape, value: Any, path: Path, found: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value and shape.rule != "atomic":
        for name, part in value.items():
            _collect(shape.child(name), part, (*path, _field(name)), found)
    elif isinstance(value, list) and shape.rule in ("set", "map"):
        for item in value:
            here = (*path, item_key(shape, item))
            found[here] = _ITEM
            if isinstance(item, dict):
                _collect(shape.of_item(), item, here, found)
    else:
        found[path] = value


def _nodes(shape: Shape, value: Any, path: Path = ()) -> Fields:
    """Every map and every list of ``value`` that could have members."""
    if shape.rule in ("set", "map") and isinstance(value, list):
        parts = ((shape.of_item(), item, item_key(shape, item)) for item in value)
    elif shape.rule == "granular" and isinstance(value, dict):
        parts = ((shape.child(name), part, _field(name)) for name, part in value.items())
    else:
        return frozenset()
    return frozenset({path}).union(*(_nodes(inner, part, (*path, step)) for inner, part, step in parts))


def _changes(shape: Shape, live: Obj, new: Obj) -> tuple[Fields, Fields]:
    """(written, removed): leaves that are new or differ, and leaves that are gone."""
    old_leaves: dict[Path, Any] = {}
    new_leaves: dict[Path, Any] = {}
    _collect_where_they_differ(shape, live, new, (), old_leaves, new_leaves)
    written = frozenset(
        path for path, value in new_leaves.items() if path not in old_leaves or old_leaves[path] != value
    )
    return written - _NOBODYS, frozenset(old_leaves.keys() - new_leaves.keys()) - _NOBODYS


def _collect_where_they_differ(
    shape: Shape, old: Any, new: Any, path: Path, old_leaves: dict[Path, Any], new_leaves: dict[Path, Any]
) -> None:
    """Leaves of both sides, without those of equal parts: most of an object stays as it is in a write."""
    if old is new or (type(old) is type(new) and old == new):
        return
    both_maps = isinstance(old, dict) and isinstance(new, dict) and old and new
    if not both_maps or shape.rule == "atomic":
        _collect(shape, old, path, old_leaves)
        _collect(shape, new, path, new_leaves)
        return
    for name in {**old, **new}:
        part, below = shape.child(name), (*path, _field(name))
        if name in old and name in new:
            _collect_where_they_differ(part, old[name], new[name], below, old_leaves, new_leaves)
        elif name in old:
            _collect(part, old[name], below, old_leaves)
        else:
            _collect(part, new[name], below, new_leaves)


def _with_parents(paths: Iterable[Path]) -> Fields:
    closed: set[Path] = set()
    for path in paths:
        for length in range(len(path), 0, -1):
            if path[:length] in closed:
                break
            closed.add(path[:length])
    return frozenset(closed)


def _tree(paths: Iterable[Path]) -> dict[str, Any]:
    """Nested dicts; ``.`` marks a member that is also (or may be) a parent."""
    root: dict[str, Any] = {}
    for path in paths:
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    return root


def _without(shape: Shape, value: Any, doomed: dict[str, Any]) -> Any:
    """``value`` without the members of ``doomed``, whole subtrees at once."""
    if not doomed:
        return value
    if isinstance(value, dict):
        left = {}
        for name, part in value.items():
            below = doomed.get(_field(name), {})
            if "." not in below:
                left[name] = _without(shape.child(name), part, below)
        return left
    if isinstance(value, list):
        items = []
        for item in value:
            below = doomed.get(item_key(shape, item), {})
            if "." not in below:
                items.append(_without(shape.of_item(), item, below))
        return items
    return value


@lru_cache(maxsize=4_096)
def fields_v1(fields: Fields) -> Obj:
    """A set of paths as the wire spells it; one object for equal sets, so nobody may change it."""
    return _pruned_dots(_tree(sorted(fields)))


def _pruned_dots(node: dict[str, Any]) -> dict[str, Any]:
    if len(node) == 1 and "." in node:
        return {}
    return {name: _pruned_dots(part) if name != "." else {} for name, part in node.items()}


def managed_fields(held: Managers, api_version: str) -> list[Obj]:
    """``metadata.managedFields`` of an object."""
    return [
        {
            "manager": who.name,
            "operation": who.operation,
            "apiVersion": api_version,
            "time": owned.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields_v1(owned.fields),
            **({"subresource": who.subresource} if who.subresource else {}),
        }
        for who, owned in held.items()
    ]


def dotted(path: Path) -> str:
    """A path as conflict messages show it: ``.spec.containers[name="x"].image``."""
    text = ""
    for element in path:
        mark, value = element.split(":", 1)
        if mark == "f":
            text += f".{value}"
        elif mark == "k":
            pairs = json.loads(value).items()
            text += "[" + ",".join(f"{key}={json.dumps(part)}" for key, part in pairs) + "]"
        else:
            text += f"[={value}]"
    return text
