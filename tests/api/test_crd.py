"""The CRD: structural, described, bounded, and the same as what is committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from moe_operator.api.crd import (
    StructuralError,
    custom_resource_definition,
    deployment_schema,
    structural_schema,
)
from moe_operator.api.fields import ApiModel, Rule
from moe_operator.api.generate import REPOSITORY, drift, main, write
from moe_operator.api.status import Status
from moe_operator.api.structural import admit, violations
from pydantic import Field

from tests.api.objects import full, smallest

SCHEMA = deployment_schema()
BOUNDS = {"string": ("maxLength", "enum"), "array": ("maxItems",), "integer": ("maximum",)}
BEYOND_CORE_CEL = (
    "quantity(",
    "isURL",
    ".find",
    ".split",
    ".sum(",
    "isSorted",
    "lowerAscii",
    "?.",
    "orValue",
)


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, member in schema.get("properties", {}).items():
        yield from nodes(member, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def test_what_is_committed_is_what_is_generated() -> None:
    assert drift(REPOSITORY) == ""


def test_check_fails_with_a_diff_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    page = tmp_path / "docs" / "api.md"
    page.write_text(page.read_text().replace("# The MoEDeployment API", "# Something else"))
    edited = page.read_text()
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert "-# Something else\n+# The MoEDeployment API\n" in capsys.readouterr().out
    assert page.read_text() == edited
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0


def test_every_member_is_described() -> None:
    bare = [p for p, node in nodes(SCHEMA) if p and not p.endswith("[]") and not node.get("description")]
    assert bare == [".metadata", ".metadata.name"]  # the API server describes these


def test_descriptions_are_sentences() -> None:
    texts = [(path, node["description"]) for path, node in nodes(SCHEMA) if "description" in node]
    assert [item for item in texts if not item[1].endswith((".", "?", ":"))] == []
    assert [item for item in texts if "\n" in item[1]] == []


def test_every_default_is_valid_by_itself() -> None:
    """The API server refuses a CRD whose defaults break its own rules, before it fills in anything."""
    defaults = [(path, node) for path, node in nodes(SCHEMA) if "default" in node]
    assert len(defaults) > 60
    wrong = {path: violations(node, node["default"]) for path, node in defaults}
    assert {path: errors for path, errors in wrong.items() if errors} == {}


def test_every_default_says_what_an_empty_object_becomes() -> None:
    for path, node in nodes(SCHEMA):
        if "default" in node and node["type"] == "object":
            assert node["default"] == admit(node, {}), path


def test_rules_iterate_only_over_bounded_sizes() -> None:
    for path, node in nodes(SCHEMA["properties"]["spec"]):
        bound = {"string": ("maxLength", "enum"), "array": ("maxItems",), "integer": ("maximum",)}.get(
            node["type"]
        )
        assert bound is None or any(key in node for key in bound), path


def test_rules_use_core_cel_only() -> None:
    rules = [r["rule"] for _, node in nodes(SCHEMA) for r in node.get("x-kubernetes-validations", ())]
    assert len(rules) >= 15
    assert [(rule, word) for rule in rules for word in BEYOND_CORE_CEL if word in rule] == []


def test_nothing_is_filled_into_status() -> None:
    status = SCHEMA["properties"]["status"]
    assert [path for path, node in nodes(status) if "default" in node] == []
    assert [path for path, node in nodes(status) if "required" in node] == [".conditions[]"]


def test_what_the_operator_writes_is_accepted_and_read_back() -> None:
    written = Status.model_validate(
        {
            "observedGeneration": 3,
            "model": {"name": "k3-manifest-1", "viewDigest": "ab" * 32, "totalBytes": 2_800_000_000_000},
            "plan": {
                "verdict": "Fits",
                "layout": {"tensor": 8, "data": 4, "expert": True, "nodes": 4, "gpusPerNode": 8},
                "perRank": [{"name": "weights", "gibibytes": "61.5"}],
            },
            "placement": [
                {
                    "revision": "a1",
                    "replica": 0,
                    "domain": "n0",
                    "ranks": [{"rank": 0, "node": "n0", "nodeUID": "u"}],
                }
            ],
            "groups": [
                {
                    "revision": "a1",
                    "phase": "Ready",
                    "verified": True,
                    "bootTimeline": {"staged": "2026-11-30T03:10:22Z"},
                }
            ],
            "rollout": {"phase": "Stable", "weights": {"desired": 100, "acked": 100}},
            "history": [{"revision": "a1", "from": "", "result": "Succeeded"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Serving"}],
        }
    )
    obj = {**smallest(), "status": written.to_dict()}
    admitted = admit(SCHEMA, obj)
    assert violations(SCHEMA, admitted) == []
    assert admitted["status"] == written.to_dict()
    assert Status.model_validate(admitted["status"]) == written


def test_an_empty_status_is_a_status() -> None:
    status = Status.model_validate({})
    assert Status.model_validate(status.to_dict()) == status


def test_columns_read_what_status_holds() -> None:
    version = custom_resource_definition()["spec"]["versions"][0]
    columns = {column["name"]: column for column in version["additionalPrinterColumns"]}
    narrow = [name for name, column in columns.items() if column["priority"] == 0]
    assert narrow == ["Ready", "Phase", "Active", "Target", "Groups", "Plan", "Age"]
    assert [n for n in columns if n not in narrow] == ["Layout", "Nodes", "Weights", "Message"]
    known = {path for path, _ in nodes(SCHEMA)}
    plain = [
        c["jsonPath"]
        for c in columns.values()
        if c["jsonPath"].startswith(".status.") and "?" not in c["jsonPath"]
    ]
    assert [path for path in plain if path not in known] == []
    scale = version["subresources"]["scale"]
    assert {scale["specReplicasPath"], scale["statusReplicasPath"], scale["labelSelectorPath"]} <= known


class Foreign(ApiModel):
    """A model."""

    either: int | str = 1
    """A union."""


class Undescribed(ApiModel):
    """A model."""

    count: Annotated[int, Field(le=3)] = 1


class Unbounded(ApiModel):
    """A model."""

    text: str = ""
    """No limit."""


class Loose(ApiModel):
    """A model."""

    text: Annotated[str, Field(max_length=3, pattern="^a|b$")] = "a"
    """Anchored on one side of each alternative only."""


class Halves(ApiModel):
    """A model."""

    text: Annotated[str, Field(max_length=3, pattern="^a$|^b$")] = "a"
    """More than one end."""


class Clean(ApiModel):
    """An object."""

    RULES: ClassVar[tuple[Rule, ...]] = (Rule("one", "must be a", "self.one == 'a'", lambda m: m.one == "a"),)

    one: Literal["a"] = "a"
    """A single word."""
    maybe: Annotated[int, Field(ge=1, le=3)] | None = None
    """An optional
    number."""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Foreign, r"Foreign\.either: anyOf not allowed"),
        (Undescribed, r"Undescribed\.count: no description"),
        (Unbounded, r"Unbounded\.text: string without maxLength or enum"),
        (Loose, r"Loose\.text: pattern .* not anchored"),
        (Halves, r"Halves\.text: pattern .* not anchored"),
    ],
)
def test_a_model_that_is_not_structural_is_refused_with_its_path(model: type[ApiModel], message: str) -> None:
    with pytest.raises(StructuralError, match=message):
        structural_schema(model)


def test_a_clean_model_becomes_a_clean_schema() -> None:
    assert structural_schema(Clean) == {
        "description": "An object.",
        "type": "object",
        "x-kubernetes-validations": [
            {"rule": "self.one == 'a'", "message": "must be a", "fieldPath": ".one"}
        ],
        "properties": {
            "one": {"description": "A single word.", "type": "string", "default": "a", "enum": ["a"]},
            "maybe": {
                "description": "An optional number.",
                "type": "integer",
                "format": "int32",
                "minimum": 1,
                "maximum": 3,
            },
        },
    }


def test_the_full_object_is_kept_whole() -> None:
    admitted = admit(SCHEMA, full())
    assert admitted["spec"].keys() == SCHEMA["properties"]["spec"]["properties"].keys()
