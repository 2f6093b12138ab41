"""When a store is read again, by how many, and beside whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from moe_operator.api.moments import moment
from moe_operator.api.names import scrubber_name, store_key
from moe_operator.api.policy import CacheClass, OperatorPolicy, Scrubbing, Staging
from moe_operator.api.spec import MoESpec
from moe_operator.api.status import Status, StoreStatus
from moe_operator.reconcile.actions import Delete
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.scrub import WAIT_SECONDS, due_scrubs, scrub
from moe_operator.reconcile.snapshot import Fleet, Snapshot
from moe_operator.reconcile.store_jobs import AGAIN_SECONDS

from tests.reconcile.snapshots import NOW, deployment, snapshot

Obj = dict[str, Any]
WEEK = 7 * 24 * 3600.0


def store(node: str, *, read: float | None = None, filled: float = 30.0, **facts: Any) -> StoreStatus:
    """A node's record; ``read`` and ``filled`` in days before now."""
    return StoreStatus(
        node=node,
        node_uid=f"uid-{node}",
        cache_class="nvme",
        views=["v"],
        filled_at=days_ago(filled),
        scrubbed_at=None if read is None else days_ago(read),
        **facts,
    )


def days_ago(days: float) -> str:
    return moment(NOW - days * 24 * 3600)


def job(component: str, node: str, *, over: str = "", ended: float = 0.0, owner: str = "k3") -> Obj:
    """A Job on a node's store; ``over``: how it ended, ``ended`` seconds ago."""
    conditions = [{"type": over, "status": "True", "lastTransitionTime": moment(NOW - ended)}] if over else []
    name = scrubber_name(owner, store_key("nvme", node, f"uid-{node}"))
    return {
        "kind": "Job",
        "metadata": {
            "name": name if component == "scrubber" else f"{component}-{node}",
            "namespace": "team",
            "uid": f"job-{component}-{node}",
            "labels": {"app.kubernetes.io/component": component},
            "annotations": {"moe-operator.io/node": node},
        },
        "spec": {"template": {"spec": {"volumes": [{"hostPath": {"path": CacheClass(root="/s").root}}]}}},
        "status": {"conditions": conditions},
    }


def world(
    *jobs: Obj, others: tuple[Obj, ...] = (), hours: int = 168, elsewhere: tuple[Obj, ...] = ()
) -> Snapshot:
    """This deployment's Jobs, those of others, and the other deployments; nodes a to d exist."""
    policy = OperatorPolicy(
        cache_classes={"nvme": CacheClass(root="/s")}, staging=Staging(scrub=Scrubbing(every_hours=hours))
    )
    nodes = {node: f"uid-{node}" for node in "abcd"}
    fleet = Fleet(nodes, (*jobs, *others), elsewhere)
    return snapshot(policy=policy, children={"Job": tuple(jobs)}, fleet=fleet)


def draft(*stores: StoreStatus) -> Draft:
    return Draft(Status(stores=list(stores)), wish=MoESpec.model_validate(deployment()["spec"]))


def begun(made: Draft) -> list[str]:
    return [o["metadata"]["annotations"]["moe-operator.io/node"] for o in made.applies]


def records(made: Draft) -> dict[str, StoreStatus]:
    return {record.node: record for record in made.status.stores}


@pytest.mark.parametrize(
    ("stores", "due"),
    [
        ((store("a", read=6.9),), []),
        ((store("a", read=7.1),), ["a"]),
        ((store("a", filled=6.9),), []),  # what is staged is verified
        ((store("a", filled=7.1),), ["a"]),
        ((store("a", read=8, filled=1),), []),
        ((store("a", read=8), store("b", read=9), store("c", read=1)), ["b", "a"]),
        ((store("a", read=90, scrub_message="no disk"), store("b", read=8)), ["b", "a"]),
        ((store("a", read=8).model_copy(update={"cache_class": "gone"}),), []),
        (
            (StoreStatus(node="a", node_uid="uid-a", cache_class="nvme", views=["v"]),),
            ["a"],
        ),  # of an older operator
    ],
)
def test_the_store_that_waits_longest_is_first_and_none_before_its_time(
    stores: tuple[StoreStatus, ...], due: list[str]
) -> None:
    assert [s.node for s in due_scrubs(world(), draft(*stores))] == due


