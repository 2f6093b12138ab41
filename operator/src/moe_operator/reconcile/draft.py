"""What the chain has concluded so far: a step reads the snapshot and a draft and returns the next draft."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.intent import Intent
from moe_operator.api.spec import MoESpec
from moe_operator.api.status import GroupStatus, Status
from moe_operator.planning.plan import Refusal
from moe_operator.reconcile.actions import Delete, Event, Mark, Obj
from moe_operator.rollout.groups import Group
from moe_operator.rollout.retire import Leave
from moe_operator.rollout.revision import Revision

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition as a step sees it."""

    status: Truth
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A decision in the making. Every member is replaced, never changed in place."""

    status: Status
    wish: MoESpec | None = None  # the accepted and planned spec, presets filled in; None = not acted on
    records: Mapping[str, Revision] = field(default_factory=dict)  # revisions on record, oldest first
    target: Revision | None = None  # what the newest accepted spec asks for
    groups: tuple[Group, ...] = ()  # every group that has pods, a record or a placement
    intent: Intent | None = None  # what the gateways were told last
    weights: Mapping[str, int] = field(default_factory=dict)  # revision → share of traffic
    leaving: Mapping[tuple[str, int], Leave] = field(default_factory=dict)  # (revision, replica) → next step
    staged: frozenset[tuple[str, int]] = frozenset()  # (revision, replica) whose nodes hold every byte
    no_room: Refusal | None = None  # why replicas of the target could not be placed
    conditions: Mapping[ConditionType, Verdict] = field(default_factory=dict)
    applies: tuple[Obj, ...] = ()
    marks: tuple[Mark, ...] = ()
    deletions: tuple[Delete, ...] = ()
    events: tuple[Event, ...] = ()
    wake_after: float | None = None
    claims: bool = False

    def say(self, kind: ConditionType, status: Truth, reason: Reason, message: str = "") -> Draft:
        """With one condition concluded."""
        return replace(self, conditions={**self.conditions, kind: Verdict(status, reason, message)})

    def condition(self, kind: ConditionType) -> Verdict:
        """What was concluded about one condition; Unknown when nothing was."""
        return self.conditions.get(kind, Verdict("Unknown", Reason.PENDING))

    def stalled(self, reason: Reason, message: str) -> Draft:
        """Nothing will change until somebody acts."""
        return self.say(ConditionType.STALLED, "True", reason, message)

    def apply(self, *objects: Obj) -> Draft:
        """With children to be applied."""
        return replace(self, applies=(*self.applies, *objects))

    def mark(self, *marks: Mark) -> Draft:
        """With marks on objects that exist."""
        return replace(self, marks=(*self.marks, *marks))

    def delete(self, deletion: Delete) -> Draft:
        """With objects to be deleted."""
        return replace(self, deletions=(*self.deletions, deletion))

    def event(self, event: Event) -> Draft:
        """With one more event."""
        return replace(self, events=(*self.events, event))

    def wake(self, seconds: float) -> Draft:
        """Look again after at most ``seconds``."""
        return replace(self, wake_after=seconds if self.wake_after is None else min(self.wake_after, seconds))

    def with_status(self, **members: object) -> Draft:
        """With members of the status replaced."""
        return replace(self, status=self.status.model_copy(update=members))

    def with_group(self, record: GroupStatus) -> Draft:
        """With the record of one group replaced, in status and in ``groups``."""
        groups = tuple(replace(g, record=record) if _same(g.record, record) else g for g in self.groups)
        records = [record if _same(r, record) else r for r in self.status.groups]
        return replace(self, groups=groups, status=self.status.model_copy(update={"groups": records}))

    def is_wanted(self, group: Group) -> bool:
        """Whether a group is to live: of a revision that serves or shall serve, within the replicas."""
        within = self.wish is None or group.replica < self.wish.replicas
        return within and group.revision in self.wanted

    def groups_of(self, revision: str) -> tuple[Group, ...]:
        """The groups of one revision, by replica."""
        return tuple(g for g in self.groups if g.revision == revision)

    @property
    def wanted(self) -> Iterable[str]:
        """Revisions whose groups are to live: the one that serves and the one that shall serve."""
        target = self.target.hash if self.target else self.status.target_revision
        return dict.fromkeys(h for h in (self.status.active_revision, target) if h)


def _same(one: GroupStatus, other: GroupStatus) -> bool:
    return (one.revision, one.replica) == (other.revision, other.replica)
