"""Label and field selectors, parsed once and matched many times.

Labels know equality and set operators (``a=b``, ``a!=b``, ``a in (x,y)``, ``a notin (x)``, ``a``, ``!a``);
``!=`` and ``notin`` also match objects without the label. Fields know equality only, and only the paths
that a real server indexes: any other is a 400, so that a selector that would not work in a cluster does
not work here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from moe_operator.runtime.kube import Kind, Obj
from moe_operator.sandbox.api_errors import bad_request

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]

_KEY = r"(?:[A-Za-z0-9.\-]+/)?[A-Za-z0-9](?:[A-Za-z0-9_.\-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.\-]*[A-Za-z0-9])?)?"
_EQUALITY = re.compile(rf"\s*({_KEY})\s*(==|=|!=)\s*({_VALUE})\s*")
_SET = re.compile(rf"\s*({_KEY})\s+(in|notin)\s+\(([^()]*)\)\s*")
_PRESENCE = re.compile(rf"\s*(!?)\s*({_KEY})\s*")
_COMMA_OUTSIDE_PARENTHESES = re.compile(r",(?![^()]*\))")

_ANY_KIND_FIELDS = frozenset({"metadata.name", "metadata.namespace"})
_FIELDS: Mapping[str, frozenset[str]] = {
    "pods": frozenset(
        {
            "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
            "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
        }
    ),
    "events": frozenset(
        {
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
            "reason", "reportingComponent", "source", "type",
        }
    ),
    "nodes": frozenset({"spec.unschedulable"}),
    "namespaces": frozenset({"status.phase"}),
    "secrets": frozenset({"type"}),
    "jobs": frozenset({"status.successful"}),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether ``labels`` meet this condition."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold; none = everything matches."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        """Whether an object with ``labels`` is selected."""
        held = labels or {}
        return all(requirement.matches(held) for requirement in self.requirements)

    def only_value(self, key: str) -> str | None:
        """The one value that ``key`` must have, when the selector says so; lets an index answer."""
        for requirement in self.requirements:
            if requirement.key == key and requirement.operator == "In" and len(requirement.values) == 1:
                return next(iter(requirement.values))
        return None


EVERY_LABEL = LabelSelector()


@lru_cache(maxsize=1024)
def parse_labels(text: str) -> LabelSelector:
    """The ``labelSelector`` of a request; ApiError 400 when it cannot be parsed."""
    if not text.strip():
        return LabelSelector()
    return LabelSelector(tuple(_requirement(part) for part in _COMMA_OUTSIDE_PARENTHESES.split(text)))


def _requirement(text: str) -> Requirement:
    if found := _EQUALITY.fullmatch(text):
        key, sign, value = found.groups()
        return Requirement(key, "NotIn" if sign == "!=" else "In", frozenset({value}))
    if found := _SET.fullmatch(text):
        key, word, values = found.groups()
        return Requirement(
            key, "In" if word == "in" else "NotIn", frozenset(v.strip() for v in values.split(","))
        )
    if found := _PRESENCE.fullmatch(text):
        absent, key = found.groups()
        return Requirement(key, "DoesNotExist" if absent else "Exists")
    raise bad_request(f"unable to parse requirement: {text!r}")


def from_object(selector: Obj) -> LabelSelector:
    """A ``LabelSelector`` object (``matchLabels``, ``matchExpressions``) as one selector."""
    equal = (
        Requirement(key, "In", frozenset({value})) for key, value in selector.get("matchLabels", {}).items()
    )
    listed = (
        Requirement(item["key"], item["operator"], frozenset(item.get("values", ())))
        for item in selector.get("matchExpressions", ())
    )
    return LabelSelector((*equal, *listed))


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Equality of fields: (path, wanted value, whether equal is wanted)."""

    terms: tuple[tuple[str, str, bool], ...] = ()

    def matches(self, obj: Obj) -> bool:
        """Whether the object is selected."""
        return all((_field(obj, path) == value) is equal for path, value, equal in self.terms)

    def only_value(self, path: str) -> str | None:
        """The value that ``path`` must have, when the selector says so."""
        return next((value for known, value, equal in self.terms if known == path and equal), None)


EVERY_FIELD = FieldSelector()


def parse_fields(kind: Kind, text: str) -> FieldSelector:
    """The ``fieldSelector`` of a request; ApiError 400 for a field the server does not index."""
    if not text.strip():
        return FieldSelector()
    return FieldSelector(tuple(_term(kind, part) for part in text.split(",")))


def _term(kind: Kind, text: str) -> tuple[str, str, bool]:
    found = re.fullmatch(r"\s*([A-Za-z.]+)\s*(==|=|!=)\s*(.*?)\s*", text)
    if not found:
        raise bad_request(f"invalid field selector: {text!r}")
    path, sign, value = found.groups()
    if path not in _ANY_KIND_FIELDS and path not in _FIELDS.get(kind.plural, frozenset()):
        raise bad_request(f'field label not supported: "{path}"')
    return path, value, sign != "!="


def _field(obj: Obj, path: str) -> str:
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
