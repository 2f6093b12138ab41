"""Step 5: how far the nodes of the wanted revisions are with the model's files.

The stager runs as the engine pod's init container; its progress port says how far it is, its exit says that
every byte is verified. Written when a phase changes or another percent is done, not at every look.
"""

from __future__ import annotations

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.manifest import StageProgress
from moe_operator.api.quantity import human_bytes
from moe_operator.api.status import StagingStatus
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.rollout.groups import Group
from moe_operator.rollout.rank_pod import RankPod

LOOK_SECONDS = 2.0
WRITE_SHARE = 0.01


def stage(snapshot: Snapshot, draft: Draft) -> Draft:
    """Report staging per node and conclude WeightsStaged for the target."""
    target = draft.target
    if target is None or not target.view:
        reason = Reason.NOT_APPLICABLE if target else Reason.PENDING
        return draft.with_status(staging=[]).say(ConditionType.WEIGHTS_STAGED, "Unknown", reason)
    groups = draft.groups_of(target.hash)
    before = {s.node: s for s in draft.status.staging}
    total = draft.status.manifest.total_bytes
    rows = [
        _row(pod, snapshot.stagers.get(pod.name), before.get(pod.node), total)
        for group in groups
        for pod in sorted(group.current, key=lambda p: p.rank)
        if pod.node
    ]
    draft = draft.with_status(staging=rows)
    if any(row.phase not in {"Ready", "Failed"} for row in rows):
        draft = draft.wake(LOOK_SECONDS)
    return _conclude(draft, groups, rows, target.layout.nodes)


def _row(
    pod: RankPod, progress: StageProgress | None, before: StagingStatus | None, total: int
) -> StagingStatus:
    if pod.staged and (pod.running or pod.ended or pod.ready):
        reused = before.bytes_reused if before else 0
        return StagingStatus(
            node=pod.node, phase="Ready", bytes_total=total, bytes_done=total, bytes_reused=reused
        )
    if pod.trouble and pod.ended:
        return StagingStatus(
            node=pod.node,
            phase="Failed",
            bytes_total=total,
            reason=pod.trouble.reason,
            message=pod.trouble.message,
        )
    if progress is None:
        return (
            before if before and before.phase != "Ready" else StagingStatus(node=pod.node, bytes_total=total)
        )
    fresh = StagingStatus(
        node=pod.node,
        phase=progress.phase,
        bytes_total=progress.bytes_total,
        bytes_done=progress.bytes_done,
        bytes_reused=progress.bytes_reused,
        rate_bytes_per_second=int(progress.rate_bytes_per_second),
        eta_seconds=None if progress.eta_seconds is None else int(progress.eta_seconds),
        message=progress.message,
    )
    return fresh if before is None or _worth_writing(before, fresh) else before


def _worth_writing(before: StagingStatus, fresh: StagingStatus) -> bool:
    step = WRITE_SHARE * max(1, fresh.bytes_total)
    return before.phase != fresh.phase or fresh.bytes_done - before.bytes_done >= step


def _conclude(draft: Draft, groups: tuple[Group, ...], rows: list[StagingStatus], nodes: int) -> Draft:
    kind, needed = ConditionType.WEIGHTS_STAGED, nodes * len(groups)
    ready = sum(row.phase == "Ready" for row in rows)
    failed = next((row for row in rows if row.phase == "Failed"), None)
    if failed:
        reason = next((r for r in Reason if r == failed.reason), Reason.STAGING_FAILED)
        return draft.say(kind, "False", reason, f"{failed.node}: {failed.message}")
    if needed and ready == needed:
        return draft.say(kind, "True", Reason.STAGED, f"{needed} node(s) hold every byte, verified")
    done = sum(row.bytes_done for row in rows)
    every = sum(row.bytes_total for row in rows)
    said = f"{ready} of {needed} node(s) ready; {human_bytes(done)} of {human_bytes(every)}"
    return draft.say(kind, "False", Reason.STAGING, said)
