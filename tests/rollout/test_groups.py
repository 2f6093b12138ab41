from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe_operator.api.conditions import Reason
from moe_operator.api.moments import moment
from moe_operator.api.spec import Restart
from moe_operator.api.status import BootTimeline, GroupStatus
from moe_operator.rollout.groups import (
    MAX_BACKOFF_SECONDS,
    Group,
    after_loss,
    backoff_left,
    loss,
    observed_record,
    verified_record,
)
from moe_operator.rollout.rank_pod import RankPod, Trouble

NOW = 1_796_000_000.0
LOST = Trouble(Reason.RANK_LOST, "rank 1 ended")
POLICY = Restart()


def rank(number: int, **facts: Any) -> RankPod:
    base: dict[str, Any] = {
        "name": f"m-r-0-{number}",
        "uid": f"u{number}",
        "resource_version": "1",
        "revision": "r",
        "replica": 0,
        "rank": number,
        "incarnation": 0,
        "node": f"n{number}",
        "ip": f"10.0.0.{number}",
        "staged": True,
        "running": True,
        "ready": True,
        "terminating": False,
        "grace_seconds": 0,
        "ended": False,
        "over": False,
        "rejected": False,
        "trouble": None,
    }
    return RankPod(**{**base, **facts})


def group(*pods: RankPod, size: int = 2, **record: Any) -> Group:
    status = GroupStatus(revision="r", replica=0, **record)
    return Group("r", 0, size, status, pods)


def ended(number: int, **facts: Any) -> RankPod:
    return rank(number, ended=True, ready=False, running=False, **facts)


# What a group is


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (group(rank(0), rank(1)), {"complete": True, "ready": True, "serving": False, "missing": ()}),
        (group(rank(0), rank(1), verified=True), {"serving": True}),
        (group(rank(0)), {"complete": False, "ready": False, "missing": (1,)}),
        (group(rank(0), rank(1, ready=False)), {"complete": True, "ready": False}),
        (group(rank(0), rank(1, terminating=True, ready=False)), {"complete": False}),
        (group(rank(0), ended(1)), {"complete": False}),
        (group(rank(0), rank(1), incarnation=1), {"complete": False, "missing": (), "leader": None}),
        (group(), {"complete": False, "missing": (0, 1), "endpoint": None}),
        (group(rank(0, ip=""), rank(1)), {"endpoint": None}),
    ],
)
def test_what_a_group_is_follows_from_its_pods(seen: Group, expected: dict[str, Any]) -> None:
    assert {name: getattr(seen, name) for name in expected} == expected


def test_a_pod_of_an_earlier_life_keeps_a_whole_group_from_being_ready() -> None:
    seen = group(rank(0, incarnation=1), rank(1, incarnation=1), rank(1), incarnation=1)
    assert not seen.ready and [p.rank for p in seen.stale] == [1]


# When a life is over


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (group(rank(0), ended(1), phase="Ready"), "rank 1 (m-r-0-1) ended"),
        (group(rank(0), rank(1, terminating=True), phase="Ready"), "rank 1 (m-r-0-1) is being deleted"),
        (group(rank(0), phase="Ready"), "rank 1 has disappeared"),
        (group(rank(1), phase="Starting"), "rank 0 has disappeared"),
        (group(phase="Staging"), "rank 0, 1 has disappeared"),
        (
            group(ended(0), ended(1, trouble=Trouble(Reason.ENGINE_FAILED, "boom")), phase="Ready"),
            "rank 1 (m-r-0-1) ended: boom",  # the rank that says why, not the first one
        ),
    ],
)
def test_a_life_is_over_when_any_rank_is(seen: Group, words: str) -> None:
    cause = loss(seen)
    assert cause is not None and cause.message == words


@pytest.mark.parametrize(
    "seen",
    [
        group(rank(0), rank(1), phase="Ready"),
        group(rank(0, ready=False), rank(1, ready=False), phase="Starting"),
        group(rank(0), phase="Pending"),  # still being created
        group(phase="Pending"),
        group(rank(0), ended(1), incarnation=1, phase="Restarting"),  # the old life's pods
        group(ended(0), phase="Failed"),
        group(rank(0), ended(1), phase="Restarting"),
    ],
)
def test_a_life_goes_on_otherwise(seen: Group) -> None:
    assert loss(seen) is None


def test_a_permanent_cause_stays_permanent() -> None:
    trouble = Trouble(Reason.CHECKSUM_MISMATCH, "bytes", permanent=True)
    cause = loss(group(ended(0, trouble=trouble), rank(1)))
    assert cause is not None and cause.permanent and cause.reason is Reason.CHECKSUM_MISMATCH


# The next life


def test_the_first_loss_begins_a_window() -> None:
    record = GroupStatus(revision="r", replica=0, phase="Ready", verified=True)
    assert after_loss(record, LOST, POLICY, NOW) == GroupStatus(
        revision="r",
        replica=0,
        phase="Restarting",
        restarts=1,
        incarnation=1,
        restarted_at=moment(NOW),
        window_started_at=moment(NOW),
        message="rank 1 ended",
    )


