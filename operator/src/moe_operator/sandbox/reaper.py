"""The last one out: a process that ends whatever a sandbox leaves behind when it dies.

The sandbox holds the write end of a pipe. However it ends (return, crash, ``kill -9``), the kernel
closes that end; the reaper reads end-of-file and kills every process group it was told of and every
process that carries the sandbox's marker in its environment, until there are none. Children of the
sandbox die with it by PR_SET_PDEATHSIG; the reaper is for theirs.

Runs as ``python -I -S reaper.py FD MARKER`` and so uses the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SWEEP_SECONDS = 0.02
GIVE_UP_SECONDS = 30.0  # a process in uninterruptible sleep cannot be killed by anybody


def marked(marker: str) -> list[int]:
    """Processes whose initial environment holds ``marker`` (``NAME=value``), this one excepted."""
    wanted = marker.encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue  # ended meanwhile, or of another user and so not ours
        if wanted in environment.split(b"\0") and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def kill_marked(marker: str) -> list[int]:
    """SIGKILL every marked process once; who was hit."""
    found = marked(marker)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def kill_group(group: int) -> None:
    """SIGKILL a process group that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


class Reaper:
    """The sandbox's end of the pipe."""

    def __init__(self, marker: str, keep_open: tuple[int, ...] = ()) -> None:
        """Start the process. ``keep_open``: descriptors (the address block) it holds until it is done."""
        read_end, self._pipe = os.pipe()
        self.marker = marker
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(read_end), marker],
            pass_fds=(read_end, *keep_open),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
            env={},
        )
        os.close(read_end)

    def add(self, group: int) -> None:
        """A process group to end with the sandbox."""
        self._tell(f"+{group}\n")

    def discard(self, group: int) -> None:
        """A process group that has ended; its number may be somebody else's soon."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Let it do its work and wait for it."""
        os.close(self._pipe)
        self.process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody killed the reaper: PDEATHSIG is left
            os.write(self._pipe, line.encode())


def main(descriptor: int, marker: str) -> None:
    """Wait for the end of the sandbox, then leave nothing."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: set[int] = set()
    with os.fdopen(descriptor) as told:
        for line in told:
            group = int(line[1:])
            (groups.add if line[0] == "+" else groups.discard)(group)
    for group in groups:
        kill_group(group)
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while kill_marked(marker) and time.monotonic() < deadline:
        time.sleep(SWEEP_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
