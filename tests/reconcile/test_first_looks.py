"""What the operator says and does about an object that it has never seen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from moe_operator.api.conditions import ConditionType
from moe_operator.api.crd import custom_resource_definition
from moe_operator.api.structural import default, violations
from moe_operator.hardware.nodes import GpuNode
from moe_operator.reconcile.actions import AddFinalizer, Apply, Decision
from moe_operator.reconcile.decide import decide
from moe_operator.reconcile.snapshot import Cluster
from moe_operator.reconcile.wants import wants

from tests.reconcile.snapshots import snapshot

Obj = dict[str, Any]
SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
NODES = tuple(GpuNode(f"n{i}", f"u{i}", "NVIDIA-H20", 8, 8) for i in range(2))


def kinds(decision: Decision) -> list[str]:
    return [a.object["kind"] for a in decision.actions if isinstance(a, Apply)]


def conditions(decision: Decision) -> dict[str, str]:
    assert decision.status is not None
    return {c["type"]: c["status"] for c in decision.status["conditions"]}


def test_nothing_is_made_before_the_finalizer_is_there() -> None:
    fresh, marked = decide(snapshot(meta={"finalizers": ["other"]})), decide(snapshot())
    assert fresh.actions == (AddFinalizer(), *marked.actions)
    assert marked.actions and fresh.status == marked.status


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"model": {"source": "hf://org/model@main"}},
        {"replicas": -1},
        {"schedule": [{"cron": "0 0 * * *", "replicas": 1}]},
        {"parallelism": {"tensor": 3}},
    ],
)
def test_the_first_status_has_every_condition_and_fits_the_schema(spec: Obj) -> None:
    seen = snapshot(spec)
    decision = decide(seen)
    always = {kind for kind in ConditionType if not kind.only_when_true}
    assert always <= conditions(decision).keys()
    assert conditions(decision)["Ready"] == "False"
    assert decision.status is not None and decision.status["observedGeneration"] == 1
    assert json.loads(json.dumps(decision.status)) == decision.status
    written = {**snapshot().object, "status": decision.status}
    assert violations(SCHEMA, default(SCHEMA, written)) == []


def test_nothing_is_asked_about_an_object_on_its_way_out() -> None:
    assert not wants(snapshot(meta={"deletionTimestamp": "2026-11-30T00:00:00Z"})).cluster


def test_the_cluster_is_looked_at_only_to_place_something() -> None:
    assert wants(snapshot()).cluster
    assert not wants(snapshot({"model": {"source": "hf://org/model@main"}})).cluster
    assert not wants(snapshot({"parallelism": {"tensor": 3}})).cluster
    assert not wants(snapshot({"replicas": 0})).cluster


def test_a_model_that_has_to_be_read_gets_a_resolver_and_no_engine() -> None:
    decision = decide(snapshot({"model": {"source": "hf://org/model@main"}}))
    assert kinds(decision) == ["Job"]
    assert conditions(decision)["PlanAccepted"] == "Unknown"


def test_a_refused_spec_gets_no_child_at_all() -> None:
    for spec in ({"parallelism": {"tensor": 3}}, {"replicas": -1}):
        assert decide(snapshot(spec)).actions == ()


def test_nodes_are_on_record_before_the_pods_that_need_them() -> None:
    decision = decide(snapshot(cluster=Cluster(NODES)))
    assert decision.claims and decision.status is not None
    [placement] = decision.status["placement"]
    assert [r["node"] for r in placement["ranks"]] == ["n0"] and placement["gpusPerNode"] == 8
    pods = [a.object for a in decision.actions if isinstance(a, Apply) and a.object["kind"] == "Pod"]
    assert len(pods) == 1, "the executor writes the status first"


def test_the_same_snapshot_gets_the_same_answer() -> None:
    seen = snapshot(cluster=Cluster(NODES))
    assert decide(seen) == decide(replace(seen))


def test_a_status_of_an_older_operator_is_understood() -> None:
    old = {"activeRevision": "", "conditions": [], "future": {"x": 1}}
    assert decide(snapshot(status=old)).status is not None
