"""The image that engine pods run: Python 3.11 and a `vllm` command that finds the mounted installation."""

from __future__ import annotations

import platform

from e2e.cluster import host, prerequisites, rootfs
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.images.build import Image, build
from e2e.images.recipes import REPOSITORY, Recipe

MACHINE = "x86_64"  # the only one that the locked wheels are compiled for
DEBIAN_ARCHITECTURE = "amd64"
INSTALLATION = "/opt/vllm"  # where the image expects the engine
BASE = rootfs.Recipe("moe-real-engine-base", "bookworm", ("python3", "libnuma1", "libgomp1", "libglib2.0-0"))
ENGINE = Recipe("moe-real-engine", REPOSITORY / "e2e" / "real_engine" / "Dockerfile")


def ensure(folders: Folders, progress: Progress, *, bootstrap: bool) -> Image:
    """The image, built where it is missing. Raises CannotContinue on a machine that cannot build it."""
    if platform.machine() != MACHINE:
        raise host.CannotContinue(f"the engine's wheels are for {MACHINE}; this is a {platform.machine()}")
    needed = prerequisites.BUILD_PROGRAMS
    host.ensure_programs(needed, bootstrap=bootstrap, folders=folders, progress=progress)
    base = rootfs.ensure(BASE, DEBIAN_ARCHITECTURE, folders, progress)
    return build(ENGINE, base, folders, progress)
