"""What an API server does to objects, on small schemas of its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from moe_operator.api.structural import admit, default, field_errors, prune, violations

TEXT = {"type": "string"}
COUNT = {"type": "integer"}


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_unknown_members_go_at_every_depth_and_root_metadata_stays() -> None:
    schema = obj(spec=obj(items={"type": "array", "items": obj(a=TEXT)}))
    value = {
        "metadata": {"labels": {"x": "y"}},
        "spec": {"items": [{"a": "1", "b": "2"}], "metadata": {}, "c": 3},
        "d": 4,
    }
    assert prune(schema, value) == {"metadata": {"labels": {"x": "y"}}, "spec": {"items": [{"a": "1"}]}}


def test_members_of_maps_and_preserving_objects_stay() -> None:
    open_object = {**obj(known=obj(a=TEXT)), "x-kubernetes-preserve-unknown-fields": True}
    schema = obj(labels={"type": "object", "additionalProperties": TEXT}, pod=open_object)
    value = {"labels": {"any": "thing"}, "pod": {"free": {"x": 1}, "known": {"a": "1", "b": "2"}}}
    assert prune(schema, value) == {
        "labels": {"any": "thing"},
        "pod": {"free": {"x": 1}, "known": {"a": "1"}},
    }


def test_defaults_fill_absence_and_null_but_no_other_value() -> None:
    schema = obj(a={**COUNT, "default": 1}, b={**obj(c={**COUNT, "default": 2}), "default": {}})
    assert default(schema, {}) == {"a": 1, "b": {"c": 2}}
    assert default(schema, {"a": None, "b": {"c": None}}) == {"a": 1, "b": {"c": 2}}
    assert default(schema, {"a": 0, "b": {"c": 0}}) == {"a": 0, "b": {"c": 0}}


def test_children_of_an_absent_parent_get_no_default() -> None:
    assert default(obj(b=obj(c={**COUNT, "default": 2})), {}) == {}


def test_null_without_a_default_is_absence_unless_nullable() -> None:
    schema = obj(a=TEXT, b={**TEXT, "nullable": True}, c={"type": "object", "additionalProperties": TEXT})
    admitted = admit(schema, {"a": None, "b": None, "c": {"x": None, "y": "1"}})
    assert admitted == {"b": None, "c": {"y": "1"}}
    assert violations(schema, admitted) == []


def test_arguments_are_never_changed() -> None:
    schema = obj(a={**obj(b={**COUNT, "default": 2}), "default": {"b": 1}})
    value: dict[str, Any] = {"a": {"z": 1}, "y": None}
    before = copy.deepcopy((schema, value))
    admitted = admit(schema, value)
    admitted["a"]["b"] = 99
    assert (schema, value) == before


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (TEXT, 1, "must be of type string, not integer"),
        (TEXT, None, "must be of type string, not null"),
        (COUNT, True, "must be of type integer, not boolean"),
        (COUNT, 1.5, "must be of type integer, not number"),
        ({"type": "boolean"}, 0, "must be of type boolean, not integer"),
        ({**TEXT, "enum": ["a", "b"]}, "c", 'must be one of a, b, not "c"'),
        ({**TEXT, "maxLength": 2}, "日本語", "must have at most 2 characters, not 3"),
        ({**TEXT, "pattern": "^[a-z]+$"}, "abc\n", 'must match ^[a-z]+$, which "abc\\n" does not'),
        ({**COUNT, "minimum": 1}, 0, "must be at least 1, not 0"),
        ({**COUNT, "maximum": 9}, 10, "must be at most 9, not 10"),
        ({"type": "array", "items": TEXT, "maxItems": 1}, ["a", "b"], "must have at most 1 items, not 2"),
        ({"type": "object", "maxProperties": 0}, {"a": 1}, "must have at most 0 members, not 1"),
    ],
)
def test_a_bad_value_is_said_to_be_bad(schema: dict[str, Any], value: Any, message: str) -> None:
    assert violations(obj(it=schema), {"it": value}) == [f"it: {message}"]


def test_a_missing_member_is_named_itself() -> None:
    schema = {**obj(spec={**obj(a=TEXT), "required": ["a"]}), "required": ["spec"]}
    assert violations(schema, {}) == ["spec: is required"]
    assert violations(schema, {"spec": {}}) == ["spec.a: is required"]


@pytest.mark.parametrize(
    ("keywords", "items", "duplicates"),
    [
        ({"x-kubernetes-list-type": "set"}, ["a", "b", "a"], ["it[2]"]),
        (
            {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"]},
            [{"name": "a", "port": 1}, {"name": "a", "port": 2}, {"name": "a", "port": 1, "x": 3}],
            ["it[2]"],
        ),
        ({"x-kubernetes-list-type": "atomic"}, ["a", "a"], []),
    ],
)
def test_duplicates_of_sets_and_maps(
    keywords: dict[str, Any], items: list[Any], duplicates: list[str]
) -> None:
    schema = obj(it={"type": "array", **keywords})
    assert [path for path, _ in field_errors(schema, {"it": items})] == duplicates


def test_rules_run_only_on_objects_that_are_otherwise_right() -> None:
    schema = {
        **obj(a=COUNT, b=COUNT),
        "x-kubernetes-validations": [{"rule": "self.a < self.b", "message": "a < b", "fieldPath": ".a"}],
    }
    assert violations(schema, {"a": 1, "b": 2}) == []
    assert violations(schema, {"a": 2, "b": 1}) == ["a: a < b"]
    assert violations(schema, {"a": "2", "b": 1}) == ["a: must be of type integer, not string"]


def test_a_rule_that_cannot_be_evaluated_does_not_hold() -> None:
    schema = {**obj(a=COUNT), "x-kubernetes-validations": [{"rule": "self.a > 0"}]}
    (error,) = violations(schema, {})
    assert "rule 'self.a > 0' failed" in error


def test_transition_rules_wait_for_an_old_value() -> None:
    fixed = {**TEXT, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is immutable"}]}
    schema = obj(a=fixed)
    assert violations(schema, {"a": "1"}) == []
    assert violations(schema, {"a": "1"}, {"a": "1"}) == []
    assert violations(schema, {"a": "2"}, {"a": "1"}) == ["a: is immutable"]
    assert violations(schema, {"a": "2"}, {}) == []


def test_items_of_map_lists_meet_their_old_selves_whatever_the_order() -> None:
    fixed = {**TEXT, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is immutable"}]}
    schema = obj(
        it={
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": obj(name=TEXT, image=fixed),
        }
    )
    old = {"it": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}
    new = {"it": [{"name": "b", "image": "2"}, {"name": "a", "image": "9"}, {"name": "c", "image": "3"}]}
    assert violations(schema, new, old) == ["it[1].image: is immutable"]
