"""Pods, records and placements → every serving group there is, with its record brought up to date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moe_operator.api.conditions import Reason
from moe_operator.api.moments import elapsed
from moe_operator.api.names import COMPONENT_ENGINE, LABEL_COMPONENT, LABEL_RANK
from moe_operator.api.status import GroupStatus
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.snapshot import LeaderProbe, Snapshot
from moe_operator.rollout.groups import Group, observed_record, verified_record
from moe_operator.rollout.rank_pod import RankPod, Trouble, rank_pod
from moe_operator.rollout.revision import Revision

VERIFY_SECONDS = (
    600  # the first request compiles kernels (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS is longer still)
)


def with_groups(snapshot: Snapshot, draft: Draft) -> Draft:
    """Fill ``draft.groups`` and their records in the status."""
    groups = tuple(_fresh(snapshot, g) for g in _groups(snapshot, draft))
    records = [g.record for g in groups]
    return replace(draft, groups=groups).with_status(groups=records)


def wrong_answer(snapshot: Snapshot, group: Group, served_name: str) -> Trouble | None:
    """Why a group that is ready may not serve: another model, or no completion for too long."""
    probe = _probe(snapshot, group)
    if group.record.verified or not group.ready or probe is None:
        return None
    if probe.served_models is not None and served_name not in probe.served_models:
        said = f"the leader serves {', '.join(probe.served_models) or 'nothing'} instead of {served_name}"
        return Trouble(Reason.VERIFICATION_FAILED, said, permanent=True)
    since = group.record.boot_timeline.weights_loaded
    if since and elapsed(since, snapshot.now) > VERIFY_SECONDS:
        said = f"no completion within {VERIFY_SECONDS} s of being ready: {probe.error or 'empty answer'}"
        return Trouble(Reason.VERIFICATION_FAILED, said)
    return None


def _groups(snapshot: Snapshot, draft: Draft) -> list[Group]:
    pods: dict[tuple[str, int], list[RankPod]] = {}
    for pod in snapshot.pods:
        labels = pod["metadata"].get("labels") or {}
        if labels.get(LABEL_COMPONENT) == COMPONENT_ENGINE and LABEL_RANK in labels:
            rank = rank_pod(pod, snapshot.complaints.get(pod["metadata"].get("uid", ""), ""))
            pods.setdefault((rank.revision, rank.replica), []).append(rank)
    records = {(r.revision, r.replica): r for r in draft.status.groups}
    placed = {(p.revision, p.replica): len(p.ranks) for p in draft.status.placement}
    keys = sorted({*pods, *records, *placed})
    return [
        Group(
            revision=revision,
            replica=replica,
            size=_size(draft.records, revision, placed.get((revision, replica), 0)),
            record=records.get((revision, replica)) or GroupStatus(revision=revision, replica=replica),
            pods=tuple(sorted(pods.get((revision, replica), ()), key=lambda p: p.rank)),
        )
        for revision, replica in keys
    ]


def _size(records: Mapping[str, Revision], revision: str, placed: int) -> int:
    known = records.get(revision)
    return known.layout.nodes if known else placed


def _fresh(snapshot: Snapshot, group: Group) -> Group:
    group = replace(group, record=observed_record(group, snapshot.now))
    probe = _probe(snapshot, group)
    if group.ready and not group.record.verified and probe and probe.completion:
        return replace(group, record=verified_record(group.record, snapshot.now))
    return group


def _probe(snapshot: Snapshot, group: Group) -> LeaderProbe | None:
    return snapshot.leaders.get(group.leader.name) if group.leader else None
