"""From a recipe to an image that the Docker daemon holds."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.command import attempt, run, run_logged
from e2e.cluster.containers import has_image
from e2e.cluster.host import CannotContinue
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.images.recipes import REPOSITORY, Recipe
from e2e.images.wheels import Target, build_project, download

_PYTHON = "import platform, sys; print('%d.%d' % sys.version_info[:2], platform.machine())"


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the daemon; ``size`` in bytes, uncompressed."""

    reference: str
    size: int


def build(recipe: Recipe, base: str, folders: Folders, progress: Progress) -> Image:
    """The image of ``recipe`` on ``base``, built unless the daemon holds it already."""
    _ensure_base(base, progress)
    reference = recipe.reference(_inspect(base, "{{.Id}}"))
    if not has_image(reference):
        _build(recipe, base, reference, folders, progress)
    return Image(reference, int(_inspect(reference, "{{.Size}}")))


def _build(recipe: Recipe, base: str, reference: str, folders: Folders, progress: Progress) -> None:
    context = folders.work / recipe.image
    log = folders.logs / f"image-{recipe.image}.log"
    shutil.rmtree(context, ignore_errors=True)
    (context / "wheels").mkdir(parents=True)
    if recipe.lock:
        with progress.step(f"wheels for {recipe.image}"):
            download(recipe.lock, recipe.only, _python_of(base), context / "wheels", log)
    if recipe.project:
        build_project(REPOSITORY, context / "wheels", log)
    for source in recipe.sources:
        _copy(REPOSITORY / source, context / source)
    with progress.step(f"building {reference}"):
        run_logged(
            "docker", "build", *_builder_options(), "--build-arg", f"BASE={base}", "--tag", reference,
            "--file", recipe.dockerfile, context,
            log=log, env=_builder_environment(),
        )  # fmt: skip
    shutil.rmtree(context)


def _ensure_base(base: str, progress: Progress) -> None:
    """Raises CannotContinue without a daemon, CommandFailed when the base can neither be found nor pulled."""
    if not attempt("docker", "version").ok:
        raise CannotContinue("no Docker daemon answers; `python -m e2e.cluster up` starts one where it may")
    if not has_image(base):
        with progress.step(f"pulling {base}"):
            run("docker", "pull", "--quiet", base)


def _inspect(reference: str, template: str) -> str:
    return run("docker", "image", "inspect", "--format", template, reference).strip()


def _python_of(base: str) -> Target:
    return Target(*run("docker", "run", "--rm", "--network=none", base, "python3", "-c", _PYTHON).split())


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


def _has_buildx() -> bool:
    return attempt("docker", "buildx", "version").ok


def _builder_environment() -> dict[str, str]:
    """Without the buildx plugin only the classic builder is left; the Dockerfiles ask for nothing newer."""
    return {} if _has_buildx() else {"DOCKER_BUILDKIT": "0"}


def _builder_options() -> tuple[str, ...]:
    """An image for one machine and nothing beside it, which is what can be loaded into kind's nodes."""
    return ("--provenance=false",) if _has_buildx() else ()
