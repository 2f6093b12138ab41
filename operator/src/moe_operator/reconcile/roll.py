"""Step 6: which revision carries the traffic, and whether the next one may take over.

The revision that serves is *active*, the one that the newest accepted spec asks for is the *target*. The
target starts beside the active one, has to answer a completion in every group, then gets all new requests;
it becomes active only when every gateway pod has acknowledged that and finds it healthy. Until then any
setback of the target leaves the active revision exactly where it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.moments import moment
from moe_operator.api.status import GroupStatus, HistoryEntry, RolloutPhase, RolloutStatus
from moe_operator.reconcile.actions import Event, Obj
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.gateway_acks import serving_acks
from moe_operator.reconcile.place import rollout_failed
from moe_operator.reconcile.plan import remember_retry, retry_asked
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.rollout.groups import Group
from moe_operator.rollout.retire import healthy_everywhere
from moe_operator.rollout.revision import Revision

Result = Literal["Succeeded", "Failed", "Superseded"]
FULL = 100
HISTORY_KEPT = 10
ACK_SECONDS = 0.5
SETTLED = frozenset({"Stable", "Failed"})


def roll(snapshot: Snapshot, draft: Draft) -> Draft:
    """Conclude weights, the rollout's phase, and a change of the active revision."""
    target = draft.target or draft.records.get(draft.status.target_revision)
    if target is None:
        return _carry(draft, draft.status.active_revision)
    if _has_failed(draft, target) and retry_asked(snapshot, draft):
        return _retry(snapshot, draft, target)
    if rollout_failed(draft, target):
        draft = _carry(draft, draft.status.active_revision)
        return draft.stalled(Reason.REVISION_FAILED, draft.status.rollout.message)
    active = draft.status.active_revision
    if active == target.hash:
        return _stable(snapshot, draft, target)
    if not active:
        return _first(snapshot, draft, target)
    return _beside(snapshot, draft, target)


def _carry(draft: Draft, revision: str) -> Draft:
    return replace(draft, weights={revision: FULL} if revision else {})


def _stable(snapshot: Snapshot, draft: Draft, target: Revision) -> Draft:
    draft = _carry(_superseding(snapshot, draft, target), target.hash)
    rollout = draft.status.rollout
    leaving = [g for g in draft.groups if g.revision != target.hash and g.pods]
    if leaving:
        phase = "Draining" if any(not p.terminating for g in leaving for p in g.pods) else "Retiring"
        return draft.with_status(rollout=rollout.model_copy(update={"phase": phase}))
    if rollout.phase in SETTLED:
        return draft
    return _finished(snapshot, draft, target)


def _finished(snapshot: Snapshot, draft: Draft, target: Revision) -> Draft:
    rollout = draft.status.rollout
    if rollout.to_revision == target.hash and rollout.from_revision:
        draft = _remember(snapshot, draft, "Succeeded", Reason.REVISION_READY)
    stable = RolloutStatus(to_revision=target.hash, last_command=rollout.last_command)
    return draft.with_status(rollout=stable)


def _superseding(snapshot: Snapshot, draft: Draft, target: Revision) -> Draft:
    """A change towards another revision than today's target ends here, whatever it had reached."""
    rollout = draft.status.rollout
    if rollout.to_revision == target.hash:
        return draft
    if rollout.from_revision and rollout.phase not in SETTLED:
        took_over = rollout.to_revision == draft.status.active_revision
        result: Result = "Succeeded" if took_over else "Superseded"
        reason = Reason.REVISION_READY if took_over else Reason.SUPERSEDED
        draft = _remember(snapshot, draft, result, reason)
    return draft.with_status(
        rollout=RolloutStatus(to_revision=target.hash, last_command=rollout.last_command)
    )


def _first(snapshot: Snapshot, draft: Draft, target: Revision) -> Draft:
    groups = draft.groups_of(target.hash)
    if draft.wish and draft.wish.replicas == 0:
        return _finished(snapshot, draft, target)
    if groups and all(g.record.phase == "Failed" for g in groups):
        return _give_up(snapshot, draft, target, groups[0])
    if not any(g.serving for g in groups):
        return _phase(snapshot, draft, target, _before_ready(draft, groups))
    draft = draft.with_status(active_revision=target.hash)
    draft = draft.event(Event("Normal", Reason.REVISION_READY, f"revision {target.hash} serves"))
    return _finished(snapshot, _carry(draft, target.hash), target)


def _beside(snapshot: Snapshot, draft: Draft, target: Revision) -> Draft:
    draft = _superseding(snapshot, draft, target)
    groups = draft.groups_of(target.hash)
    if draft.wish and draft.wish.replicas == 0:
        return _taken_over(draft.with_status(rollout=_rollout(snapshot, draft, target, "Shifting")), target)
    kept = _carry(draft, draft.status.active_revision)
    failed = _failed(groups)
    if failed:
        return _give_up(snapshot, kept, target, failed)
    replicas = draft.wish.replicas if draft.wish else len(groups)
    if draft.no_room or len(groups) < replicas:
        return _phase(snapshot, kept, target, "Preflight")
    if not all(g.ready for g in groups):
        return _phase(snapshot, kept, target, _before_ready(draft, groups))
    if not all(g.serving for g in groups):
        return _phase(snapshot, kept, target, "Verifying")
    return _shift(snapshot, draft, target, groups)


