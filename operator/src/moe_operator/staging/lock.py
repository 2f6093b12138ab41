"""One writer per digest on a node.

``flock`` on a file of the store: the kernel lets go of it when the process dies, so a kill never leaves
a lock behind. The store is a local disk by contract (network file systems give the lock to everyone:
huggingface_hub#4228), and identity comes from the hash, never from the lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moe_operator.api.manifest import StageExit
from moe_operator.staging.failure import StageError
from moe_operator.staging.stop import Stop

LOOK_SECONDS = 0.1


@contextmanager
def held(path: Path, watch: Path, patience: float, stop: Stop) -> Iterator[None]:
    """Hold the lock at ``path``.

    Waits as long as its holder moves: LOCK_TIMEOUT after ``patience`` seconds in which ``watch`` (the
    file the holder writes) did not change.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        _acquire(fd, path, watch, patience, stop)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


@contextmanager
def tried(path: Path) -> Iterator[bool]:
    """Hold the lock if nobody else does; yields whether it is held."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        yield _try(fd)
    finally:
        os.close(fd)


def busy(path: Path) -> bool:
    """Whether somebody holds the lock now; a store that is mounted read-only can be asked too."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try(fd)
    finally:
        os.close(fd)


def _acquire(fd: int, path: Path, watch: Path, patience: float, stop: Stop) -> None:
    seen, since = _mark(watch), time.monotonic()
    while not _try(fd):
        stop.wait(LOOK_SECONDS)
        now, mark = time.monotonic(), _mark(watch)
        if mark != seen:
            seen, since = mark, now
        if now - since > patience:
            holder = os.pread(fd, 32, 0).decode(errors="replace") or "unknown"
            raise StageError(
                StageExit.LOCK_TIMEOUT,
                f"{path.name} is held by process {holder}, which brought nothing new for {patience:.0f} s",
                file=path.stem,
                hint="another stager on this node is stuck; end it and the lock goes with it",
            )


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _mark(watch: Path) -> int:
    try:
        return watch.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
