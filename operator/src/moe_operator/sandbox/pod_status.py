"""What a kubelet says of a pod, from what it knows of the pod's containers.

Phase and conditions follow kubelet's ``getPhase`` and ``status/generate.go``: a pod is Pending until its
init containers are done and every container has started once, Running while any runs or will run again,
Succeeded or Failed only when nothing will.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moe_operator.api.moments import moment
from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.objects import with_transitions


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running, and why."""

    reason: str
    message: str = ""

    def wire(self) -> Obj:
        """As ``state``."""
        said = {"reason": self.reason, "message": self.message}
        return {"waiting": {k: v for k, v in said.items() if v}}


@dataclass(frozen=True, slots=True)
class Running:
    """A process runs."""

    started_at: float

    def wire(self) -> Obj:
        """As ``state``."""
        return {"running": {"startedAt": moment(self.started_at)}}


@dataclass(frozen=True, slots=True)
class Terminated:
    """A process ended; ``exit_code`` is 128 + n when signal n ended it."""

    exit_code: int
    reason: str
    started_at: float
    finished_at: float
    message: str = ""
    container_id: str = ""

    def wire(self) -> Obj:
        """As ``state`` or ``lastState``."""
        said = {
            "exitCode": self.exit_code,
            "reason": self.reason,
            "startedAt": moment(self.started_at),
            "finishedAt": moment(self.finished_at),
            "containerID": self.container_id,
            "message": self.message,
        }
        return {"terminated": {k: v for k, v in said.items() if v != ""}}


State = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container at one moment. ``done``: it will not run again."""

    name: str
    image: str
    state: State
    last: Terminated | None = None
    restarts: int = 0
    ready: bool = False
    started: bool = False
    done: bool = False
    sidecar: bool = False
    container_id: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether it ended well for good."""
        return self.done and isinstance(self.state, Terminated) and self.state.exit_code == 0

    @property
    def failed(self) -> bool:
        """Whether it ended badly for good."""
        return self.done and isinstance(self.state, Terminated) and self.state.exit_code != 0

    @property
    def initialized(self) -> bool:
        """As an init container: whether the next one may start."""
        return self.started or self.restarts > 0 if self.sidecar else self.succeeded

    def wire(self) -> Obj:
        """As an entry of ``containerStatuses``."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image,
            "containerID": self.container_id,
            "state": self.state.wire(),
            "lastState": self.last.wire() if self.last else {},
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
        }


def phase(inits: Sequence[ContainerView], containers: Sequence[ContainerView]) -> str:
    """Pending, Running, Succeeded or Failed."""
    if any(c.failed for c in inits if not c.sidecar):
        return "Failed"
    if not all(c.initialized or (c.sidecar and c.done) for c in inits):
        return "Pending"
    if any(isinstance(c.state, Waiting) and c.last is None for c in containers):
        return "Pending"
    if not all(c.done for c in containers):
        return "Running"
    return "Succeeded" if all(c.succeeded for c in containers) else "Failed"


def pod_status(
    pod: Obj,
    inits: Sequence[ContainerView],
    containers: Sequence[ContainerView],
    *,
    pod_ip: str,
    host_ip: str,
    started_at: float,
    now: float,
) -> Obj:
    """The whole status of a running pod."""
    current = phase(inits, containers)
    before = (pod.get("status") or {}).get("conditions") or ()
    return {
        "phase": current,
        "conditions": with_transitions(_conditions(current, inits, containers), before, now),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "startTime": moment(started_at),
        "observedGeneration": pod["metadata"].get("generation", 1),
        "initContainerStatuses": [c.wire() for c in inits],
        "containerStatuses": [c.wire() for c in containers],
    }


def _conditions(
    current: str, inits: Sequence[ContainerView], containers: Sequence[ContainerView]
) -> list[Obj]:
    waiting = [c.name for c in inits if not c.initialized] if current != "Succeeded" else []
    unready = [c.name for c in containers if not c.ready]
    ended = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(current)
    why_unready = (ended, "") if ended else ("ContainersNotReady", _listed("unready status", unready))
    return [
        _condition("PodReadyToStartContainers", not ended),
        _condition(
            "Initialized", not waiting, "ContainersNotInitialized", _listed("incomplete status", waiting)
        ),
        _condition("Ready", not unready, *why_unready),
        _condition("ContainersReady", not unready, *why_unready),
        _condition("PodScheduled", True),
    ]


def _condition(kind: str, true: bool, reason: str = "", message: str = "") -> Obj:
    """A condition; reason and message are said only when it is False."""
    if true:
        return {"type": kind, "status": "True"}
    said = {"type": kind, "status": "False", "reason": reason, "message": message}
    return {k: v for k, v in said.items() if v}


def _listed(what: str, names: Sequence[str]) -> str:
    return f"containers with {what}: [{' '.join(names)}]"


def rejected_status(reason: str, message: str, now: float) -> Obj:
    """The status of a pod that the kubelet did not admit: Failed, and nobody will clean it up."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "startTime": moment(now),
    }
