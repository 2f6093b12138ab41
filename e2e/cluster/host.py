"""This machine: who we are on it, what it can do, and the packages and limits that nodes need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from e2e.cluster import daemon, prerequisites
from e2e.cluster.command import run, run_logged
from e2e.cluster.disk import Need
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders

SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
PROJECT_UV = Path(__file__).parents[2] / ".cache" / "uv" / "bin" / "uv"
# Five kubelets and their container runtimes watch many files (kind's known issue "too many open files").
INOTIFY_LIMITS: Mapping[str, int] = {
    "fs/inotify/max_user_watches": 524_288,
    "fs/inotify/max_user_instances": 512,
}


class CannotContinue(Exception):
    """The machine lacks something; the message says what the user can do."""


def is_root() -> bool:
    return os.geteuid() == 0


def has_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


def has_cgroup_v1() -> bool:
    return not Path("/sys/fs/cgroup/cgroup.controllers").exists()


def may_sys_resource() -> bool:
    return daemon.may_sys_resource(Path("/proc/self/status").read_text())


def program(name: str) -> Path | None:
    """Where a program is, also in the folders that only root has on PATH."""
    found = shutil.which(name, path=SEARCH_PATH)
    return Path(found) if found else None


def uv() -> Path | None:
    """Where uv is: on PATH, or where `make setup` put it."""
    own = PROJECT_UV if PROJECT_UV.exists() else None
    return program("uv") or own


def ensure_programs(
    wanted: Mapping[str, str], *, bootstrap: bool, folders: Folders, progress: Progress
) -> None:
    """Install what is missing where that is allowed; raises CannotContinue with the command where not."""
    packages = prerequisites.missing_packages(wanted, [name for name in wanted if program(name)])
    disposable = bootstrap or os.environ.get("CI") == "true"
    apt = program("apt-get") is not None
    match prerequisites.plan(packages, prerequisites.Host(is_root(), disposable, apt)):
        case prerequisites.AskUser(message):
            raise CannotContinue(message)
        case prerequisites.Install(names):
            with progress.step(f"installing {', '.join(names)}"):
                environment = {"DEBIAN_FRONTEND": "noninteractive"}
                log = folders.logs / "apt.log"
                run_logged("apt-get", "update", "-qq", log=log, env=environment)
                install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *names)
                run_logged(*install, log=log, env=environment)


def debian_mirror() -> str | None:
    """The Debian archive this machine's apt uses; None when it uses none (debootstrap then knows its own)."""
    if not program("apt-get"):
        return None
    rows = run(
        "apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"
    ).splitlines()
    return next((uri for label, uri in (row.rsplit(" ", 1) for row in rows) if label == "Debian"), None)


def disk_need(folder: Path, wanted: int) -> Need:
    """Free space where ``folder`` is, or will be made."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return Need(str(folder), existing.stat().st_dev, shutil.disk_usage(existing).free, wanted)


def read_settings(names: Iterable[str]) -> dict[str, str]:
    """Kernel settings by their path below /proc/sys."""
    return {name: (Path("/proc/sys") / name).read_text().strip() for name in names}


def write_settings(values: Mapping[str, str]) -> None:
    """Set kernel settings; needs root."""
    for name, value in values.items():
        (Path("/proc/sys") / name).write_text(value)


def raise_inotify_limits() -> None:
    """Raise the limits that are too low for five nodes; needs root."""
    now = read_settings(INOTIFY_LIMITS)
    write_settings({name: str(limit) for name, limit in INOTIFY_LIMITS.items() if int(now[name]) < limit})
