"""One engine pod as the group logic sees it: alive, ready, or ended, and in whose words.

A rank has ended when its pod is Succeeded or Failed, when it is being deleted, or when its engine
container has terminated, whatever the exit code: the real leader exits with 0 when a worker dies
(vLLM 0.32, recordings).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from moe_operator.api.conditions import Reason
from moe_operator.api.manifest import StageExit
from moe_operator.api.names import ANNOTATION_INCARNATION, LABEL_RANK, LABEL_REPLICA, LABEL_REVISION

Obj = dict[str, Any]

# Reasons of pods that the node refused; nobody else cleans these up (topology reference §2.4).
OVER = frozenset({"Succeeded", "Failed"})  # phases that a kubelet tells once no container runs
REJECTED = frozenset(
    {
        "UnexpectedAdmissionError",
        "TopologyAffinityError",
        "NodeAffinity",
        "NodeShutdown",
        "Terminated",
        "Evicted",
        "Preempting",
    }
)
STUCK_REASONS = {
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": Reason.IMAGE_PULL_FAILED,
    "InvalidImageName": Reason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": Reason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": Reason.CONTAINER_CONFIG_ERROR,
    "CreateContainerError": Reason.CONTAINER_CONFIG_ERROR,
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not get on; ``permanent`` = retrying cannot help."""

    reason: Reason
    message: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class RankPod:
    """Facts of one engine pod."""

    name: str
    uid: str
    resource_version: str
    revision: str
    replica: int
    rank: int
    incarnation: int
    node: str
    ip: str
    staged: bool  # the init stager has finished
    running: bool  # the engine container runs
    ready: bool
    terminating: bool
    grace_seconds: int  # of a pod that is being deleted
    ended: bool
    over: bool  # its kubelet says that nothing of it runs any more
    rejected: bool  # the node refused it: a placement failure, not an engine failure
    trouble: Trouble | None


def rank_pod(pod: Obj, complaint: str = "") -> RankPod:
    """Read an engine pod; ``complaint`` as in :func:`pod_trouble`."""
    meta, status = pod["metadata"], pod.get("status") or {}
    labels = meta["labels"]
    engine = _container(status.get("containerStatuses"), "engine")
    phase = status.get("phase", "Pending")
    terminating = bool(meta.get("deletionTimestamp"))
    ended = phase in OVER or "terminated" in (engine.get("state") or {})
    return RankPod(
        name=meta["name"],
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        revision=labels[LABEL_REVISION],
        replica=int(labels[LABEL_REPLICA]),
        rank=int(labels[LABEL_RANK]),
        incarnation=int((meta.get("annotations") or {}).get(ANNOTATION_INCARNATION, "0")),
        node=(pod.get("spec") or {}).get("nodeName", ""),
        ip=status.get("podIP", ""),
        staged=all(_succeeded(c) for c in status.get("initContainerStatuses") or ()),
        running="running" in (engine.get("state") or {}),
        ready=_condition(status, "Ready").get("status") == "True" and not terminating and not ended,
        terminating=terminating,
        grace_seconds=int(meta.get("deletionGracePeriodSeconds") or 0),
        ended=ended,
        over=phase in OVER,
        rejected=ended and _is_rejection(status.get("reason", "")),
        trouble=pod_trouble(pod, complaint),
    )


def waits_silently(pod: Obj) -> bool:
    """Whether a pod has its node and nothing in it has begun: then only Events say what it waits for."""
    status = pod.get("status") or {}
    states = [
        container.get("state") or {}
        for container in (
            *(status.get("initContainerStatuses") or ()),
            *(status.get("containerStatuses") or ()),
        )
    ]
    begun = any({"running", "terminated"} & state.keys() for state in states)
    bound = bool((pod.get("spec") or {}).get("nodeName"))
    return bound and status.get("phase", "Pending") == "Pending" and not begun and pod_trouble(pod) is None


