"""Which Debian packages are missing, and whether they may be installed here.

Packages are installed only where nothing else lives: as root with ``CI=true`` or ``--bootstrap``.
Everywhere else the user gets the exact command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# program that must be on PATH → Debian package that brings it
DAEMON_PROGRAMS: Mapping[str, str] = {"dockerd": "docker.io", "docker": "docker.io", "iptables": "iptables"}
BUILD_PROGRAMS: Mapping[str, str] = {"debootstrap": "debootstrap"}


@dataclass(frozen=True, slots=True)
class Host:
    """What decides whether this machine may be changed."""

    root: bool
    disposable: bool  # CI=true or --bootstrap
    apt: bool


@dataclass(frozen=True, slots=True)
class Install:
    """Packages to install now."""

    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskUser:
    """What the user has to do first."""

    message: str


def missing_packages(wanted: Mapping[str, str], present: Iterable[str]) -> tuple[str, ...]:
    """Packages for the programs that are not there, each once."""
    have = set(present)
    return tuple(sorted({package for program, package in wanted.items() if program not in have}))


def plan(packages: tuple[str, ...], host: Host) -> Install | AskUser | None:
    """Install, ask, or None when nothing is missing."""
    if not packages:
        return None
    if host.root and host.disposable and host.apt:
        return Install(packages)
    sudo = "" if host.root else "sudo "
    command = f"{sudo}apt-get install --no-install-recommends {' '.join(packages)}"
    return AskUser(
        f"missing: {', '.join(packages)}. Install with:\n  {command}\nor pass --bootstrap as root."
    )
