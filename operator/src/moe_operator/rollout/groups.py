"""One serving group: from its pods and its record to what it is and what it needs.

A group lives and dies as a whole. Losing any rank, for whatever reason and with whatever exit code, is
losing the group: the remaining ranks hang in a collective or exit on their own (vllm#32136). The next
life gets the next *incarnation* number, written to status before a single pod is deleted, so a crash
anywhere in between resumes instead of starting over. Pods of an older incarnation are always in the way.

A rank that is missing while the group is still being created is simply not created yet; missing later, it
was lost. Restarts back off exponentially and are counted inside a window; beyond the budget, or after a
failure that no retry can mend, the group is Failed until somebody changes something.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moe_operator.api.conditions import Reason
from moe_operator.api.intent import Endpoint
from moe_operator.api.moments import elapsed, moment
from moe_operator.api.names import PORT_ENGINE_HTTP
from moe_operator.api.spec import Restart
from moe_operator.api.status import GroupStatus
from moe_operator.rollout.rank_pod import RankPod, Trouble

MAX_BACKOFF_SECONDS = 300
CREATED_PHASES = frozenset({"Staging", "Starting", "Ready", "Draining"})  # all ranks were seen in this life


@dataclass(frozen=True, slots=True)
class Group:
    """Pods of one (revision, replica), split by life. ``size`` = ranks it must have."""

    revision: str
    replica: int
    size: int
    record: GroupStatus
    pods: tuple[RankPod, ...]

    @property
    def current(self) -> tuple[RankPod, ...]:
        """Pods of the present life."""
        return tuple(p for p in self.pods if p.incarnation == self.record.incarnation)

    @property
    def stale(self) -> tuple[RankPod, ...]:
        """Pods of earlier lives: nothing may be created until they are gone."""
        return tuple(p for p in self.pods if p.incarnation != self.record.incarnation)

    @property
    def leader(self) -> RankPod | None:
        """Rank 0 of the present life."""
        return next((p for p in self.current if p.rank == 0), None)

    @property
    def complete(self) -> bool:
        """Whether every rank of the present life exists and none is on its way out."""
        return len(self.current) == self.size and not any(p.terminating or p.ended for p in self.current)

    @property
    def ready(self) -> bool:
        """Whether every rank is ready: the leader's readiness means that all ranks joined."""
        return self.complete and not self.stale and all(p.ready for p in self.current)

    @property
    def serving(self) -> bool:
        """Ready, and it has answered a completion in this life: only then may clients reach it."""
        return self.ready and self.record.verified

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the leader listens; None while it has no address."""
        leader = self.leader
        return (
            Endpoint(address=leader.ip, port=PORT_ENGINE_HTTP, pod=leader.name)
            if leader and leader.ip
            else None
        )

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have no pod in any life."""
        present = {p.rank for p in self.pods}
        return tuple(rank for rank in range(self.size) if rank not in present)


def loss(group: Group) -> Trouble | None:
    """Why this life of the group is over; None while it is not."""
    if group.record.phase in {"Restarting", "Failed"}:
        return None
    gone = [p for p in group.current if p.ended or p.terminating]
    if gone:
        first = min(gone, key=lambda p: (p.trouble is None, p.rank))
        what = f"rank {first.rank} ({first.name}) {'is being deleted' if first.terminating else 'ended'}"
        why = first.trouble
        reason = why.reason if why else Reason.RANK_LOST
        return Trouble(reason, f"{what}: {why.message}" if why else what, bool(why and why.permanent))
    if group.record.phase in CREATED_PHASES and len(group.current) < group.size:
        missing = sorted(set(range(group.size)) - {p.rank for p in group.current})
        return Trouble(Reason.RANK_LOST, f"rank {', '.join(map(str, missing))} has disappeared")
    return None


def after_loss(record: GroupStatus, cause: Trouble, policy: Restart, now: float) -> GroupStatus:
    """The record of the next life, or of the end of all lives."""
    in_window = record.window_started_at and elapsed(record.window_started_at, now) < policy.window_seconds
    restarts = record.restarts + 1 if in_window else 1
    message = cause.message
    if cause.permanent or restarts > policy.max_group_restarts:
        budget = "" if cause.permanent else f"; {policy.max_group_restarts} restarts are used up"
        return record.model_copy(
            update={"phase": "Failed", "verified": False, "ready_ranks": 0, "message": message + budget}
        )
    return GroupStatus(
        revision=record.revision,
        replica=record.replica,
        phase="Restarting",
        restarts=restarts,
        incarnation=record.incarnation + 1,
        restarted_at=moment(now),
        window_started_at=record.window_started_at if in_window else moment(now),
        message=message,
    )


def backoff_left(record: GroupStatus, policy: Restart, now: float) -> float:
    """Seconds until the next life may begin; the first restart waits ``backoffSeconds``, then it doubles."""
    if record.phase != "Restarting" or not record.restarted_at:
        return 0.0
    wait = min(MAX_BACKOFF_SECONDS, policy.backoff_seconds << min(record.restarts - 1, 16))
    return max(0.0, wait - elapsed(record.restarted_at, now))


def observed_record(group: Group, now: float) -> GroupStatus:
    """The record brought up to what the pods show; never turns Failed or Restarting back by itself."""
    record, timeline = group.record, group.record.boot_timeline
    if record.phase in {"Failed", "Restarting"} and len(group.current) < group.size:
        return record.model_copy(update={"ready_ranks": 0})
    if record.phase == "Failed":
        return record
    staged = group.complete and all(p.staged for p in group.current)
    running = group.complete and all(p.running for p in group.current)
    marks = {
        "staged": timeline.staged or (moment(now) if staged else None),
        "started": timeline.started or (moment(now) if running else None),
        "weights_loaded": timeline.weights_loaded or (moment(now) if group.ready else None),
    }
    return record.model_copy(
        update={
            "phase": _phase(group, staged),
            "ready_ranks": sum(p.ready for p in group.current),
            "message": _holding_up(group.current),
            "boot_timeline": timeline.model_copy(update=marks),
        }
    )


def verified_record(record: GroupStatus, now: float) -> GroupStatus:
    """The record once a completion came back."""
    timeline = record.boot_timeline.model_copy(update={"first_token": moment(now)})
    return record.model_copy(update={"verified": True, "boot_timeline": timeline})


def _phase(group: Group, staged: bool) -> str:
    if not group.complete:  # a rank that is missing now is lost, not still to come
        return group.record.phase if group.record.phase in CREATED_PHASES else "Pending"
    if group.ready:
        return "Ready"
    return "Starting" if staged else "Staging"


def _holding_up(pods: Iterable[RankPod]) -> str:
    stuck = [p for p in pods if p.trouble]
    if not stuck:
        return ""
    first = min(stuck, key=lambda p: p.rank)
    assert first.trouble is not None
    others = f" (and {len(stuck) - 1} more ranks)" if len(stuck) > 1 else ""
    return f"rank {first.rank} on {first.node or 'no node yet'}: {first.trouble.message}{others}"