def test_nothing_is_due_when_turned_off_or_while_one_is_read_or_in_a_namespace_that_goes() -> None:
    wanted = draft(store("a", read=30), store("b", read=30))
    assert due_scrubs(world(), wanted)
    assert not due_scrubs(world(hours=0), wanted)
    assert not due_scrubs(world(job("scrubber", "a")), wanted)
    assert not due_scrubs(replace(world(), namespace_terminating=True), wanted)


@pytest.mark.parametrize("component", ["stager", "collector"])
def test_a_node_where_others_work_is_passed_over(component: str) -> None:
    wanted = draft(store("a", read=30), store("b", read=20))
    assert begun(scrub(world(others=(job(component, "a"),)), wanted)) == ["b"]
    assert begun(scrub(world(others=(job(component, "a", over="Complete"),)), wanted)) == ["a"]
    waits = scrub(world(others=(job(component, "a"), job(component, "b"))), wanted)
    assert not waits.applies and waits.wake_after == WAIT_SECONDS


def test_nobody_else_reads_a_node_of_ours_at_the_same_time() -> None:
    wanted = draft(store("a", read=30), store("b", read=30))
    theirs = job("scrubber", "b", owner="other")
    assert not scrub(world(others=(theirs,)), wanted).applies
    assert begun(scrub(world(others=(job("scrubber", "d", owner="other"),)), wanted)) == ["a"]


def test_a_pull_or_a_collector_that_begins_ends_the_scrubber_on_its_node_whoever_has_it() -> None:
    theirs = job("scrubber", "a", owner="other")
    made = scrub(
        world(others=(theirs, job("scrubber", "b", owner="other"))), draft().apply(job("stager", "a"))
    )
    [deletion] = made.deletions
    assert isinstance(deletion, Delete) and [ref.name for ref in deletion.refs] == [
        theirs["metadata"]["name"]
    ]


def test_scrubbers_of_another_operator_are_left_alone() -> None:
    theirs = job("scrubber", "a", owner="other")
    theirs["spec"]["template"]["spec"]["volumes"][0]["hostPath"]["path"] = "/elsewhere"
    assert not scrub(world(others=(theirs,)), draft().apply(job("collector", "a"))).deletions


def test_what_another_deployment_read_later_is_taken_over_instead_of_read_again() -> None:
    found = {"corrupt": ["c" * 64], "corruptBytes": 7, "corruptAt": days_ago(1)}
    status = {"stores": [{**store("a", read=1).model_dump(by_alias=True, exclude_none=True), **found}]}
    other = deployment(status=status)
    other["metadata"] |= {"name": "other"}
    made = scrub(world(elsewhere=(other,)), draft(store("a", read=8)))
    record = records(made)["a"]
    assert not made.applies and record.scrubbed_at == days_ago(1)
    assert (record.corrupt, record.corrupt_bytes, record.corrupt_at) == (["c" * 64], 7, days_ago(1))
    assert [event.reason for event in made.events] == ["CorruptionFound"]


def test_an_operator_sleeps_until_the_next_store_is_due() -> None:
    made = scrub(replace(world(), fleet=None), draft(store("a", read=1), store("b", read=6)))
    assert made.wake_after == pytest.approx(24 * 3600) and not made.applies
    assert scrub(replace(world(hours=0), fleet=None), draft(store("a", read=1))).wake_after is None


def test_one_that_could_not_stays_for_an_hour_and_says_why() -> None:
    failed = job("scrubber", "a", over="Failed", ended=60.0)
    failed["status"]["conditions"][0]["message"] = "Job was active longer than specified deadline"
    made = scrub(world(failed), draft(store("a", read=8), store("b", read=1)))
    assert not made.deletions and made.wake_after == AGAIN_SECONDS - 60.0
    assert records(made)["a"].scrub_message.endswith("Job was active longer than specified deadline")
    assert records(made)["a"].scrubbed_at == days_ago(8)
    later = job("scrubber", "a", over="Failed", ended=AGAIN_SECONDS)
    assert scrub(world(later), draft(store("a", read=8))).deletions


def test_what_a_run_came_to_is_on_record_before_its_job_goes() -> None:
    done = job("scrubber", "a", over="Complete", ended=60.0)
    made = scrub(world(done), draft(store("a", read=8, scrub_message="no disk")))
    assert records(made)["a"].scrubbed_at == moment(NOW - 60) and not records(made)["a"].scrub_message
    [deletion] = made.deletions
    assert [ref.uid for ref in deletion.refs] == ["job-scrubber-a"]
    again = scrub(world(done), draft(*made.status.stores))
    assert again.status.stores == made.status.stores and not again.events
