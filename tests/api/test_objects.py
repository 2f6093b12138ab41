"""One verdict from two judges: the Pydantic models and the generated schema with its CEL rules."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moe_operator.api.crd import deployment_schema
from moe_operator.api.spec import MoEDeployment, SpecError
from moe_operator.api.structural import admit, field_errors

from tests.api.objects import Case, full, load_cases, smallest

SCHEMA = deployment_schema()
CASES = load_cases()


def paths_by_pydantic(obj: dict[str, Any]) -> list[str]:
    try:
        MoEDeployment.parse(obj)
    except SpecError as error:
        return [path for path, _ in error.errors]
    return []


def paths_by_schema(obj: dict[str, Any]) -> list[str]:
    obj = {name: part for name, part in obj.items() if name != "status"}  # the server drops a client's
    return [path for path, _ in field_errors(SCHEMA, admit(SCHEMA, obj))]


def blames(paths: list[str], field: str) -> bool:
    return any(path == field or path.startswith((f"{field}[", f"{field}.")) for path in paths)


def test_the_table_is_large_and_names_each_case_once() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert sum(case.accepted for case in CASES) >= 30
    assert sum(not case.accepted for case in CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_judges_agree_with_the_table(case: Case) -> None:
    before = copy.deepcopy(case.object)
    pydantic, schema = paths_by_pydantic(case.object), paths_by_schema(case.object)
    assert case.object == before
    if case.accepted:
        assert (pydantic, schema) == ([], [])
    else:
        assert blames(pydantic, case.field), pydantic
        assert blames(schema, case.field), schema


@pytest.mark.parametrize("case", [c for c in CASES if c.accepted], ids=str)
def test_both_judges_fill_in_the_same_defaults(case: Case) -> None:
    assert admit(SCHEMA, case.object)["spec"] == MoEDeployment.parse(case.object).spec.to_dict()


def test_a_spec_survives_the_round_trip() -> None:
    parsed = MoEDeployment.parse(full())
    again = MoEDeployment.parse({**full(), "spec": parsed.spec.to_dict()})
    assert again == parsed
    assert parsed.spec.to_dict() == admit(SCHEMA, full())["spec"]


def test_the_full_object_sets_every_member() -> None:
    exclusive = {"spec.gateway.external"}  # does not go with tls and auth
    declared = set(_declared(SCHEMA["properties"]["spec"], "spec"))
    missing = declared - set(_given(full()["spec"], "spec"))
    assert {path for path in missing if not path.startswith(tuple(exclusive))} == set()


def test_every_truncation_of_an_object_gets_one_verdict() -> None:
    lines = yaml.safe_dump(full(), sort_keys=False).splitlines(keepends=True)
    verdicts = set()
    for count in range(4, len(lines)):
        obj = yaml.safe_load("".join(lines[:count]))
        if not isinstance(obj.get("metadata"), dict):
            continue
        accepted = paths_by_pydantic(obj) == []
        assert accepted == (paths_by_schema(obj) == []), lines[count - 1]
        verdicts.add(accepted)
    assert verdicts == {True, False}


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 2),
    st.sampled_from([10**6, 2**31, 2**63, -(2**40), 0.5]),
    st.sampled_from(
        ["", "x", "1", "0.5", "100", "1Gi", "a/b", "Node", "none", "é", "x" * 600, "a\n", "../.."]
    ),
    st.sampled_from(
        [[], {}, [None], [{}], ["x"], {"name": "a"}, {"x": None}, ["a", "a"], [{"name": "a"}] * 2]
    ),
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items:
        yield value, key
        yield from _places(item)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), ODD, st.booleans())
def test_any_value_anywhere_gets_one_verdict(place: int, value: Any, remove: bool) -> None:
    obj = full()
    places = [(parent, key) for parent, key in _places(obj["spec"])]
    parent, key = places[place % len(places)]
    if remove:
        del parent[key]
    else:
        parent[key] = value
    pydantic, schema = paths_by_pydantic(obj), paths_by_schema(obj)
    assert (pydantic == []) == (schema == []), (pydantic, schema)


def test_an_error_says_what_and_where() -> None:
    obj = smallest()
    obj["spec"]["engine"]["type"] = "vllm"
    with pytest.raises(SpecError, match=r"spec\.engine\.type: .*'vLLM' or 'SGLang'"):
        MoEDeployment.parse(obj)


def test_every_error_is_reported_not_only_the_first() -> None:
    obj = smallest()
    obj["spec"]["engine"]["type"] = "vllm"
    obj["spec"]["replicas"] = -1
    assert sorted(paths_by_pydantic(obj)) == ["spec.engine.type", "spec.replicas"]
    assert sorted(paths_by_schema(obj)) == ["spec.engine.type", "spec.replicas"]


def _declared(schema: dict[str, Any], path: str) -> Iterator[str]:
    for name, member in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _declared(member, f"{path}.{name}")
        yield from _declared(member.get("items", {}), f"{path}.{name}[]")


def _given(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}.{key}"
            yield from _given(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _given(item, f"{path}[]")
