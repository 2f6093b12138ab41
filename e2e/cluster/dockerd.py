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

from e2e.cluster import daemon, host, host_network, oci_runtime_shim
from e2e.cluster.command import attempt, run
from e2e.cluster.host import CannotContinue
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders

START_SECONDS = 60.0
STOP_SECONDS = 30.0
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
        for pid in _pids("dockerd"):
            os.kill(pid, signal.SIGTERM)
        _wait_for_end("dockerd", STOP_SECONDS)
        _clear_leftovers()
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
    return replace(facts, stale=stale, silent_pid=next(iter(_pids("dockerd")), 0))


def _start(plan: daemon.StartOwn, folders: Folders, progress: Progress) -> None:
    if plan.kill:
        progress.say(f"the Docker daemon (process {plan.kill}) stays silent; killing it")
        os.kill(plan.kill, signal.SIGKILL)
        _wait_for_end("dockerd", STOP_SECONDS)
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
        argv += ["--add-runtime", f"moe={_install_shim(folders)}", "--default-runtime", "moe"]
    progress.say("starting the Docker daemon")
    log = _log(folders)
    log.parent.mkdir(parents=True, exist_ok=True)
    run("sh", "-c", 'log=$1; shift; exec "$@" </dev/null >"$log" 2>&1', "sh", log, *argv)


def _wait_until_it_answers(folders: Folders, *, required: bool) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if answers():
            return True
        if required and not host.has_systemd() and not _pids("dockerd"):
            break
        time.sleep(0.3)
    if required:
        log = _log(folders)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else ""
        raise CannotContinue(f"the Docker daemon did not start:\n{tail}")
    return False


def _clear_leftovers() -> str:
    """Remove Docker's rules and bridges; says what there was, "" when there was nothing."""
    if not host.program("iptables-save"):
        return ""
    removals = host_network.rule_removals(run("iptables-save"))
    for arguments in removals:
        run("iptables", *arguments)
    links = json.loads(run("ip", "-json", "link", "show", "type", "bridge") or "[]")
    bridges = host_network.leftover_bridges(link["ifname"] for link in links if link)
    for bridge in bridges:
        run("ip", "link", "delete", bridge)
    return (
        f"{len(removals)} rules and chains, bridges {', '.join(bridges) or 'none'}"
        if removals or bridges
        else ""
    )


def _write_record(folders: Folders) -> None:
    """Note the host's state, unless an earlier start that crashed noted the original already."""
    if _record(folders).exists():
        return
    before = Before(host.read_settings(_SETTINGS), host_network.policy(run("iptables-save"), "FORWARD"))
    folders.state.mkdir(parents=True, exist_ok=True)
    _record(folders).write_text(json.dumps(asdict(before)))


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


def _pids(name: str) -> list[int]:
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if _process_name(pid) == name]


def _wait_for_end(name: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _pids(name):
        if time.monotonic() > deadline:
            raise CannotContinue(f"{name} does not end: processes {_pids(name)}")
        time.sleep(0.1)


def _record(folders: Folders) -> Path:
    return folders.state / "daemon.json"


def _log(folders: Folders) -> Path:
    return folders.logs / "dockerd.log"
