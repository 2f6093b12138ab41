"""``status.staging``, the condition WeightsStaged and the events: what people read about staging.

A row is written when its phase or reason changes, or when ten seconds and a percent have gone by; an
unchanged world writes nothing. A node that was blocked stays so in the eyes of people until another try gets
further than the point where it stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.manifest import StageProgress, TerminationMessage
from moe_operator.api.moments import elapsed, moment
from moe_operator.api.quantity import human_bytes
from moe_operator.api.status import StagingPhase, StagingStatus
from moe_operator.reconcile.actions import Event
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.site_looks import Look, last_words
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.rollout.groups import Group
from moe_operator.rollout.rank_pod import OF_THE_STORE, RankPod, Trouble
from moe_operator.rollout.revision import Revision

WRITE_SECONDS = 10.0
WRITE_SHARE = 0.01
UNDER_WAY = frozenset({"Resolved", "Pulling", "Verifying", "Publishing"})  # past the checks that stop a pull
STOPPED = frozenset({"Retrying", "Blocked", "Failed"})


def staging_rows(
    snapshot: Snapshot,
    draft: Draft,
    target: Revision,
    looks: Mapping[str, Look],
    waiting: Mapping[str, str],
    mending: Collection[str] = (),
) -> list[StagingStatus]:
    """One row per node of the target. ``looks``: by node; ``waiting``: node → source it waits for.

    ``mending``: nodes that are staged again while an engine runs there, so its pod does not speak for them.
    """
    before = {row.node: row for row in draft.status.staging}
    rows: dict[str, StagingStatus] = {}
    for group in draft.groups_of(target.hash):
        for pod in group.current:
            if pod.node and pod.node not in mending:
                look, row = looks.get(pod.node), before.get(pod.node)
                rows[pod.node] = _of_pod(snapshot, pod, look, row, _whole(draft))
    for node, seen in looks.items():
        if seen.site.revision.hash == target.hash and node not in rows:
            fresh = _of_look(seen, before.get(node), _whole(draft), waiting.get(node, ""))
            rows[node] = _kept_or(before.get(node), fresh, snapshot.now)
    return list(rows.values())


def _whole(draft: Draft) -> int:
    return draft.status.manifest.total_bytes


def _of_look(seen: Look, before: StagingStatus | None, whole: int, host: str) -> StagingStatus:
    node, total = seen.site.node, (before.bytes_total if before else 0) or whole
    if seen.state == "done":
        return _ready(node, seen.last_words, before, total)
    if seen.state == "failed":
        assert seen.trouble is not None
        return _stopped(seen, before, total)
    if before and before.phase in {"Retrying", "Blocked"} and not _got_further(seen):
        return before
    if host:
        said = f"waits for its turn at {host}"
        return StagingStatus(node=node, phase="Waiting", bytes_total=total, message=said)
    if seen.progress is not None:
        return _moving(node, seen.progress)
    at_once = seen.trouble and (seen.trouble.permanent or seen.trouble.reason in OF_THE_STORE)
    if seen.trouble and not at_once:  # of the others its Job will fail in a moment
        phase: StagingPhase = "Retrying" if _ended(seen.trouble) else "Pending"
        return _told(StagingStatus(node=node, phase=phase, bytes_total=total), seen.trouble)
    if before and before.phase in UNDER_WAY:
        return before  # its stager did not answer this time
    return StagingStatus(node=node, bytes_total=total)


def _ready(
    node: str, words: TerminationMessage | None, before: StagingStatus | None, total: int
) -> StagingStatus:
    """``words``: of the stager that filled the node; without them the row before is believed."""
    if words is None or not words.bytes_total:
        reused, peers = (before.bytes_reused, before.bytes_from_peers) if before else (0, 0)
    else:
        total, reused, peers = words.bytes_total, words.bytes_reused, words.bytes_from_peers
    return StagingStatus(
        node=node,
        phase="Ready",
        bytes_total=total,
        bytes_done=total,
        bytes_reused=reused,
        bytes_from_peers=peers,
    )


def _stopped(seen: Look, before: StagingStatus | None, total: int) -> StagingStatus:
    assert seen.trouble is not None
    phase: StagingPhase = "Failed"
    if seen.tries_again:
        phase = "Blocked" if seen.trouble.reason in OF_THE_STORE else "Retrying"
    done = seen.last_words.bytes_done if seen.last_words else (before.bytes_done if before else 0)
    row = StagingStatus(node=seen.site.node, phase=phase, bytes_total=total, bytes_done=done)
    return _told(row, seen.trouble)


def _told(row: StagingStatus, trouble: Trouble) -> StagingStatus:
    return row.model_copy(update={"reason": trouble.reason, "message": trouble.message})


def _ended(trouble: Trouble) -> bool:
    """Whether a stager came to an end, as opposed to one that cannot begin."""
    return trouble.reason not in {
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_CONFIG_ERROR,
        Reason.POD_UNSCHEDULABLE,
    }


def _got_further(seen: Look) -> bool:
    return seen.progress is not None and seen.progress.phase in UNDER_WAY


def _of_pod(
    snapshot: Snapshot, pod: RankPod, look: Look | None, before: StagingStatus | None, whole: int
) -> StagingStatus:
    """What the engine pod's own stager says: it links what is there, or pulls what was lost since."""
    total = (before.bytes_total if before else 0) or whole
    progress = snapshot.stagers.get(pod.name)
    if pod.staged and (pod.running or pod.ended or pod.ready):
        words = look.last_words if look else None
        if words is None and before is None:
            words = _own_words(snapshot, pod)
        return _kept_or(before, _ready(pod.node, words, before, total), snapshot.now)
    if pod.trouble and pod.ended:
        phase: StagingPhase = "Blocked" if pod.trouble.reason in OF_THE_STORE else "Failed"
        return _told(StagingStatus(node=pod.node, phase=phase, bytes_total=total), pod.trouble)
    if progress is None or progress.phase == "Ready":
        return before or StagingStatus(node=pod.node, bytes_total=total)
    return _kept_or(before, _moving(pod.node, progress), snapshot.now)


