"""The one folder of this machine that every node sees, read-only.

Checkpoints and whatever else pods read in bulk lie in it once, and nothing is copied into nodes.
"""

from __future__ import annotations

from pathlib import Path

from e2e.cluster.settings import Folders, Mount

NODE_PATH = "/moe-shared"
CHECKPOINTS = "checkpoints"


def host_folder(folders: Folders) -> Path:
    """The folder on this machine; made if missing."""
    folder = folders.root.parent / "shared"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def mount(folders: Folders) -> Mount:
    """How nodes see it."""
    return Mount(str(host_folder(folders)), NODE_PATH)


def checkpoints(folders: Folders) -> Path:
    """Directory of the checkpoints that the PersistentVolumeClaim holds; made if missing."""
    folder = host_folder(folders) / CHECKPOINTS
    folder.mkdir(exist_ok=True)
    return folder
