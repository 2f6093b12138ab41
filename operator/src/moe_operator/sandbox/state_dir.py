"""Where a sandbox keeps its files, and how it knows that nobody else does.

A directory is locked (flock) for as long as the sandbox or its reaper lives. ``sandbox.json`` names the
marker that all its processes carry; who opens a directory whose sandbox died first ends what still
carries that marker and removes what belonged to its pods. Nodes' file systems stay: downloaded weights
are worth keeping.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from moe_operator.sandbox.pod_process import SANDBOX_MARKER
from moe_operator.sandbox.reaper import SWEEP_SECONDS, kill_marked

DESCRIPTION = "sandbox.json"
LOCK = "lock"
OF_THE_DEAD = ("pods", "kubeconfig.yaml", "operator.log")
END_SECONDS = 10.0


class StateUnusable(Exception):
    """The directory is somebody else's; the text says whose and what to do."""


@dataclass(slots=True)
class StateDir:
    """A locked directory. ``marker`` is ``NAME=value``, carried by every process of the sandbox."""

    path: Path
    marker: str
    lock: int
    temporary: bool

    def close(self) -> None:
        """Unlock; a temporary directory goes with its sandbox."""
        try:
            if self.temporary:
                _remove(self.path)
            else:
                (self.path / DESCRIPTION).unlink(missing_ok=True)
        finally:
            os.close(self.lock)


def temporary_path(block: str) -> Path:
    """The directory of the sandbox that holds an address block: one per user and block."""
    return Path(tempfile.gettempdir()) / f"moe-operator-{os.getuid()}" / block


def open_state_dir(path: Path, *, temporary: bool) -> StateDir:
    """Lock a directory, clean up after a dead sandbox, describe the new one; StateUnusable otherwise."""
    path = path.absolute()
    known = (path / DESCRIPTION).exists() or (path / LOCK).exists()
    if path.exists() and not known and any(path.iterdir()):
        raise StateUnusable(
            f"{path} has files that no sandbox made; name an empty or new directory with --state-dir"
        )
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = _lock(path)
    try:
        _bury(path)
        marker = f"{SANDBOX_MARKER}={uuid.uuid4()}"
        description = {"pid": os.getpid(), "marker": marker}
        (path / DESCRIPTION).write_text(json.dumps(description) + "\n")
    except BaseException:
        os.close(lock)
        raise
    return StateDir(path, marker, lock, temporary)


def _lock(path: Path) -> int:
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StateUnusable(
            f"{path} is in use by the sandbox of process {_read(path).get('pid', 'unknown')}; stop that one "
            "(Ctrl-C) or name another directory with --state-dir"
        ) from None
    return lock


def _bury(path: Path) -> None:
    """End and remove what a dead sandbox left."""
    if marker := _read(path).get("marker"):
        deadline = time.monotonic() + END_SECONDS
        while kill_marked(str(marker)) and time.monotonic() < deadline:
            time.sleep(SWEEP_SECONDS)
    for name in OF_THE_DEAD:
        left = path / name
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """The lock goes last: what is left of a removal that was cut off is still known to be ours."""
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
    shutil.rmtree(path)


def _read(path: Path) -> dict[str, object]:
    try:
        content = json.loads((path / DESCRIPTION).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}
