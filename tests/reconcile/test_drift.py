from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from moe_operator.api.names import ANNOTATION_APPLIED
from moe_operator.reconcile.drift import differs, stamped

Obj = dict[str, Any]
DESIRED: Obj = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "s", "labels": {"a": "b"}},
    "spec": {"ports": [{"port": 80}], "selector": {"x": "y"}, "externalIPs": []},
}


def stored() -> Obj:
    """What the API server made of it."""
    made = deepcopy(stamped(DESIRED))
    made["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    made["spec"]["clusterIP"] = "10.96.0.1"
    made["spec"]["ports"][0]["protocol"] = "TCP"
    del made["spec"]["externalIPs"]
    return made


def changed(path: str, value: Any) -> Obj:
    obj = stored()
    *parents, last = path.split("/")
    place = obj
    for parent in parents:
        place = place[int(parent)] if isinstance(place, list) else place[parent]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return obj


def test_what_is_not_there_has_to_be_applied() -> None:
    assert differs(None, stamped(DESIRED))


def test_defaults_and_empty_values_are_no_drift() -> None:
    assert not differs(stored(), stamped(DESIRED))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/selector/x", "z"),
        ("spec/selector", {}),
        ("spec/selector", None),
        ("spec/ports", []),
        ("spec/ports", [{"port": 80}, {"port": 81}]),
        ("spec/ports/0/port", 81),
        ("metadata/labels/a", None),
        ("metadata/annotations", None),
        ("spec/externalIPs", ["1.2.3.4"]),
    ],
)
def test_a_hand_that_changed_what_is_ours_is_noticed(path: str, value: Any) -> None:
    assert differs(changed(path, value), stamped(DESIRED))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/type", "ClusterIP"),
        ("spec/selector/more", "x"),
        ("metadata/labels/theirs", "x"),
        ("metadata/annotations/injected", "x"),
        ("status", {"loadBalancer": {}}),
    ],
)
def test_what_others_added_is_theirs(path: str, value: Any) -> None:
    assert not differs(changed(path, value), stamped(DESIRED))


def test_a_field_that_we_stop_applying_is_noticed() -> None:
    smaller = deepcopy(DESIRED)
    del smaller["spec"]["selector"]
    assert differs(stored(), stamped(smaller))


def test_the_stamp_depends_on_content_and_not_on_order() -> None:
    turned = dict(reversed(DESIRED.items()))
    stamps = [stamped(o)["metadata"]["annotations"][ANNOTATION_APPLIED] for o in (DESIRED, turned)]
    assert stamps[0] == stamps[1]
    other = {**DESIRED, "spec": {}}
    assert stamped(other)["metadata"]["annotations"][ANNOTATION_APPLIED] != stamps[0]
