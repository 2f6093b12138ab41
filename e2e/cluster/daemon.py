"""Whether a Docker daemon can be used, must be started, or cannot be had.

Rules, in order: a daemon that answers is used, unless it cannot run nodes here; systemd starts its own; root
without systemd starts one; anybody else is told what to do. A pid file counts only while its process has the
right name, because after a reset the number may belong to something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CAP_SYS_RESOURCE = 24
PID_FILES: Mapping[Path, str] = {
    Path("/var/run/docker.pid"): "dockerd",
    Path("/var/run/docker/containerd/containerd.pid"): "containerd",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """The daemon and the machine as found."""

    answers: bool
    root: bool
    systemd: bool
    may_sys_resource: bool  # CAP_SYS_RESOURCE is in the bounding set
    default_runtime: str = ""
    silent_pid: int = 0  # a dockerd that lives and does not answer
    stale: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """It answers and can run nodes."""


@dataclass(frozen=True, slots=True)
class StartService:
    """systemd knows how."""


@dataclass(frozen=True, slots=True)
class StartOwn:
    """Start dockerd as a child of nobody; ``shim`` drops the capability that this machine does not have."""

    shim: bool
    remove: tuple[Path, ...] = ()
    kill: int = 0


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why there is no daemon, and what the user can do."""

    message: str


Plan = Use | StartService | StartOwn | Unavailable


def plan(facts: Facts) -> Plan:
    """Decide what to do about the daemon."""
    if facts.answers:
        return _usable(facts)
    if facts.systemd:
        return (
            StartService() if facts.root else Unavailable("start Docker first: sudo systemctl start docker")
        )
    if facts.root:
        return StartOwn(not facts.may_sys_resource, facts.stale, facts.silent_pid)
    return Unavailable("no Docker daemon answers, or this user may not talk to it; start it first")


def _usable(facts: Facts) -> Plan:
    if facts.may_sys_resource or facts.default_runtime != "runc":
        return Use()
    return Unavailable(
        "the running Docker daemon cannot start privileged containers: CAP_SYS_RESOURCE is missing here. "
        "Stop it; the next `up` starts one with a runtime that leaves this capability out"
    )


def may_sys_resource(proc_status: str) -> bool:
    """Whether /proc/self/status shows CAP_SYS_RESOURCE in the bounding set."""
    bounding = next(line.split()[1] for line in proc_status.splitlines() if line.startswith("CapBnd:"))
    return bool(int(bounding, 16) >> CAP_SYS_RESOURCE & 1)


def stale_pid_files(recorded: Mapping[Path, int], names: Mapping[int, str]) -> tuple[Path, ...]:
    """Pid files whose process is gone, or is another program by now."""
    return tuple(path for path, pid in recorded.items() if names.get(pid) != PID_FILES[path])
