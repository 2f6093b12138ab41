"""The table of good and bad MoEDeployments: tests/data/objects, read into whole objects.

Whoever wants the verdict of a real API server creates the same objects there. Three YAML tags spare the
table its bulk: ``!text [s, n]`` is s filled up to n characters with its last one, ``!items [n, item]`` is a
list of n items with # replaced by their number, ``!members [n, key, value]`` a map likewise.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from moe_operator.api.reference import SMALLEST

DATA = Path(__file__).parents[1] / "data" / "objects"


@dataclass(frozen=True)
class Case:
    """One object and what the API server must say to it."""

    name: str
    accepted: bool
    field: str  # the path that must be blamed; "" when accepted
    object: dict[str, Any]

    def __str__(self) -> str:
        return self.name


class _Loader(yaml.SafeLoader):
    pass


def _text(loader: _Loader, node: yaml.SequenceNode) -> str:
    start, length = loader.construct_sequence(node)
    return str(start).ljust(length, str(start)[-1])


def _items(loader: _Loader, node: yaml.SequenceNode) -> list[Any]:
    count, item = loader.construct_sequence(node, deep=True)
    return [_numbered(item, number) for number in range(count)]


def _members(loader: _Loader, node: yaml.SequenceNode) -> dict[str, Any]:
    count, key, value = loader.construct_sequence(node, deep=True)
    return {_numbered(key, number): value for number in range(count)}


def _numbered(item: Any, number: int) -> Any:
    if isinstance(item, dict):
        return {key: _numbered(value, number) for key, value in item.items()}
    return item.replace("#", str(number)) if isinstance(item, str) else item


_Loader.add_constructor("!text", _text)
_Loader.add_constructor("!items", _items)
_Loader.add_constructor("!members", _members)


def smallest() -> dict[str, Any]:
    """The smallest useful object, as the reference page shows it."""
    loaded: dict[str, Any] = yaml.safe_load(SMALLEST)
    return loaded


def full() -> dict[str, Any]:
    """An object that sets every member of the spec."""
    loaded: dict[str, Any] = yaml.safe_load((DATA / "full.yaml").read_text(encoding="utf-8"))
    return loaded


def load_cases() -> list[Case]:
    """The whole table."""
    return [*_read("accepted"), *_read("rejected")]


def _read(expect: str) -> list[Case]:
    text = (DATA / f"{expect}.yaml").read_text(encoding="utf-8")
    rows = yaml.load(text, Loader=_Loader)
    return [Case(row["name"], expect == "accepted", row.get("field", ""), _object(row)) for row in rows]


def _object(row: dict[str, Any]) -> dict[str, Any]:
    obj = smallest()
    for path in row.get("unset", ()):
        parent, key = _parent(obj, path)
        del parent[key]
    for path, value in row.get("set", {}).items():
        parent, key = _parent(obj, path)
        parent[key] = copy.deepcopy(value)
    return obj


def _parent(obj: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *way, key = path.split(".")
    for step in way:
        obj = obj[step]
    return obj, key
