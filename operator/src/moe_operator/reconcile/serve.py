"""Step 7: the pods of every group: made, kept whole, remade, or led away.

A wanted group gets its missing ranks once its placement is on record, its nodes hold its files (``stage``)
and nothing of an earlier life is left. A group that lost a rank is remade as a whole, within its restart
budget. A group that is no longer wanted leaves by way of the gateway first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from moe_operator.api.conditions import Reason
from moe_operator.api.moments import elapsed, moment
from moe_operator.api.names import COMPONENT_ENGINE, LABEL_COMPONENT, LABEL_REPLICA, LABEL_REVISION
from moe_operator.api.spec import MoESpec, Restart
from moe_operator.api.status import PlacementStatus
from moe_operator.reconcile.actions import Delete, Event, Obj, Ref, ref_of
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.drift import differs, stamped
from moe_operator.reconcile.gateway_acks import draining_acks, serving_acks
from moe_operator.reconcile.observed_groups import wrong_answer
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.resources.engine_pod import RankSeat, engine_pod
from moe_operator.resources.group_service import group_service
from moe_operator.resources.manifest_config_map import manifest_key
from moe_operator.resources.network_policy import group_policy
from moe_operator.resources.ownership import Owner
from moe_operator.rollout.groups import Group, after_loss, backoff_left, loss
from moe_operator.rollout.rank_pod import RankPod, Trouble
from moe_operator.rollout.retire import Leave, next_leave
from moe_operator.rollout.revision import Revision

LOST_GRACE_SECONDS = 1  # ranks of a lost group hang in a collective; waiting for them helps nobody
RETIRED_GRACE_SECONDS = 3  # nothing runs on it any more, and a worker whose leader went first ignores SIGTERM
LOOK_SECONDS = 1.0
OF_GROUPS = ("Service", "NetworkPolicy")


def serve(snapshot: Snapshot, draft: Draft) -> Draft:
    """Bring every group one step further."""
    for group in draft.groups:
        revision = draft.records.get(group.revision)
        if not draft.is_wanted(group):
            draft = _leave(snapshot, draft, group)
        elif revision:  # without its record a group can only be left as it is
            draft = _live(snapshot, draft, group, revision)
    return _sweep(snapshot, draft)


def served_name(snapshot: Snapshot, spec: MoESpec) -> str:
    """The id that /v1/models answers."""
    return spec.model.name or snapshot.name


def _live(snapshot: Snapshot, draft: Draft, group: Group, revision: Revision) -> Draft:
    if group.record.draining_since:  # wanted again: the next drain has all its time
        group = replace(group, record=group.record.model_copy(update={"draining_since": None}))
        draft = draft.with_group(group.record)
    cause = loss(group) or wrong_answer(snapshot, group, served_name(snapshot, revision.spec))
    if cause:
        draft, group = _lost(snapshot, draft, group, revision, cause)
    if group.record.phase == "Failed":
        return _end(
            snapshot, draft, [p for p in group.pods if not p.ended], LOST_GRACE_SECONDS, group.record.message
        )
    if group.stale:
        return _end(snapshot, draft, group.stale, LOST_GRACE_SECONDS, group.record.message)
    if group.ready and not group.record.verified:
        draft = draft.wake(LOOK_SECONDS)
    wait = backoff_left(group.record, _restart_policy(draft, revision), snapshot.now)
    if wait and group.missing:
        return draft.wake(wait)
    return _create(snapshot, draft, group, revision)


def _restart_policy(draft: Draft, revision: Revision) -> Restart:
    """restart.* is read at the next reconcile; without an accepted spec the revision's own applies."""
    return (draft.wish or revision.spec).restart


def _lost(
    snapshot: Snapshot, draft: Draft, group: Group, revision: Revision, cause: Trouble
) -> tuple[Draft, Group]:
    never_ran = not group.record.boot_timeline.started
    if never_ran and any(p.rejected for p in group.current):
        draft = _unplace(draft, group)
    record = after_loss(group.record, cause, _restart_policy(draft, revision), snapshot.now)
    failed = record.phase == "Failed"
    reason = Reason.RESTARTS_EXHAUSTED if failed and not cause.permanent else cause.reason
    said = f"revision {group.revision} replica {group.replica}: {record.message}"
    said += "" if failed else f"; recreating the whole group (restart {record.restarts})"
    draft = draft.event(Event("Warning", reason if failed else Reason.GROUP_RESTARTING, said))
    draft = draft.with_group(record).wake(LOOK_SECONDS)
    return draft, replace(group, record=record)


def _unplace(draft: Draft, group: Group) -> Draft:
    """A node refused the group before it ever ran: find other nodes."""
    kept = [p for p in draft.status.placement if not _is_of(p, group)]
    return draft.with_status(placement=kept)


