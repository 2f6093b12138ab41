from __future__ import annotations

from typing import Any

import pytest
from moe_operator.api.moments import moment
from moe_operator.reconcile.actions import Decision, Delete, RemoveFinalizer
from moe_operator.reconcile.decide import decide
from moe_operator.reconcile.teardown import GRACE_SECONDS, PATIENCE_SECONDS

from tests.reconcile.snapshots import NOW, snapshot

Obj = dict[str, Any]


def pod(name: str, component: str = "engine", **meta: Any) -> Obj:
    labels = {"app.kubernetes.io/component": component}
    return {"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, **meta}}


def going(name: str, grace: int) -> Obj:
    return pod(name, deletionTimestamp=moment(NOW), deletionGracePeriodSeconds=grace)


def decided(*pods: Obj, waited: float = 0.0, **meta: Any) -> Decision:
    return decide(snapshot(pods=pods, meta={"deletionTimestamp": moment(NOW - waited), **meta}))


def test_engines_are_deleted_first_and_together() -> None:
    decision = decided(pod("a"), pod("b"))
    [delete] = decision.actions
    assert isinstance(delete, Delete) and [r.uid for r in delete.refs] == ["uid-a", "uid-b"]
    assert delete.grace_seconds == GRACE_SECONDS and decision.status is None


def test_the_finalizer_goes_when_no_engine_is_left() -> None:
    assert decided(pod("g", "gateway"), pod("r", "resolver")).actions == (RemoveFinalizer(),)


@pytest.mark.parametrize(("grace", "again"), [(630, True), (GRACE_SECONDS, False), (5, False)])
def test_a_pod_that_drains_for_long_is_hurried_once(grace: int, again: bool) -> None:
    decision = decided(going("a", grace))
    assert bool(decision.actions) is again
    assert decision.wake_after is not None and 0 < decision.wake_after <= PATIENCE_SECONDS + 1


@pytest.mark.parametrize(
    ("waited", "expected"), [(PATIENCE_SECONDS - 1, ()), (PATIENCE_SECONDS + 1, (RemoveFinalizer(),))]
)
def test_patience_with_pods_that_never_end_is_limited(waited: float, expected: tuple[object, ...]) -> None:
    assert decided(going("a", 0), waited=waited).actions == expected


def test_somebody_elses_finalizer_is_waited_for_in_silence() -> None:
    assert decided(pod("a"), finalizers=["other"]) == Decision(status=None)