def _own_words(snapshot: Snapshot, pod: RankPod) -> TerminationMessage | None:
    raw = next((raw for raw in snapshot.pods if raw["metadata"].get("uid") == pod.uid), None)
    return last_words(raw, "initContainerStatuses")


def _moving(node: str, progress: StageProgress) -> StagingStatus:
    return StagingStatus(
        node=node,
        phase=progress.phase,
        bytes_total=progress.bytes_total,
        bytes_done=progress.bytes_done,
        bytes_reused=progress.bytes_reused,
        bytes_from_peers=progress.bytes_from_peers,
        rate_bytes_per_second=int(progress.rate_bytes_per_second),
        eta_seconds=None if progress.eta_seconds is None else int(progress.eta_seconds),
        message=progress.message,
    )


def _kept_or(before: StagingStatus | None, fresh: StagingStatus, now: float) -> StagingStatus:
    """The row before, unless the fresh one is worth a write."""
    stamped = fresh.model_copy(update={"seen_at": moment(now)})
    if before is None or (before.phase, before.reason) != (fresh.phase, fresh.reason):
        return stamped
    if fresh.phase == "Ready":  # a stager's last words may be seen after the end of its Job
        return before if fresh == before.model_copy(update={"seen_at": fresh.seen_at}) else stamped
    since = elapsed(before.seen_at, now) if before.seen_at else WRITE_SECONDS
    step = WRITE_SHARE * max(1, fresh.bytes_total)
    moved = abs(fresh.bytes_done - before.bytes_done) >= step
    return stamped if moved and since >= WRITE_SECONDS else before


def begun(draft: Draft, target: Revision, rows: Sequence[StagingStatus], target_before: str) -> Draft:
    """Tell that staging begins: in the pass that first says so in the status, which is written before events.

    The Jobs themselves are no sign: a pass may end before it comes to them, and is then decided anew.
    """
    was = draft.status.condition(ConditionType.WEIGHTS_STAGED)
    under_way = was is not None and was.status == "False" and bool(draft.status.staging)
    if under_way and target_before == target.hash:
        return draft
    missing = [row for row in rows if row.phase != "Ready"]
    if not missing or any(row.phase in STOPPED for row in missing):
        return draft
    total, source = human_bytes(draft.status.manifest.total_bytes), target.spec.model.source
    said = f"revision {target.hash}: {len(missing)} node(s) get {total} from {source}"
    return draft.event(Event("Normal", Reason.STAGING, said))


def conclude(draft: Draft, groups: Sequence[Group], rows: Sequence[StagingStatus], needed: int) -> Draft:
    """Conclude WeightsStaged for the target; a node that nobody tries again stalls the deployment."""
    kind, before = ConditionType.WEIGHTS_STAGED, {r.node: r for r in draft.status.staging}
    ready = sum(row.phase == "Ready" for row in rows)
    draft = _failures(draft.with_status(staging=list(rows)), before, rows)
    if needed and ready == needed:
        was = draft.status.condition(kind)
        if was is not None and was.status == "False" and any(r.phase != "Ready" for r in before.values()):
            draft = draft.event(Event("Normal", Reason.STAGED, _arrived(rows)))
        return draft.say(kind, "True", Reason.STAGED, f"{needed} node(s) hold every byte, verified")
    stopped = next((row for phase in ("Failed", "Blocked") for row in rows if row.phase == phase), None)
    if stopped and any(g.pods for g in groups):
        return draft.say(kind, "False", _reason(stopped), f"{stopped.node}: {stopped.message}")
    if stopped:
        said = f"{stopped.node}: {stopped.message}"
        active = draft.status.active_revision
        said += f"; revision {active} keeps serving" if active else ""
        return draft.say(kind, "False", _reason(stopped), said).stalled(_reason(stopped), said)
    held_up = next((row for row in rows if row.reason), None)
    if held_up:
        return draft.say(kind, "False", _reason(held_up), f"{held_up.node}: {held_up.message}")
    done, every = (sum(getattr(row, name) for row in rows) for name in ("bytes_done", "bytes_total"))
    said = f"{ready} of {needed} node(s) ready; {human_bytes(done)} of {human_bytes(every)}"
    idle = [row for row in rows if row.phase != "Ready"]
    if idle and all(row.phase == "Waiting" for row in idle):
        return draft.say(kind, "False", Reason.WAITING_FOR_SOURCE, f"{said}; {idle[0].message}")
    return draft.say(kind, "False", Reason.STAGING, said)


def _failures(draft: Draft, before: Mapping[str, StagingStatus], rows: Sequence[StagingStatus]) -> Draft:
    for row in rows:
        was = before.get(row.node)
        if row.phase in STOPPED and (was is None or (was.phase, was.reason) != (row.phase, row.reason)):
            draft = draft.event(Event("Warning", _reason(row), f"{row.node}: {row.message}"))
    return draft


def _arrived(rows: Sequence[StagingStatus]) -> str:
    total = sum(row.bytes_total for row in rows)
    reused, peers = sum(row.bytes_reused for row in rows), sum(row.bytes_from_peers for row in rows)
    return (
        f"{len(rows)} node(s) hold every byte of {human_bytes(total)}, verified: "
        f"{human_bytes(reused)} were there, {human_bytes(peers)} came from other nodes"
    )


def _reason(row: StagingStatus) -> Reason:
    return next((r for r in Reason if r == row.reason), Reason.STAGING_FAILED)
