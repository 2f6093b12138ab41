"""How the lists and maps of each kind merge: the part of the API's schema that server-side apply needs.

Unless a table (or a CRD's ``x-kubernetes-*``) says otherwise a map merges key by key and a list is
atomic: it has one owner and is replaced whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Rule = Literal["granular", "atomic", "set", "map"]


@dataclass(frozen=True, slots=True)
class Shape:
    """How one value merges; ``item`` is the shape of a list's items, ``rest`` of keys without a field."""

    rule: Rule = "granular"
    keys: tuple[str, ...] = ()
    key_defaults: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Shape] = field(default_factory=dict)
    item: Shape | None = None
    rest: Shape | None = None

    def child(self, name: str) -> Shape:
        """Shape of the value under ``name``."""
        return self.fields.get(name) or self.rest or OPEN

    def of_item(self) -> Shape:
        """Shape of one item of a list."""
        return self.item or OPEN


OPEN = Shape()

_KEY_DEFAULTS = {"protocol": "TCP"}

_CONTAINER = (
    "env{name}", "env.valueFrom.fieldRef!", "env.valueFrom.resourceFieldRef!", "env.valueFrom.secretKeyRef!",
    "env.valueFrom.configMapKeyRef!", "ports{containerPort,protocol}", "volumeMounts{mountPath}",
    "volumeDevices{devicePath}", "resources.claims{name}",
)  # fmt: skip
_POD_SPEC = (
    "containers{name}", "initContainers{name}", "ephemeralContainers{name}", "imagePullSecrets{name}",
    "hostAliases{ip}", "volumes{name}", "topologySpreadConstraints{topologyKey,whenUnsatisfiable}",
    "schedulingGates{name}", "resourceClaims{name}", "nodeSelector!",
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution!",
    *(f"{kind}.{line}" for kind in ("containers", "initContainers") for line in _CONTAINER),
)  # fmt: skip
_META = ("metadata.ownerReferences{uid}", "metadata.finalizers[]")
_CONDITIONS = ("status.conditions{type}",)


def _below(prefix: str, lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{prefix}.{line}" for line in lines)


_TABLE: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): (*_below("spec", _POD_SPEC), *_CONDITIONS, "status.podIPs{ip}"),
    ("", "nodes"): ("spec.podCIDRs[]", *_CONDITIONS, "status.addresses{type}"),
    ("", "namespaces"): _CONDITIONS,
    ("", "services"): ("spec.ports{port,protocol}", "spec.selector!", *_CONDITIONS),
    ("", "serviceaccounts"): ("secrets{name}",),
    ("", "persistentvolumeclaims"): _CONDITIONS,
    ("", "events"): ("involvedObject!",),
    ("batch", "jobs"): ("spec.selector!", *_below("spec.template.spec", _POD_SPEC), *_CONDITIONS),
    ("apps", "deployments"): ("spec.selector!", *_below("spec.template.spec", _POD_SPEC), *_CONDITIONS),
    ("apps", "replicasets"): ("spec.selector!", *_below("spec.template.spec", _POD_SPEC), *_CONDITIONS),
    ("policy", "poddisruptionbudgets"): ("spec.selector!", *_CONDITIONS),
    ("networking.k8s.io", "networkpolicies"): ("spec.podSelector!",),
    ("rbac.authorization.k8s.io", "rolebindings"): ("roleRef!",),
    ("apiextensions.k8s.io", "customresourcedefinitions"): _CONDITIONS,
}


def builtin_shape(group: str, plural: str) -> Shape:
    """Shape of a kind that the server knows by itself."""
    return _shape_of_lines((*_META, *_TABLE.get((group, plural), ())))


def custom_shape(schema: Mapping[str, Any]) -> Shape:
    """Shape of a custom resource from its OpenAPI schema."""
    root = _shape_of_schema(schema)
    meta = _shape_of_lines(_META).fields["metadata"]
    return Shape(fields={**root.fields, "metadata": meta}, rest=root.rest)


def _shape_of_schema(schema: Mapping[str, Any]) -> Shape:
    if schema.get("type") == "array":
        items = schema.get("items", {})
        keys = tuple(schema.get("x-kubernetes-list-map-keys", ()))
        known = items.get("properties", {})
        return Shape(
            rule=schema.get("x-kubernetes-list-type", "atomic"),
            keys=keys,
            key_defaults={key: known[key]["default"] for key in keys if "default" in known.get(key, {})},
            item=_shape_of_schema(items),
        )
    rest = schema.get("additionalProperties")
    return Shape(
        rule="atomic" if schema.get("x-kubernetes-map-type") == "atomic" else "granular",
        fields={name: _shape_of_schema(part) for name, part in schema.get("properties", {}).items()},
        rest=_shape_of_schema(rest) if isinstance(rest, Mapping) else None,
    )


@dataclass(slots=True)
class _Draft:
    """A shape under construction; for a list, ``fields`` are those of its items."""

    rule: Rule = "granular"
    keys: tuple[str, ...] = ()
    fields: dict[str, _Draft] = field(default_factory=dict)

    def frozen(self) -> Shape:
        fields = {name: draft.frozen() for name, draft in self.fields.items()}
        if self.rule in ("set", "map"):
            return Shape(self.rule, self.keys, _KEY_DEFAULTS, item=Shape(fields=fields))
        return Shape(self.rule, fields=fields)


def _shape_of_lines(lines: Iterable[str]) -> Shape:
    """``a.b{k}`` = list of maps keyed by k, ``a.b[]`` = set, ``a.b!`` = atomic."""
    root = _Draft()
    for line in lines:
        path, rule, keys = _parsed(line)
        draft = root
        for name in path.split("."):
            draft = draft.fields.setdefault(name, _Draft())
        draft.rule, draft.keys = rule, keys
    return root.frozen()


def _parsed(line: str) -> tuple[str, Rule, tuple[str, ...]]:
    if line.endswith("}"):
        path, keys = line[:-1].split("{")
        return path, "map", tuple(keys.split(","))
    if line.endswith("[]"):
        return line[:-2], "set", ()
    return line.removesuffix("!"), "atomic", ()
