"""Debian root file systems as images: the nodes' and the Python base of everything we build for them.

Debian 12 for the nodes on purpose: later systemd no longer runs on cgroup v1 hosts. Debian 13 for Python.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import host
from e2e.cluster.command import attempt, run, run_logged
from e2e.cluster.inputs import key
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders

# Nothing that runs in a container reads these, and they are a third of the whole.
_UNREAD = (
    "var/cache/apt/archives/*.deb",
    "var/cache/apt/*.bin",
    "var/lib/apt/lists/*",
    "var/log/*.log",
    "var/log/apt/*",
    "usr/share/doc/*",
    "usr/share/man/*",
    "usr/share/info/*",
    "usr/share/locale/*",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A Debian release and the packages beside its essential ones."""

    image: str
    suite: str
    packages: tuple[str, ...]

    def reference(self, architecture: str) -> str:
        """Name and tag of the image; the tag is the hash of the recipe."""
        inputs = {
            "suite": self.suite,
            "packages": "\n".join(self.packages),
            "unread": "\n".join(_UNREAD),
            "architecture": architecture,
        }
        return f"{self.image}:{key(inputs)}"


NODE = Recipe(
    "moe-node-rootfs",
    "bookworm",
    (
        *("systemd", "dbus", "kmod", "mount", "util-linux", "procps", "e2fsprogs", "libseccomp2"),
        *("bash", "ca-certificates", "curl", "jq", "pigz", "socat"),
        *("iproute2", "iptables", "nftables", "ipset", "conntrack", "ethtool"),
        *("runc", "containernetworking-plugins"),
    ),
)
PYTHON = Recipe("moe-python-base", "trixie", ("python3", "ca-certificates"))


def ensure(recipe: Recipe, architecture: str, folders: Folders, progress: Progress) -> str:
    """The image's reference; made from the cached file system when Docker has lost it. Needs root."""
    reference = recipe.reference(architecture)
    if attempt("docker", "image", "inspect", reference).ok:
        return reference
    archive = folders.rootfs / f"{reference.replace(':', '-')}.tar"
    if not archive.exists():
        _bootstrap(recipe, archive, folders, progress)
    with progress.step(f"importing {reference}"):
        run("docker", "import", "--change", 'CMD ["/bin/sh"]', archive, reference)
    return reference


def _bootstrap(recipe: Recipe, archive: Path, folders: Folders, progress: Progress) -> None:
    tree = folders.work / recipe.image
    discard_tree(tree)
    tree.parent.mkdir(parents=True, exist_ok=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    mirror = host.debian_mirror()
    with progress.step(f"Debian {recipe.suite} with {len(recipe.packages)} packages"):
        run_logged(
            "debootstrap", "--variant=minbase", f"--include={','.join(recipe.packages)}", recipe.suite, tree,
            *([mirror] if mirror else []),
            log=folders.logs / f"debootstrap-{recipe.suite}.log",
        )  # fmt: skip
        for pattern in _UNREAD:
            for path in tree.glob(pattern):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        unfinished = archive.with_suffix(".new")
        run("tar", "--numeric-owner", "-C", tree, "-cf", unfinished, ".")
        unfinished.rename(archive)
    discard_tree(tree)


def discard_tree(tree: Path) -> None:
    """Delete a root file system, first unmounting what an interrupted debootstrap left mounted in it."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([point for point in mounts if re.match(rf"{re.escape(str(tree))}/", point)]):
        run("umount", mount)
    if tree.exists():
        shutil.rmtree(tree)
