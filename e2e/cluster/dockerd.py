"""The Docker daemon: look at it, start it where the plan says so, stop the one that we started.

What starting changes on the host (forwarding, policies, limits) is written down first, so that ``down`` can
put it back even after a crash.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from e2e.cluster import daemon, host, leftovers, oci_runtime_shim
from e2e.cluster.command import attempt, run
from e2e.cluster.host import CannotContinue
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders

START_SECONDS = 60.0
STOP_SECONDS = 30.0
RUNTIME = "moe"
_DIED_EARLY_SECONDS = 3.0
_SETTINGS = ("net/ipv4/ip_forward", *host.INOTIFY_LIMITS)


@dataclass(frozen=True, slots=True)
class Before:
    """The host as it was before the daemon that we started."""

    settings: dict[str, str]
    forward_policy: str


def answers() -> bool:
    """Whether a daemon answers this user."""
    return attempt("docker", "version", "--format", "{{.Server.Version}}", timeout=10).ok


def data_folder() -> Path:
    """Where the daemon keeps images and containers."""
    return Path(run("docker", "info", "--format", "{{.DockerRootDir}}").strip())


def ensure(folders: Folders, progress: Progress) -> None:
    """Leave with a daemon that answers; raises CannotContinue with what the user can do."""
    facts = _facts()
    if facts.silent_pid:
        progress.say("the Docker daemon is there but silent; waiting for it")
        facts = _facts() if _wait_until_it_answers(folders, required=False) else facts
    match daemon.plan(facts):
        case daemon.Use():
            if facts.default_runtime == RUNTIME:
                _install_shim(folders)  # somebody may have emptied the cache folder under the daemon
            return
        case daemon.Unavailable(message):
            raise CannotContinue(message)
        case daemon.StartService():
            progress.say("starting Docker with systemd")
            run("systemctl", "start", "docker")
        case daemon.StartOwn() as plan:
            _start(plan, folders, progress)
    _wait_until_it_answers(folders, required=True)


def started_by_us(folders: Folders) -> bool:
    """Whether the daemon is one that this tool started."""
    return _record(folders).exists()


def stop(folders: Folders, progress: Progress) -> None:
    """Stop the daemon that this tool started and put the host's network and limits back."""
    with progress.step("stopping the Docker daemon"):
        if pid := _living_daemon():
            _end(pid, signal.SIGTERM)
        _clear_leftovers()
        for point in leftovers.mount_points(Path("/proc/self/mountinfo").read_text()):
            run("umount", point)
        before = Before(**json.loads(_record(folders).read_text()))
        host.write_settings(before.settings)
        run("iptables", "-P", "FORWARD", before.forward_policy)
        _record(folders).unlink()


def _facts() -> daemon.Facts:
    facts = daemon.Facts(answers(), host.is_root(), host.has_systemd(), host.may_sys_resource())
    if facts.answers:
        runtime = run("docker", "info", "--format", "{{.DefaultRuntime}}").strip()
        return replace(facts, default_runtime=runtime)
    recorded = {path: int(path.read_text() or 0) for path in daemon.PID_FILES if path.exists()}
    stale = daemon.stale_pid_files(recorded, {pid: _process_name(pid) for pid in recorded.values()})
    return replace(facts, stale=stale, silent_pid=_living_daemon())


def _start(plan: daemon.StartOwn, folders: Folders, progress: Progress) -> None:
    if plan.kill:
        progress.say(f"the Docker daemon (process {plan.kill}) stays silent; killing it")
        _end(plan.kill, signal.SIGKILL)
    for path in plan.remove:
        progress.say(f"removing {path}: its process is gone")
        path.unlink()
    if removed := _clear_leftovers():
        progress.say(f"removed what a killed Docker left in the network: {removed}")
    _write_record(folders)
    host.raise_inotify_limits()
    # setsid --fork: the daemon outlives this program and is nobody's child.
    argv = ["setsid", "--fork", str(host.program("dockerd"))]
    if plan.shim:
        progress.say("CAP_SYS_RESOURCE is missing here: containers start through a shim that leaves it out")
        argv += ["--add-runtime", f"{RUNTIME}={_install_shim(folders)}", "--default-runtime", RUNTIME]
    progress.say("starting the Docker daemon")
    log = _log(folders)
    log.parent.mkdir(parents=True, exist_ok=True)
    run("sh", "-c", 'log=$1; shift; exec "$@" </dev/null >"$log" 2>&1', "sh", log, *argv)


def _wait_until_it_answers(folders: Folders, *, required: bool) -> bool:
    started = time.monotonic()
    while (waited := time.monotonic() - started) < START_SECONDS:
        if answers():
            return True
        if required and waited > _DIED_EARLY_SECONDS and not _living_daemon():
            break
        time.sleep(0.3)
    if required:
        log = _log(folders)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else ""
        raise CannotContinue(f"the Docker daemon did not start:\n{tail}")
    return False


def _clear_leftovers() -> str:
    """Remove Docker's rules and bridges; says what there was, "" when there was nothing."""
    removed = 0
    for family in ("iptables", "ip6tables"):
        if host.program(f"{family}-save"):
            removals = leftovers.rule_removals(run(f"{family}-save"))
            removed += len(removals)
            for arguments in removals:
                run(family, *arguments)
    links = json.loads(run("ip", "-json", "link", "show", "type", "bridge") or "[]")
    bridges = leftovers.leftover_bridges(link["ifname"] for link in links if link)
    for bridge in bridges:
        run("ip", "link", "delete", bridge)
    return f"{removed} rules and chains, bridges {', '.join(bridges) or 'none'}" if removed or bridges else ""


def _write_record(folders: Folders) -> None:
    """Note the host's state, unless an earlier start that crashed noted the original already."""
    if _record(folders).exists():
        return
    before = Before(host.read_settings(_SETTINGS), leftovers.policy(run("iptables-save"), "FORWARD"))
    folders.state.mkdir(parents=True, exist_ok=True)
    unfinished = _record(folders).with_suffix(".new")
    unfinished.write_text(json.dumps(asdict(before)))
    unfinished.rename(_record(folders))


def _install_shim(folders: Folders) -> Path:
    """Copy the shim out of the checkout, with an interpreter that outlives a virtual environment."""
    target = folders.state / "runc-without-sys-resource"
    interpreter = Path(sys.executable).resolve()
    target.write_text(f"#!{interpreter} -IS\n{Path(oci_runtime_shim.__file__).read_text()}")
    target.chmod(0o755)
    return target


def _process_name(pid: int) -> str:
    """The program a living process runs; "" when there is no such process, or only its unburied remains."""
    try:
        stat = (Path("/proc") / str(pid) / "stat").read_text()
    except OSError:
        return ""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return "" if rest.split()[0] == "Z" else name


def _living_daemon() -> int:
    """The process that Docker's pid file names, if it is a dockerd; else 0."""
    path = next(path for path, name in daemon.PID_FILES.items() if name == "dockerd")
    pid = int(path.read_text() or 0) if path.exists() else 0
    return pid if _process_name(pid) == "dockerd" else 0


def _end(pid: int, how: signal.Signals) -> None:
    """Signal a process and wait for its end."""
    os.kill(pid, how)
    deadline = time.monotonic() + STOP_SECONDS
    while _process_name(pid):
        if time.monotonic() > deadline:
            raise CannotContinue(f"process {pid} does not end")
        time.sleep(0.1)


def _record(folders: Folders) -> Path:
    return folders.state / "daemon.json"


def _log(folders: Folders) -> Path:
    return folders.logs / "dockerd.log"