def _create(snapshot: Snapshot, draft: Draft, group: Group, revision: Revision) -> Draft:
    placement = next((p for p in draft.status.placement if _is_of(p, group)), None)
    config_map = snapshot.child("ConfigMap", revision.manifest) if revision.view else None
    if placement is None or (revision.view and config_map is None) or snapshot.namespace_terminating:
        return draft
    if revision.view and (group.revision, group.replica) not in draft.staged:
        return draft
    owner = Owner(snapshot.name, snapshot.namespace, snapshot.uid)
    network = [group_service(owner, group.revision, group.replica)]
    if snapshot.policy.network_policies.enabled:
        network.append(group_policy(owner, group.revision, group.replica))
    for obj in map(stamped, network):
        if differs(snapshot.child(obj["kind"], obj["metadata"]["name"]), obj):
            draft = draft.apply(obj)
    key = manifest_key(config_map) if config_map else ""
    nodes = {r.rank: r.node for r in placement.ranks}
    seats = [
        RankSeat(group.replica, rank, nodes[rank], group.record.incarnation, revision.files_of(rank))
        for rank in group.missing
    ]
    name = served_name(snapshot, revision.spec)
    return draft.apply(*(engine_pod(owner, revision, s, snapshot.policy, name, key) for s in seats))


def _leave(snapshot: Snapshot, draft: Draft, group: Group) -> Draft:
    if not group.pods:
        return _forget(draft, group)
    record, key = group.record, (group.revision, group.replica)
    if not record.draining_since:
        record = record.model_copy(update={"draining_since": moment(snapshot.now)})
    record = record.model_copy(update={"phase": "Draining"})
    draft = draft.with_group(record).wake(LOOK_SECONDS)
    overdue = elapsed(record.draining_since or "", snapshot.now) > _drain_seconds(draft, group)
    endpoint = group.endpoint if group.ready else None
    step = next_leave(
        endpoint, draft.intent, serving_acks(snapshot), overdue, draining=draining_acks(snapshot)
    )
    draft = replace(draft, leaving={**draft.leaving, key: step})
    if step is not Leave.DELETE:
        return draft
    said = f"revision {group.revision} replica {group.replica} is not wanted any more"
    return _end(snapshot, draft, group.pods, RETIRED_GRACE_SECONDS, said)


def _drain_seconds(draft: Draft, group: Group) -> int:
    record = draft.records.get(group.revision)
    spec = draft.wish or (record.spec if record else None)
    return spec.rollout.drain_seconds if spec else 0


def _forget(draft: Draft, group: Group) -> Draft:
    draft = draft.with_status(
        placement=[p for p in draft.status.placement if not _is_of(p, group)],
        groups=[r for r in draft.status.groups if (r.revision, r.replica) != (group.revision, group.replica)],
    )
    return replace(draft, groups=tuple(g for g in draft.groups if g is not group))


def _sweep(snapshot: Snapshot, draft: Draft) -> Draft:
    """Services and policies whose group is gone: found by what is there, so that a crash leaks none."""
    live = {(g.revision, str(g.replica)) for g in draft.groups}
    there = (obj for kind in OF_GROUPS for obj in snapshot.children.get(kind, ()))
    orphans = [obj for obj in there if _is_orphan(obj, live)]
    return draft.delete(Delete(tuple(map(ref_of, orphans)), "its group is gone")) if orphans else draft


def _end(snapshot: Snapshot, draft: Draft, pods: Iterable[RankPod], grace: int, why: str) -> Draft:
    """Delete pods together; one that is already going gets less time when it has more than ``grace``.

    When all are going, those of which nothing runs any more make room at once: a kubelet may take seconds to
    clean up after them, and their successors have their names.
    """
    pods = tuple(pods)
    if to_end := [p for p in pods if not p.terminating or (p.grace_seconds > grace and not p.over)]:
        return draft.delete(Delete(_refs(snapshot, to_end), why, grace))
    over = [p for p in pods if p.over and p.grace_seconds]
    return draft.delete(Delete(_refs(snapshot, over), why, 0)) if over else draft


def _refs(snapshot: Snapshot, pods: Iterable[RankPod]) -> tuple[Ref, ...]:
    return tuple(Ref("Pod", snapshot.namespace, p.name, p.uid) for p in pods)


def _is_of(placement: PlacementStatus, group: Group) -> bool:
    return (placement.revision, placement.replica) == (group.revision, group.replica)


def _is_orphan(obj: Obj, live: set[tuple[str, str]]) -> bool:
    meta = obj["metadata"]
    labels = meta.get("labels") or {}
    of_group = labels.get(LABEL_COMPONENT) == COMPONENT_ENGINE and LABEL_REPLICA in labels
    group = (labels.get(LABEL_REVISION, ""), labels.get(LABEL_REPLICA, ""))
    return of_group and group not in live and not meta.get("deletionTimestamp")
