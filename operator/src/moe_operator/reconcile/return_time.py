"""When engines will serve again, as clients are told in Retry-After while none does.

A rough number is enough, and it must not change at every look: each change is a configuration that every
gateway pod has to take up. So the estimate is rounded up to one of a few steps. It is the time of the group
that is nearest to serving: what its stagers say is left, then loading, then warming up.
"""

from __future__ import annotations

from moe_operator.api.moments import elapsed
from moe_operator.api.status import StagingStatus
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.rollout.groups import Group, backoff_left

STEPS_SECONDS = (15, 30, 60, 120, 300, 600)  # clients of OpenAI's library wait two minutes at most
UNKNOWN_STAGING_SECONDS = 300
LOAD_BYTES_PER_SECOND = 2 << 30  # of one node, from its own disk into GPU memory
WARM_UP_SECONDS = 60  # compiling, CUDA graphs, the first completion


def retry_after_seconds(snapshot: Snapshot, draft: Draft) -> int:
    """What a client that finds no engine is told; the least while engines serve."""
    if any(group.serving for group in draft.groups):
        return STEPS_SECONDS[0]
    coming = [g for g in draft.groups if g.revision in draft.wanted and g.record.phase != "Failed"]
    seconds = min((_left(snapshot, draft, group) for group in coming), default=float(STEPS_SECONDS[-1]))
    return next((step for step in STEPS_SECONDS if seconds <= step), STEPS_SECONDS[-1])


def _left(snapshot: Snapshot, draft: Draft, group: Group) -> float:
    timeline = group.record.boot_timeline
    loading = draft.status.manifest.total_bytes / group.size / LOAD_BYTES_PER_SECOND + WARM_UP_SECONDS
    if timeline.weights_loaded:
        return float(STEPS_SECONDS[0])
    if timeline.started:
        return loading - elapsed(timeline.started, snapshot.now)
    revision = draft.records.get(group.revision)
    spec = draft.wish or (revision.spec if revision else None)
    pause = backoff_left(group.record, spec.restart, snapshot.now) if spec else 0.0
    return pause + _staging(draft, group) + loading


def _staging(draft: Draft, group: Group) -> float:
    if group.record.boot_timeline.staged:
        return 0.0
    nodes = {pod.node for pod in group.current}
    return max((_eta(row) for row in draft.status.staging if row.node in nodes), default=0.0)


def _eta(row: StagingStatus) -> float:
    if row.phase == "Ready":
        return 0.0
    return float(UNKNOWN_STAGING_SECONDS if row.eta_seconds is None else row.eta_seconds)
