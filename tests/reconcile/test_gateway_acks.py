"""What the gateways say about their keys, and when it is worth asking again."""

from __future__ import annotations

from typing import Any

import pytest
from moe_operator.api.intent import Ack
from moe_operator.api.moments import moment
from moe_operator.api.names import ANNOTATION_REFRESHED, COMPONENT_GATEWAY, common_labels
from moe_operator.reconcile.gateway_acks import SILENT, keys_in_force, keys_look_seconds

from tests.reconcile.snapshots import NOW, snapshot


def going_by(digest: str, keys: int | None = 3) -> Ack:
    return Ack(generation=1, keys=keys, keys_digest=digest)


@pytest.mark.parametrize(
    ("acks", "digest"),
    [
        ([], ""),
        ([going_by("a")], "a"),
        ([going_by("a"), going_by("a")], "a"),
        ([going_by("a"), going_by("b")], ""),
        ([going_by("a"), going_by("")], ""),
        ([going_by("a"), SILENT], ""),
    ],
)
def test_keys_are_in_force_when_every_gateway_goes_by_the_same(acks: list[Ack], digest: str) -> None:
    assert keys_in_force(acks) == digest


def look(refreshed: str | None, keys: int | None = 3) -> float | None:
    notes = {} if refreshed is None else {"annotations": {ANNOTATION_REFRESHED: refreshed}}
    meta: dict[str, Any] = {"name": "g", "uid": "u", "labels": common_labels("k3", COMPONENT_GATEWAY)}
    pods = ({"metadata": {**meta, **notes}}, {"metadata": {**meta, "name": "other"}})
    return keys_look_seconds(snapshot(pods=pods), [going_by("a", keys)])


@pytest.mark.parametrize(
    ("passed", "seconds"), [(0, 1.0), (5, 1.0), (50, 5.0), (119, 11.9), (120, None), (10_000, None)]
)
def test_after_a_refresh_gateways_are_asked_again_ever_more_rarely_until_a_kubelet_must_have_been_there(
    passed: int, seconds: float | None
) -> None:
    assert look(moment(NOW - passed)) == seconds


def test_without_a_refresh_nobody_is_asked_but_those_who_have_no_key_at_all() -> None:
    assert look(None) is None
    assert look("yesterday") is None  # somebody's own words
    assert look(None, keys=0) == 10.0
