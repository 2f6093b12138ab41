"""Server-side apply as a property: whatever managers apply, in whatever order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from moe_operator.sandbox.field_ownership import (
    Applied,
    Manager,
    Owned,
    apply,
    dated,
    fields_v1,
    managed_fields,
    owned_fields,
)
from moe_operator.sandbox.merge_shapes import builtin_shape

SHAPE = builtin_shape("", "pods")
MANAGERS = [Manager("a", "Apply"), Manager("b", "Apply")]

names = st.sampled_from(["x", "y", "z"])
variables = st.lists(
    st.builds(lambda n, v: {"name": n, "value": v}, names, names), unique_by=lambda e: e["name"]
)
containers = st.lists(
    st.builds(
        lambda name, image, env, args: {"name": name, "image": image, "env": env, "args": args},
        names, names, variables, st.lists(names, max_size=2),
    ),
    unique_by=lambda c: c["name"],
)  # fmt: skip
configs = st.builds(
    lambda labels, finalizers, containers: {
        "metadata": {"labels": labels, "finalizers": finalizers},
        "spec": {"containers": containers},
    },
    st.dictionaries(names, names, max_size=3),
    st.lists(names, unique=True, max_size=2),
    containers,
)
steps = st.lists(st.tuples(st.sampled_from(MANAGERS), configs), min_size=1, max_size=6)


def run(history: list[tuple[Manager, Any]]) -> tuple[dict[str, Any], dict[Manager, Owned]]:
    live: dict[str, Any] = {}
    held: dict[Manager, Owned] = {}
    for manager, config in history:
        result = apply(SHAPE, live, held, config, manager, force=True)
        assert isinstance(result, Applied)
        live, held = result.obj, dict(dated(result.fields, held, "now"))
    return live, held


@given(steps)
@settings(max_examples=40, deadline=None)
def test_the_last_to_apply_gets_what_he_applied_and_applying_again_changes_nothing(
    history: list[tuple[Manager, Any]],
) -> None:
    manager, config = history[-1]
    live, held = run(history)

    again = apply(SHAPE, live, held, config, manager, force=False)

    assert isinstance(again, Applied)  # nobody else owns a value of his with another content
    assert again.obj is live
    assert again.fields == {who: owned.fields for who, owned in held.items()}
    assert again.fields.get(manager, frozenset()) == owned_fields(SHAPE, config)


@given(steps)
@settings(max_examples=40, deadline=None)
def test_everything_has_an_owner_and_everything_owned_exists(history: list[tuple[Manager, Any]]) -> None:
    live, held = run(history)

    owned = frozenset().union(*(entry.fields for entry in held.values()))

    existing = owned_fields(SHAPE, live)
    assert {path for path in owned - existing if _read(live, path) is None} == set()
    assert {path for path in existing - owned if _read(live, path) != {}} == set()


def _read(obj: Any, path: tuple[str, ...]) -> Any:
    """The value of a field that is not inside a list; an item of a list stands for itself."""
    value = obj
    for element in path:
        if not element.startswith("f:"):
            return element
        value = value.get(element[2:]) if isinstance(value, dict) else None
    return value


@given(configs)
@settings(max_examples=50, deadline=None)
def test_two_managers_that_agree_need_no_force(config: Any) -> None:
    live, held = run([(MANAGERS[0], config)])

    shared = apply(SHAPE, live, held, config, MANAGERS[1], force=False)

    assert isinstance(shared, Applied)
    assert shared.obj is live


def test_fields_are_spelled_as_the_wire_spells_them() -> None:
    config = {
        "metadata": {"name": "p", "finalizers": ["x/y"]},
        "spec": {
            "containers": [{"name": "c", "ports": [{"containerPort": 80}]}],
            "tolerations": [{"key": "k"}],
        },
    }

    assert fields_v1(owned_fields(SHAPE, config)) == {
        "f:metadata": {"f:finalizers": {'v:"x/y"': {}}},
        "f:spec": {
            "f:containers": {
                'k:{"name":"c"}': {
                    ".": {},
                    "f:name": {},
                    "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                }
            },
            "f:tolerations": {},
        },
    }
    entry = managed_fields({MANAGERS[0]: Owned(owned_fields(SHAPE, {"spec": {"a": 1}}), "now")}, "v1")
    assert entry == [
        {
            "manager": "a",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": "now",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:a": {}}},
        }
    ]
