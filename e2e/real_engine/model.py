"""A tiny random Mixture-of-Experts that the real engine loads as it would load a large one.

Weights are noise and so are answers; files, tensor names, tokenizer and chat template are of the real kind.
They are written by the installation's own libraries, so names and formats are those that the engine reads.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.cluster.command import run_logged
from e2e.cluster.inputs import key
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.images.recipes import REPOSITORY
from e2e.real_engine.install import in_container

CONFIG = REPOSITORY / "e2e" / "checkpoints" / "data" / "tiny-qwen3-moe.config.json"
WRITER = Path(__file__).parent / "write_model.py"


def folder_name(installation: str) -> str:
    """Name of the model that the present inputs make with this installation."""
    files = {"config": CONFIG.read_bytes(), "writer": WRITER.read_bytes()}
    return f"model-{key({'by': installation, **files})}"


def ensure(parent: Path, installation: str, image: str, folders: Folders, progress: Progress) -> str:
    """Name of the model's folder below ``parent``, made if missing. Raises CommandFailed."""
    name = folder_name(installation)
    if not (parent / name).exists():
        unfinished = parent / f"{name}.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        mounts = (f"{unfinished}:/model", f"{WRITER}:/write_model.py:ro", f"{CONFIG}:/config.json:ro")
        with progress.step("a tiny model with random weights"):
            run_logged(
                *in_container(
                    parent / installation, image, "ro", *(o for m in mounts for o in ("--volume", m))
                ),
                "python3", "/write_model.py", "/config.json", "/model",
                log=folders.logs / "real-engine-model.log",
            )  # fmt: skip
        unfinished.rename(parent / name)
    return name