def _before_ready(draft: Draft, groups: tuple[Group, ...]) -> RolloutPhase:
    staged = draft.condition(ConditionType.WEIGHTS_STAGED).status
    return "Staging" if staged == "False" and not any(g.pods for g in groups) else "Starting"


def _shift(snapshot: Snapshot, draft: Draft, target: Revision, groups: tuple[Group, ...]) -> Draft:
    active, intent = draft.status.active_revision, draft.intent
    draft = replace(draft, weights={target.hash: FULL, active: 0})
    draft = _phase(snapshot, draft, target, "Shifting").wake(ACK_SECONDS)
    written = intent and any(c.revision == target.hash and c.weight == FULL for c in intent.colours)
    endpoints = [g.endpoint for g in groups if g.endpoint]
    if not (intent and written and healthy_everywhere(endpoints, intent, serving_acks(snapshot))):
        return draft
    return _taken_over(draft, target)


def _taken_over(draft: Draft, target: Revision) -> Draft:
    said = f"revision {target.hash} takes all requests; {draft.status.active_revision} finishes what it has"
    draft = draft.event(Event("Normal", Reason.SWITCHING, said))
    rollout = draft.status.rollout.model_copy(update={"phase": "Draining", "reason": Reason.DRAINING_OLD})
    draft = draft.with_status(active_revision=target.hash, rollout=rollout)
    return _carry(draft, target.hash)


def _phase(snapshot: Snapshot, draft: Draft, target: Revision, phase: RolloutPhase) -> Draft:
    active, goes_on = draft.status.active_revision, _goes_on(draft, target)
    draft = draft.with_status(rollout=_rollout(snapshot, draft, target, phase))
    if goes_on or not active:
        return draft
    said = f"revision {target.hash} starts beside {active}: {target.layout}"
    return draft.event(Event("Normal", Reason.REVISION_STARTING, said))


def _goes_on(draft: Draft, target: Revision) -> bool:
    rollout = draft.status.rollout
    return rollout.to_revision == target.hash and rollout.phase not in SETTLED


def _rollout(snapshot: Snapshot, draft: Draft, target: Revision, phase: RolloutPhase) -> RolloutStatus:
    """The change to ``target`` in this phase: the one that is under way, or a new one."""
    rollout = draft.status.rollout
    if _goes_on(draft, target):
        return rollout.model_copy(update={"phase": phase})
    return RolloutStatus(
        phase=phase,
        strategy="Surge",
        from_revision=draft.status.active_revision,
        to_revision=target.hash,
        started_at=moment(snapshot.now),
        last_command=rollout.last_command,
    )


def _failed(groups: tuple[Group, ...]) -> Group | None:
    return next((g for g in groups if g.record.phase == "Failed"), None)


def _give_up(snapshot: Snapshot, draft: Draft, target: Revision, failed: Group) -> Draft:
    active = draft.status.active_revision
    said = f"revision {target.hash}: replica {failed.replica}: {failed.record.message}"
    said += f"; revision {active} keeps serving" if active else ""
    for group in draft.groups_of(target.hash):
        draft = draft.with_group(group.record.model_copy(update={"phase": "Failed", "verified": False}))
    kept = [p for p in draft.status.placement if p.revision != target.hash]
    draft = draft.with_status(placement=kept)  # its GPUs are free for others
    draft = _phase(snapshot, draft, target, "Failed")
    rollout = draft.status.rollout.model_copy(
        update={"phase": "Failed", "reason": Reason.REVISION_FAILED, "message": said}
    )
    draft = draft.with_status(rollout=rollout)
    draft = _remember(snapshot, draft, "Failed", Reason.REVISION_FAILED)
    draft = draft.event(Event("Warning", Reason.REVISION_FAILED, said))
    return draft.stalled(Reason.REVISION_FAILED, said)


def _has_failed(draft: Draft, target: Revision) -> bool:
    return rollout_failed(draft, target) or any(
        g.record.phase == "Failed" for g in draft.groups_of(target.hash)
    )


def _retry(snapshot: Snapshot, draft: Draft, target: Revision) -> Draft:
    """Somebody asked for another try: the failed groups get a new life and a new budget."""
    draft = remember_retry(snapshot, draft)
    for group in draft.groups_of(target.hash):
        if group.record.phase == "Failed":
            life = group.record.incarnation + 1
            draft = draft.with_group(
                GroupStatus(revision=group.revision, replica=group.replica, incarnation=life)
            )
    if rollout_failed(draft, target):
        rollout = draft.status.rollout.model_copy(update={"phase": "Stable", "message": "", "reason": ""})
        draft = draft.with_status(rollout=rollout)
    return _carry(draft, draft.status.active_revision).wake(0.0)


def _remember(snapshot: Snapshot, draft: Draft, result: Result, reason: Reason) -> Draft:
    rollout = draft.status.rollout
    entry = HistoryEntry(
        revision=rollout.to_revision,
        from_=rollout.from_revision,
        strategy=rollout.strategy,
        result=result,
        reason=reason,
        actor=_actor(snapshot),
        started_at=rollout.started_at,
        finished_at=moment(snapshot.now),
    )
    return draft.with_status(history=[entry, *draft.status.history][:HISTORY_KEPT])


def _actor(snapshot: Snapshot) -> str:
    """The field manager that last wrote the spec."""
    managed = snapshot.object["metadata"].get("managedFields") or ()
    of_spec = [m for m in managed if "f:spec" in (m.get("fieldsV1") or {})]
    newest: Obj = max(of_spec, key=lambda m: str(m.get("time", "")), default={})
    return str(newest.get("manager", ""))
