"""Read a directory that the kubelet keeps in step with a Secret.

The kubelet writes a new version beside the old one and renames the symlink ``..data`` onto it, so a reader
who resolves that link once sees one version. Whether it has changed is asked by reading the link: one
``readlink`` a second costs nothing beside the kubelet's own minute, needs no inotify library, and cannot
miss an event.
"""

from __future__ import annotations

import os
from pathlib import Path

DATA = "..data"
ATTEMPTS = 3  # at reading one version; the kubelet may remove it under us


def beside(xds: str, directory: str) -> Path:
    """A directory that an intent names: where it is no absolute path, as seen from the files of Envoy."""
    return Path(os.path.normpath(Path(xds) / directory))


def version(directory: Path) -> object:
    """A value that changes when the directory's content does; None when there is no such directory."""
    data = directory / DATA
    try:
        if data.is_symlink():
            return str(data.readlink())
        found = ((name, (directory / name).stat()) for name in _files(directory))
        return sorted((name, stat.st_mtime_ns, stat.st_ino) for name, stat in found)
    except FileNotFoundError:
        return None


def entries(directory: Path) -> dict[str, str]:
    """File name → content, of one version, what is no text made visible; OSError when there is none."""
    for left in reversed(range(ATTEMPTS)):
        data = directory / DATA
        root = directory / data.readlink() if data.is_symlink() else directory
        try:
            return {name: (root / name).read_text(errors="replace") for name in _files(root)}
        except FileNotFoundError:
            if not left:
                raise
    raise AssertionError("unreachable")


def _files(root: Path) -> list[str]:
    with os.scandir(root) as found:
        return [file.name for file in found if not file.name.startswith("..") and file.is_file()]
