"""What is known about each site: from its Job, the Job's pods, and what the stager answered.

A site is *done* when its Job is Complete: the stager ended well, so every byte was verified and the view
published. Jobs stay as long as their site is wanted; they are the memory of what was proved. That memory is
*refuted* when a rank that came later found the node's store gone or without room for what it had lost, or
when a scrub that came later found files in it that are not what was proved.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from moe_operator.api.conditions import Reason
from moe_operator.api.manifest import StageProgress, TerminationMessage
from moe_operator.api.moments import epoch
from moe_operator.api.names import LABEL_RANK, LABEL_REPLICA, LABEL_REVISION, stager_name
from moe_operator.reconcile.actions import Obj
from moe_operator.reconcile.sites import Site
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.rollout.rank_pod import OF_THE_STORE, Trouble, pod_trouble

State = Literal["absent", "leaving", "active", "done", "refuted", "failed"]


@dataclass(frozen=True, slots=True)
class Look:
    """One site now. ``ended_at``: when its Job failed, 0 = it did not."""

    site: Site
    job_name: str
    state: State
    job: Obj | None = None
    trouble: Trouble | None = None
    progress: StageProgress | None = None
    last_words: TerminationMessage | None = None
    ended_at: float = 0.0

    @property
    def tries_again(self) -> bool:
        """Whether a failed Job is followed by another without anybody asking."""
        return not (self.trouble and self.trouble.permanent)


def look(snapshot: Snapshot, site: Site, damaged_at: float | None = None) -> Look:
    """Look at one site; ``damaged_at``: when a scrub found its node's store damaged."""
    name = stager_name(snapshot.name, site.view, site.store)
    job = snapshot.child("Job", name)
    if job is None:
        return Look(site, name, "absent")
    if job["metadata"].get("deletionTimestamp"):
        return Look(site, name, "leaving", job)
    pods = pods_of_job(snapshot.pods, job)
    newest = pods[-1] if pods else None
    words = last_words(newest)
    if (complete := job_ended(job, "Complete")) is not None:
        outdated = damaged_at is not None and complete <= damaged_at
        state: State = "refuted" if outdated or _refuted(snapshot, site, complete) else "done"
        return Look(site, name, state, job, last_words=words)
    trouble = _trouble(snapshot, pods)
    failed = job_ended(job, "Failed")
    if failed is not None:
        said = trouble or Trouble(Reason.STAGING_FAILED, "the staging Job failed and left no message")
        return Look(site, name, "failed", job, said, last_words=words, ended_at=failed or snapshot.now)
    progress = snapshot.stagers.get(newest["metadata"]["name"]) if newest else None
    return Look(site, name, "active", job, None if progress else trouble, progress)


def job_ended(job: Obj, how: str) -> float | None:
    """When a Job turned Complete or Failed (0 = not said); None = it did not."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") == how and condition.get("status") == "True":
            when = condition.get("lastTransitionTime")
            return epoch(when) if when else 0.0
    return None


def is_over(job: Obj) -> bool:
    """Whether a Job is Complete or Failed."""
    return job_ended(job, "Complete") is not None or job_ended(job, "Failed") is not None


def pods_of_job(pods: Iterable[Obj], job: Obj) -> list[Obj]:
    """The pods of a Job, oldest first."""
    uid = job["metadata"].get("uid")
    owned = [p for p in pods if any(o.get("uid") == uid for o in p["metadata"].get("ownerReferences") or ())]
    return sorted(owned, key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]))


def _refuted(snapshot: Snapshot, site: Site, complete: float) -> bool:
    """Whether a rank of this site, made after the Job was complete, could not work with its node's store."""
    place = {LABEL_REVISION: site.revision.hash, LABEL_REPLICA: str(site.replica), LABEL_RANK: str(site.rank)}
    return any(
        place.items() <= pod["metadata"]["labels"].items()
        and pod["spec"].get("nodeName") == site.node
        and epoch(pod["metadata"]["creationTimestamp"]) >= complete
        and (trouble := pod_trouble(pod)) is not None
        and trouble.reason in OF_THE_STORE
        for pod in snapshot.pods
    )


def _trouble(snapshot: Snapshot, pods: list[Obj]) -> Trouble | None:
    said = [pod_trouble(p, snapshot.complaints.get(p["metadata"]["uid"], "")) for p in pods]
    return next((t for t in reversed(said) if t), None)


def last_words(pod: Obj | None, which: str = "containerStatuses") -> TerminationMessage | None:
    """What the container of a pod that works on a store left in its termination log.

    ``which``: the member of the pod's status that has this container.
    """
    statuses: list[Any] = (pod or {}).get("status", {}).get(which) or []
    words = [((s.get("state") or {}).get("terminated") or {}).get("message") or "" for s in statuses]
    for text in words:
        try:
            return TerminationMessage.model_validate(json.loads(text))
        except (ValueError, ValidationError):
            continue
    return None
