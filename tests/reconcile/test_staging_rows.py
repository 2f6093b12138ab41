"""Rows of status.staging, where what is known of a node comes in more than one piece."""

from __future__ import annotations

from moe_operator.api.manifest import StageExit, TerminationMessage
from moe_operator.api.names import LABEL_RANK, LABEL_REPLICA, LABEL_REVISION
from moe_operator.api.spec import MoESpec
from moe_operator.api.status import GroupStatus, StagingStatus, Status
from moe_operator.planning.plan import Layout
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.site_looks import Look
from moe_operator.reconcile.sites import Site
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.reconcile.staging_rows import staging_rows
from moe_operator.rollout.groups import Group
from moe_operator.rollout.rank_pod import rank_pod
from moe_operator.rollout.revision import Revision

from tests.reconcile.snapshots import Obj, deployment, snapshot

NODE, WHOLE = "n0", 1000
TARGET = Revision("abc", MoESpec.model_validate(deployment()["spec"]), Layout(8, 1, 1, False, 1, 8), view="v")
SITE = Site(TARGET, 0, 0, NODE, "node-uid", "v")


def words(reused: int) -> TerminationMessage:
    return TerminationMessage(
        code=StageExit.OK, reason="Ready", bytes_done=WHOLE, bytes_total=WHOLE, bytes_reused=reused
    )


def done(last_words: TerminationMessage | None) -> Look:
    return Look(SITE, "job", "done", {}, last_words=last_words)


def running_rank(stager_said: TerminationMessage | None = None) -> Obj:
    """A pod whose engine runs; its stager has linked what it found."""
    message = {"message": stager_said.model_dump_json(by_alias=True)} if stager_said else {}
    return {
        "metadata": {
            "name": "rank",
            "uid": "rank-uid",
            "labels": {LABEL_REVISION: TARGET.hash, LABEL_REPLICA: "0", LABEL_RANK: "0"},
        },
        "spec": {"nodeName": NODE},
        "status": {
            "phase": "Running",
            "initContainerStatuses": [
                {"name": "stage", "state": {"terminated": {"exitCode": 0, **message}}},
            ],
            "containerStatuses": [{"name": "engine", "state": {"running": {}}}],
        },
    }


def row(before: StagingStatus | None, look: Look | None, *pods: Obj) -> StagingStatus:
    """The row of the one node."""
    seen: Snapshot = snapshot(pods=pods)
    group = Group(TARGET.hash, 0, 1, GroupStatus(), tuple(rank_pod(pod) for pod in pods))
    draft = Draft(Status(staging=[before] if before else []), groups=(group,))
    (found,) = staging_rows(seen, draft, TARGET, {NODE: look} if look else {}, {})
    return found


def test_words_that_are_seen_after_the_end_of_their_job_are_taken_up() -> None:
    """Jobs and pods are listed beside each other: the pod may be seen as it was before it ended."""
    first = row(None, done(None))
    assert (first.phase, first.bytes_reused) == ("Ready", 0)
    second = row(first, done(words(reused=600)))
    assert (second.phase, second.bytes_total, second.bytes_reused) == ("Ready", WHOLE, 600)


def test_they_are_taken_up_when_the_engine_runs_already() -> None:
    first = row(None, done(None))
    assert row(first, done(words(600)), running_rank(words(WHOLE))).bytes_reused == 600


def test_a_node_without_a_row_or_a_job_has_the_words_of_its_rank() -> None:
    assert row(None, None, running_rank(words(WHOLE))).bytes_reused == WHOLE


def test_what_is_known_stays_when_the_rank_only_links_it() -> None:
    known = row(None, done(words(600)))
    assert row(known, None, running_rank(words(WHOLE))) == known


def test_a_row_that_says_it_all_is_not_written_again() -> None:
    known = row(None, done(words(600)))
    for look in (done(words(600)), done(None)):
        assert row(known, look) == row(known, look, running_rank()) == known
