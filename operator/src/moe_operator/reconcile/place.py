"""Step 4: which node holds which rank, on record before any pod exists.

A new revision beside a serving one is placed whole or not at all; more replicas of what serves are placed
one by one as room appears. A placement on record is never recomputed while its revision lives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.spec import MoESpec
from moe_operator.api.status import GroupStatus, PlacementStatus, RankPlacement
from moe_operator.placement.assign import Assignment, Need, assign
from moe_operator.planning.plan import Refusal, Shortage
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.snapshot import Cluster, Snapshot
from moe_operator.rollout.groups import Group
from moe_operator.rollout.revision import Revision

RETRY_SECONDS = 30.0  # room may appear without an event that reaches us
REFUSALS = {
    "UnknownProduct": Reason.UNKNOWN_PRODUCT,
    "NoUsableNodes": Reason.NO_USABLE_NODES,
    "InsufficientGPUs": Reason.INSUFFICIENT_GPUS,
}


def place(snapshot: Snapshot, draft: Draft) -> Draft:
    """Find nodes for every replica of the target that has none."""
    target = draft.target
    if target is None or draft.wish is None:
        return draft
    missing = unplaced(draft, target, draft.wish.replicas)
    if not missing:
        return draft.say(ConditionType.PLACED, "True", Reason.PLACED, _where(draft, target))
    if rollout_failed(draft, target):
        return draft
    if snapshot.cluster is None:
        return draft.wake(0.0)
    return _assign(draft, target, missing, snapshot.cluster)


def unplaced(draft: Draft, target: Revision, replicas: int) -> list[int]:
    """Replicas of the target without a placement on record."""
    placed = {p.replica for p in draft.status.placement if p.revision == target.hash}
    return [replica for replica in range(replicas) if replica not in placed]


def rollout_failed(draft: Draft, target: Revision) -> bool:
    """Whether this very revision was tried and given up."""
    rollout = draft.status.rollout
    return rollout.phase == "Failed" and rollout.to_revision == target.hash


def need_of(revision: Revision) -> Need:
    """What one replica of a revision asks of the cluster."""
    spec, layout = revision.spec, revision.layout
    domain = spec.placement.domain
    return Need(
        nodes=layout.nodes,
        gpus_per_node=layout.gpus_per_node,
        products=(spec.accelerators.product,),
        domain_key=domain.key or "",
        fabric_key=spec.placement.fabric_key or "",
        required=spec.placement.policy == "Required",
        tolerations=tolerations_of(spec),
        node_selector=spec.placement.node_selector,
    )


def tolerations_of(spec: MoESpec) -> tuple[dict[str, Any], ...]:
    """The taint that GPU nodes usually carry, and what the spec tolerates."""
    own = {"key": spec.accelerators.resource_name, "operator": "Exists"}
    return own, *(t.to_dict() for t in spec.placement.tolerations)


def _assign(draft: Draft, target: Revision, missing: list[int], cluster: Cluster) -> Draft:
    need, used = need_of(target), _used(cluster)
    preferred = _holding(draft, target.view)
    found: list[PlacementStatus] = []
    refusal: Refusal | None = None
    for replica in missing:
        answer = assign(need, cluster.nodes, used, preferred)
        if isinstance(answer, Refusal):
            refusal = answer
            break
        found.append(_record(target, replica, answer))
        used.update({node.name: need.gpus_per_node for node in answer.nodes})
    beside = draft.status.active_revision not in {"", target.hash}
    if refusal and beside:
        return _no_room_beside(draft, refusal, len(missing), len(missing) - len(found), need)
    if found:
        draft = _promised(draft, target, found)
    if refusal:
        said = f"{len(missing) - len(found)} of {len(missing)} replica(s) not placed: {refusal.message}"
        draft = replace(draft, no_room=refusal).wake(RETRY_SECONDS)
        return draft.say(ConditionType.PLACED, "False", REFUSALS[refusal.code], f"{said} → {refusal.fix}")
    return draft.say(ConditionType.PLACED, "True", Reason.PLACED, _where(draft, target))


def _holding(draft: Draft, view: str) -> set[str]:
    """Nodes that hold the same files, for another replica or revision or for a way back."""
    same = {r.hash: r for r in draft.records.values() if r.view == view}
    views = {v for r in same.values() for v in r.views}
    stored = {s.node for s in draft.status.stores if views & set(s.views)}
    return stored | {r.node for p in draft.status.placement if p.revision in same for r in p.ranks}


def _used(cluster: Cluster) -> Counter[str]:
    return Counter(cluster.taken) + Counter(cluster.promised)


def _no_room_beside(draft: Draft, refusal: Refusal, replicas: int, homeless: int, need: Need) -> Draft:
    one = need.nodes * need.gpus_per_node
    lacking = (homeless - 1) * one + (refusal.gpus if isinstance(refusal, Shortage) else one)
    said = (
        f"the new revision needs {replicas * one} GPUs beside the one that serves, {lacking} of them are "
        f"missing: {refusal.message} → {refusal.fix}; "
        f"revision {draft.status.active_revision} keeps serving"
    )
    draft = replace(draft, no_room=refusal).wake(RETRY_SECONDS)
    reason = Reason.INSUFFICIENT_CAPACITY_FOR_ROLLOUT
    draft = draft.say(ConditionType.CAPACITY_FOR_ROLLOUT, "False", reason, said)
    return draft.say(
        ConditionType.PLACED, "False", REFUSALS[refusal.code], f"{refusal.message} → {refusal.fix}"
    )


def _record(target: Revision, replica: int, answer: Assignment) -> PlacementStatus:
    ranks = [RankPlacement(rank=i, node=n.name, node_uid=n.uid) for i, n in enumerate(answer.nodes)]
    return PlacementStatus(
        revision=target.hash,
        replica=replica,
        domain=answer.domain,
        gpus_per_node=target.layout.gpus_per_node,
        ranks=ranks,
    )


def _promised(draft: Draft, target: Revision, found: list[PlacementStatus]) -> Draft:
    known = {(g.revision, g.replica) for g in draft.groups}
    fresh = [
        Group(
            target.hash,
            p.replica,
            target.layout.nodes,
            GroupStatus(revision=target.hash, replica=p.replica),
            (),
        )
        for p in found
        if (target.hash, p.replica) not in known
    ]
    draft = replace(draft, claims=True, groups=(*draft.groups, *fresh))
    return draft.with_status(
        placement=[*draft.status.placement, *found],
        groups=[*draft.status.groups, *(g.record for g in fresh)],
    )


def _where(draft: Draft, target: Revision) -> str:
    placements = [p for p in draft.status.placement if p.revision == target.hash]
    rows = [f"replica {p.replica} on {', '.join(r.node for r in p.ranks)}" for p in placements[:4]]
    more = f"; and {len(placements) - 4} more replicas" if len(placements) > 4 else ""
    return "; ".join(rows) + more
