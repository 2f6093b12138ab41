"""Wheels for a Python and a machine that need not be ours, taken from a lock file by their hashes.

Resolved on this machine, where the package index can be reached, so that building an image needs no network.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.command import run_logged
from e2e.cluster.host import CannotContinue, uv

_PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==(?:.*\\\n)*.*\n", re.MULTILINE)
NEWEST_GLIBC = 36  # Debian 12; a base as old as that runs these wheels
OLDEST_GLIBC = 5


@dataclass(frozen=True, slots=True)
class Target:
    """The Python inside an image: version "3.13" and machine "x86_64"."""

    python: str
    machine: str

    @property
    def platforms(self) -> tuple[str, ...]:
        """Names under which wheels for this machine are published, newest first."""
        newer = [f"manylinux_2_{minor}_{self.machine}" for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)]
        return (*newer, f"manylinux2014_{self.machine}", f"linux_{self.machine}")


def download(lock: Path, only: Collection[str], target: Target, folder: Path, log: Path) -> None:
    """Put the wheels of ``lock`` (all of them, or ``only`` these packages) into ``folder``."""
    wanted = folder.parent / "requirements.txt"
    wanted.write_text(pins(lock.read_text(encoding="utf-8"), only), encoding="utf-8")
    platforms = [option for name in target.platforms for option in ("--platform", name)]
    run_logged(
        *_pip(), "download", "--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:",
        "--python-version", target.python, "--implementation", "cp", *platforms,
        "--requirement", wanted, "--dest", folder,
        log=log,
    )  # fmt: skip


def build_project(repository: Path, folder: Path, log: Path) -> None:
    """Put the wheel of this project into ``folder``."""
    if found := uv():
        run_logged(found, "build", "--quiet", "--wheel", "--out-dir", folder, repository, log=log)
    else:
        run_logged(*_pip(), "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, repository, log=log)


def pins(lock: str, only: Collection[str]) -> str:
    """The requirements of a lock file with their hashes, or ``only`` some; LookupError when one is absent."""
    texts = {found[1]: found[0] for found in _PIN.finditer(lock)}
    if missing := set(only) - set(texts):
        raise LookupError(f"the lock file names no {', '.join(sorted(missing))}")
    return "".join(text for name, text in texts.items() if not only or name in only)


def _pip() -> tuple[str, ...]:
    if importlib.util.find_spec("pip"):
        return (sys.executable, "-m", "pip")
    if found := uv():
        return (str(found), "tool", "run", "--quiet", "pip")
    raise CannotContinue("neither pip nor uv: install one to fetch the wheels that go into images")
