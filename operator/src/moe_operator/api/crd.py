"""The CustomResourceDefinition, generated from the Pydantic models.

Pydantic's JSON Schema says some things in ways a Kubernetes structural schema forbids or mangles:
references, null unions, ``const``, titles. This generator says them the structural way and then refuses
whatever is left outside the allowed keywords, with the path at fault, so that a new field either becomes a
clean schema or fails the build. It also refuses unbounded sizes (CEL cost is estimated from them),
patterns that are not anchored, and members without a description (``kubectl explain`` shows it).
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from moe_operator.api import names
from moe_operator.api.fields import ApiModel
from moe_operator.api.spec import MoEDeployment, MoESpec
from moe_operator.api.status import Status

Schema = dict[str, Any]

INT32_MAX = 2_147_483_647
_KEYWORDS = frozenset(
    {
        "type", "format", "description", "default", "enum", "properties", "required", "items",
        "additionalProperties", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems",
        "maxItems", "maxProperties", "x-kubernetes-validations", "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys", "x-kubernetes-preserve-unknown-fields",
    }
)  # fmt: skip
_BOUNDS = {
    "string": ("maxLength", "enum"),
    "array": ("maxItems",),
    "integer": ("maximum",),
}


class StructuralError(Exception):
    """A model that no structural schema can express, or that leaves something unsaid."""


class _Structural(GenerateJsonSchema):
    """JSON Schema with optional members simply optional, and rules beside their object."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """An explicit null means absent, so null is no type of its own."""
        return self.generate_inner(schema["schema"])

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """Strings of a fixed set, also when there is only one."""
        return {"type": "string", "enum": list(schema["expected"])}

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """No default at all where the default is absence."""
        if "default" in schema and schema["default"] is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def encode_default(self, dft: Any) -> Any:
        """The whole object: the API server holds a default against the CEL rules before it fills it in."""
        if isinstance(dft, ApiModel):
            return dft.to_dict()
        return super().encode_default(dft)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """The object with its CEL rules."""
        result = super().model_schema(schema)
        if issubclass(schema["cls"], ApiModel) and schema["cls"].RULES:
            result["x-kubernetes-validations"] = _validations(schema["cls"])
        return result


def _validations(model: type[ApiModel]) -> list[Schema]:
    return [
        {"rule": rule.cel, "message": rule.message, "fieldPath": f".{rule.field}"} for rule in model.RULES
    ]


def structural_schema(model: type[ApiModel]) -> Schema:
    """``model`` as a structural schema; :class:`StructuralError` where that cannot be."""
    raw = model.model_json_schema(by_alias=True, schema_generator=_Structural)
    return _inline(raw, raw.get("$defs", {}), model.__name__)


def _inline(node: Schema, definitions: Schema, path: str) -> Schema:
    """``node`` without references, titles and foreign keywords, checked on the way."""
    if "$ref" in node:
        target = definitions[node["$ref"].removeprefix("#/$defs/")]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    out = {key: value for key, value in node.items() if key not in {"title", "$defs"}}
    if out.get("additionalProperties") is True:
        del out["additionalProperties"]
        out["x-kubernetes-preserve-unknown-fields"] = True
    if out.get("type") == "integer":
        out["format"] = "int32" if out.get("maximum", INT32_MAX + 1) <= INT32_MAX else "int64"
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    _check_keywords(out, path)
    if "properties" in out:
        out["properties"] = {
            name: _inline(child, definitions, f"{path}.{name}") for name, child in out["properties"].items()
        }
        for name, child in out["properties"].items():
            if not child.get("description"):
                raise StructuralError(f"{path}.{name}: no description")
    for key in ("items", "additionalProperties"):
        if key in out:
            out[key] = _inline(out[key], definitions, f"{path}.{key}")
    return dict(sorted(out.items(), key=lambda item: _order(item[0])))


def _check_keywords(node: Schema, path: str) -> None:
    foreign = node.keys() - _KEYWORDS
    if foreign:
        raise StructuralError(f"{path}: {', '.join(sorted(foreign))} not allowed in a structural schema")
    kind = node.get("type")
    if kind is None:
        raise StructuralError(f"{path}: no type")
    if kind in _BOUNDS and not any(bound in node for bound in _BOUNDS[kind]):
        raise StructuralError(f"{path}: {kind} without {' or '.join(_BOUNDS[kind])}")
    if kind == "object" and "properties" not in node and "maxProperties" not in node:
        raise StructuralError(f"{path}: map without maxProperties")
    if "additionalProperties" in node and "properties" in node:
        raise StructuralError(f"{path}: properties beside additionalProperties")
    if "pattern" in node and not _anchored(node["pattern"]):
        raise StructuralError(f"{path}: pattern {node['pattern']!r} is not anchored at both ends, once")


def _anchored(pattern: str) -> bool:
    """Whether the pattern covers the whole text: one ^, one $, no alternative outside parentheses."""
    bare = re.sub(r"\\.|\[[^\]]*\]", "", pattern)
    while "(" in bare:
        bare = re.sub(r"\([^()]*\)", "", bare)
    return bare.startswith("^") and bare.endswith("$") and not set(bare[1:-1]) & set("^$|")


def _order(key: str) -> tuple[int, str]:
    head = ("description", "type", "format", "default", "enum")
    tail = ("required", "properties", "items", "additionalProperties")
    if key in head:
        return head.index(key), key
    return (100 + tail.index(key), key) if key in tail else (50, key)


def _reported(node: Schema) -> Schema:
    """A status schema: nobody fills in what the operator did not say, and only list keys are required."""
    out = {key: value for key, value in node.items() if key not in {"default", "required"}}
    if "properties" in out:
        out["properties"] = {name: _reported(child) for name, child in out["properties"].items()}
    if "items" in out:
        out["items"] = _reported(out["items"])
        keys = out.get("x-kubernetes-list-map-keys")
        if keys:
            out["items"]["required"] = keys
    return out


def deployment_schema() -> Schema:
    """Schema of the whole object; type and object metadata belong to the API server."""
    about = {name: info.description for name, info in MoEDeployment.model_fields.items()}
    spec = structural_schema(MoESpec)
    status = _reported(structural_schema(Status))
    return {
        "description": inspect.cleandoc(MoEDeployment.__doc__ or ""),
        "type": "object",
        "x-kubernetes-validations": _validations(MoEDeployment),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": about["api_version"], "type": "string"},
            "kind": {"description": about["kind"], "type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": {**spec, "description": about["spec"]},
            "status": {**status, "description": about["status"]},
        },
    }


_COLUMNS = (
    # name, type, JSONPath, wide, description
    (
        "Ready",
        "string",
        '.status.conditions[?(@.type=="Ready")].status',
        False,
        "Whether clients are served.",
    ),
    ("Phase", "string", ".status.rollout.phase", False, "Where the change of revision stands."),
    ("Active", "string", ".status.activeRevision", False, "Revision that serves."),
    ("Target", "string", ".status.targetRevision", False, "Revision that the spec asks for."),
    ("Groups", "integer", ".status.readyReplicas", False, "Serving groups that serve."),
    ("Plan", "string", ".status.plan.verdict", False, "Whether the model fits its GPUs."),
    ("Layout", "string", ".status.plan.layout.summary", True, "How the model is spread over GPUs."),
    ("Nodes", "integer", ".status.plan.layout.nodes", True, "Nodes per replica."),
    (
        "Weights",
        "string",
        '.status.conditions[?(@.type=="WeightsStaged")].reason',
        True,
        "How far the files are.",
    ),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', True, "What holds it up."),
    ("Age", "date", ".metadata.creationTimestamp", False, "Time since creation."),
)


def custom_resource_definition() -> Schema:
    """The CRD as the API server takes it."""
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "description": about, "priority": int(wide)}
        for name, kind, path, wide, about in _COLUMNS
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["moed"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": deployment_schema()},
                }
            ],
        },
    }