def pod_trouble(pod: Obj, complaint: str = "") -> Trouble | None:
    """The first thing that keeps any pod from running, init containers first; None when nothing does.

    ``complaint``: what its kubelet says in Events, of a volume that cannot be mounted for example.
    """
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for container in statuses:
        trouble = _container_trouble(container)
        if trouble:
            return trouble
    if status.get("phase") == "Failed":
        words = f"{status.get('reason', 'Failed')}: {status.get('message', 'no message')}"
        return Trouble(
            Reason.POD_REJECTED if _is_rejection(status.get("reason", "")) else Reason.ENGINE_FAILED, words
        )
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return Trouble(Reason.POD_UNSCHEDULABLE, scheduled.get("message", "the scheduler gave no reason"))
    return Trouble(Reason.CONTAINER_CONFIG_ERROR, complaint) if complaint else None


def _container_trouble(container: Obj) -> Trouble | None:
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated")
    if waiting.get("reason") in STUCK_REASONS:
        return Trouble(
            STUCK_REASONS[waiting["reason"]],
            f"container {container['name']}: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": "),
        )
    if not ended or (container["name"] != "engine" and ended.get("exitCode") == 0):
        return None
    return ended_trouble(container["name"], ended)


def ended_trouble(container: str, ended: Obj) -> Trouble:
    """What a terminated container left behind, in its own words; stagers speak JSON."""
    code, message = int(ended.get("exitCode", -1)), str(ended.get("message") or "").strip()
    stage = _stage_message(message)
    if stage:
        hint = f" {stage['hint']}" if stage.get("hint") else ""
        reason = STAGE_REASONS.get(code, Reason.STAGING_FAILED)
        permanent = code in {int(c) for c in StageExit if c.permanent} and reason not in OF_THE_STORE
        return Trouble(reason, f"{stage.get('reason')}: {stage.get('message')}{hint}", permanent)
    words = f": {_first_error(message)}" if message else ""
    return Trouble(
        WORDLESS.get(container, Reason.ENGINE_FAILED),
        f"container {container} ended with exit code {code} ({ended.get('reason', '')}){words}",
    )


STAGE_REASONS = {
    int(StageExit.BAD_MANIFEST): Reason.MANIFEST_INVALID,
    int(StageExit.AUTH): Reason.SOURCE_AUTH,
    int(StageExit.NOT_FOUND): Reason.SOURCE_NOT_FOUND,
    int(StageExit.LAYOUT_INCOMPATIBLE): Reason.SOURCE_SCHEME_NOT_SUPPORTED,
    int(StageExit.INSUFFICIENT_DISK): Reason.INSUFFICIENT_DISK,
    int(StageExit.STORE_UNUSABLE): Reason.STORE_UNUSABLE,
    int(StageExit.CHECKSUM_MISMATCH): Reason.CHECKSUM_MISMATCH,
    int(StageExit.SOURCE_CHANGED): Reason.SOURCE_CHANGED,
    int(StageExit.NETWORK): Reason.SOURCE_UNREACHABLE,
    int(StageExit.THROTTLED): Reason.SOURCE_UNREACHABLE,
}
# Of containers that were killed before they could say why.
WORDLESS = {"stage": Reason.STAGING_FAILED, "resolve": Reason.RESOLVE_FAILED}
# An admin mends the node, and it goes on by itself.
OF_THE_STORE = frozenset({Reason.INSUFFICIENT_DISK, Reason.STORE_UNUSABLE})
EXCEPTION = re.compile(r"\b[A-Za-z_.]*(Error|Exception|Interrupt): .*")
ERROR_MARKS = ("error", "exception", "fatal", "failed")


def _first_error(message: str) -> str:
    """The first line that names an exception, or else an error: tails of engines show only the fallout."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = (found.group() for line in lines if (found := EXCEPTION.search(line)))
    marked = (line for line in lines if any(mark in line.lower() for mark in ERROR_MARKS))
    return next(named, next(marked, lines[-1] if lines else ""))[:512]


def _stage_message(message: str) -> Obj | None:
    if not message.startswith("{"):
        return None
    try:
        parsed = json.loads(message)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) and {"code", "reason"} <= parsed.keys() else None


def _is_rejection(reason: str) -> bool:
    return reason in REJECTED or reason.startswith("OutOf")


def _succeeded(container: Obj) -> bool:
    return ((container.get("state") or {}).get("terminated") or {}).get("exitCode") == 0


def _container(statuses: Any, name: str) -> Obj:
    return next((c for c in statuses or () if c.get("name") == name), {})


def _condition(status: Obj, kind: str) -> Obj:
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})