@pytest.mark.parametrize(
    ("age", "restarts", "expected"),
    [(10, 1, (2, 10)), (3599, 4, (5, 3599)), (3600, 5, (1, 0)), (999_999, 5, (1, 0))],
)
def test_losses_are_counted_inside_the_window(age: int, restarts: int, expected: tuple[int, int]) -> None:
    record = GroupStatus(incarnation=7, restarts=restarts, window_started_at=moment(NOW - age))
    fresh = after_loss(record, LOST, POLICY, NOW)
    assert (fresh.restarts, fresh.window_started_at) == (expected[0], moment(NOW - expected[1]))
    assert (fresh.phase, fresh.incarnation, fresh.verified) == ("Restarting", 8, False)


def test_beyond_the_budget_a_group_fails_with_what_ended_it() -> None:
    record = GroupStatus(incarnation=5, restarts=5, window_started_at=moment(NOW - 60), ready_ranks=1)
    failed = after_loss(record, LOST, POLICY, NOW)
    assert (failed.phase, failed.incarnation, failed.ready_ranks) == ("Failed", 5, 0)
    assert failed.message == "rank 1 ended; 5 restarts are used up"


def test_what_no_retry_can_mend_fails_at_once() -> None:
    cause = Trouble(Reason.CHECKSUM_MISMATCH, "bytes", permanent=True)
    failed = after_loss(GroupStatus(), cause, POLICY, NOW)
    assert (failed.phase, failed.message) == ("Failed", "bytes")


@pytest.mark.parametrize(
    ("restarts", "seconds"), [(1, 10), (2, 20), (3, 40), (5, 160), (6, MAX_BACKOFF_SECONDS), (60, 300)]
)
def test_the_wait_doubles_up_to_five_minutes(restarts: int, seconds: int) -> None:
    record = GroupStatus(phase="Restarting", restarts=restarts, restarted_at=moment(NOW))
    assert backoff_left(record, POLICY, NOW) == seconds
    assert backoff_left(record, POLICY, NOW + seconds) == 0
    assert backoff_left(record, POLICY, NOW + 2 * seconds) == 0


@pytest.mark.parametrize("phase", ["Pending", "Ready", "Failed", "Draining"])
def test_only_a_group_between_two_lives_waits(phase: Any) -> None:
    assert backoff_left(GroupStatus(phase=phase, restarts=3, restarted_at=moment(NOW)), POLICY, NOW) == 0


@given(st.integers(0, 1000), st.integers(1, 2000), st.integers(0, 3600))
def test_a_wait_is_never_negative_nor_longer_than_the_cap(backoff: int, restarts: int, age: int) -> None:
    record = GroupStatus(phase="Restarting", restarts=restarts, restarted_at=moment(NOW - age))
    left = backoff_left(record, Restart(backoff_seconds=backoff), NOW)
    assert 0 <= left <= MAX_BACKOFF_SECONDS


# The record


@pytest.mark.parametrize(
    ("seen", "phase", "ranks"),
    [
        (group(), "Pending", 0),
        (group(rank(0)), "Pending", 1),
        (group(rank(0, staged=False, ready=False), rank(1, ready=False)), "Staging", 0),
        (group(rank(0, ready=False), rank(1, ready=False)), "Starting", 0),
        (group(rank(0), rank(1, ready=False)), "Starting", 1),
        (group(rank(0), rank(1)), "Ready", 2),
        (group(rank(0), phase="Ready"), "Ready", 1),  # a rank is lost: it never turns back to Pending
        (group(phase="Starting"), "Starting", 0),
        (group(rank(0), rank(1), phase="Restarting"), "Ready", 2),
        (group(rank(0), phase="Restarting"), "Restarting", 0),
        (group(phase="Failed"), "Failed", 0),
        (group(rank(0), rank(1), phase="Failed", ready_ranks=9), "Failed", 9),
    ],
)
def test_the_record_follows_the_pods(seen: Group, phase: str, ranks: int) -> None:
    record = observed_record(seen, NOW)
    assert (record.phase, record.ready_ranks) == (phase, ranks)


def test_each_step_of_a_boot_is_timed_once() -> None:
    starting = observed_record(group(rank(0, ready=False), rank(1, ready=False)), NOW)
    assert starting.boot_timeline == BootTimeline(staged=moment(NOW), started=moment(NOW))
    seen = Group("r", 0, 2, starting, (rank(0), rank(1)))
    ready = observed_record(seen, NOW + 60)
    assert ready.boot_timeline == BootTimeline(
        staged=moment(NOW), started=moment(NOW), weights_loaded=moment(NOW + 60)
    )
    served = verified_record(ready, NOW + 70)
    assert served.verified and served.boot_timeline.first_token == moment(NOW + 70)


def test_the_lowest_stuck_rank_speaks_for_its_group() -> None:
    stuck = [
        rank(i, ready=False, running=False, trouble=Trouble(Reason.IMAGE_PULL_FAILED, f"no image {i}"))
        for i in (0, 1)
    ]
    assert observed_record(group(*stuck), NOW).message == "rank 0 on n0: no image 0 (and 1 more ranks)"


@given(st.lists(st.sampled_from(["ready", "starting", "ended", "terminating", "absent"]), max_size=4))
def test_looking_twice_changes_nothing(states: list[str]) -> None:
    facts: dict[str, dict[str, Any]] = {
        "ready": {},
        "starting": {"ready": False},
        "ended": {"ended": True, "ready": False},
        "terminating": {"terminating": True, "ready": False},
    }
    pods = tuple(rank(i, **facts[s]) for i, s in enumerate(states) if s in facts)
    first = observed_record(group(*pods, size=4), NOW)
    assert observed_record(Group("r", 0, 4, first, pods), NOW + 5) == first
