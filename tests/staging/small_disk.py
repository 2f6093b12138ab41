"""A real, small file system for one test, inside a mount namespace of its own.

ext4 on a loop device where the machine has one, else tmpfs. A holder process keeps the namespace; the stager
is started inside with nsenter, the test looks and writes through /proc/PID/root. Nothing has to be unmounted:
the mount goes with the holder.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.staging.stager import Ended, command

EXT4 = """set -e
truncate -s "$2" "$1.img"
mkfs.ext4 -q -O ^has_journal -m 0 "$1.img"
mount -o loop "$1.img" "$1"
"""
TMPFS = """set -e
mount -t tmpfs -o size="$2" none "$1"
"""
HOLD = """
echo mounted
exec cat
"""


@dataclass(frozen=True)
class SmallDisk:
    kind: str
    path: Path  # inside the namespace
    holder: subprocess.Popen[str]

    @property
    def outside(self) -> Path:
        """The same directory as the test can reach it."""
        return Path(f"/proc/{self.holder.pid}/root{self.path}")

    def inside(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a program that sees the disk."""
        return subprocess.Popen(
            ["nsenter", *self._where(), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stager(self, *arguments: object) -> subprocess.Popen[str]:
        return self.inside(*command(*arguments))

    def remount(self, options: str) -> None:
        subprocess.run(
            ["nsenter", *self._where(), "mount", "-o", f"remount,{options}", str(self.path)], check=True
        )

    def _where(self) -> list[str]:
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        return ["-t", str(self.holder.pid), *user, "-m"]


def ended(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=60)
    return Ended(process.returncode, out, err)


@contextmanager
def small_disk(at: Path, size: str = "8M") -> Iterator[SmallDisk]:
    at.mkdir()
    for kind, script in (("ext4", EXT4), ("tmpfs", TMPFS)):
        holder = _holder(script, at, size)
        assert holder.stdout is not None
        if holder.stdout.readline() == "mounted\n":
            try:
                yield SmallDisk(kind, at, holder)
            finally:
                holder.communicate()
            return
        holder.communicate()
    raise AssertionError("no file system can be mounted: run as root or allow user namespaces")


def _holder(script: str, at: Path, size: str) -> subprocess.Popen[str]:
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    return subprocess.Popen(
        [*own, "sh", "-c", script + HOLD, "sh", str(at), size],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
