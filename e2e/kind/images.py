"""The project's images in the nodes: built from the working tree, loaded where they are missing.

A tag holds the hash of what is in the image, so a node that has the tag has the image and nothing is
compared but names. An engine stub that has to answer as another version is the same image with that version
set, under a tag of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from e2e.cluster import containers, lifecycle
from e2e.cluster.command import run
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.images.build import build
from e2e.images.recipes import RECIPES

_LIST = ("ctr", "--namespace", "k8s.io", "images", "ls", "-q")


@dataclass(frozen=True, slots=True)
class Images:
    """References as pods name them."""

    operator: str
    envoy: str
    stub: str

    def stub_of(self, version: str) -> str:
        """Reference of a stub that answers as ``version`` of its engine."""
        name, _, tag = self.stub.rpartition(":")
        return f"{name}:{version}-{tag}"


def build_all(base: str, folders: Folders, progress: Progress) -> Images:
    """Build what the daemon does not hold yet. Raises CommandFailed."""
    built = {name: build(recipe, base, folders, progress) for name, recipe in RECIPES.items()}
    for image in built.values():
        progress.say(f"image {image.reference}: {image.size / 1e6:.0f} MB")
    return Images(**{name: image.reference for name, image in built.items()})


def build_stub_of(images: Images, version: str) -> str:
    """Build the stub that answers as ``version``; its reference."""
    lines = (f"FROM {images.stub}", f"ENV STUB_VLLM_VERSION={version} STUB_SGLANG_VERSION={version}", "")
    run("docker", "build", "--quiet", "--tag", images.stub_of(version), "-", stdin="\n".join(lines))
    return images.stub_of(version)


def load_missing(references: Sequence[str], folders: Folders, progress: Progress) -> None:
    """Copy images into those workers that lack them. Raises CommandFailed."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for node in sorted(name for name in containers.states() if "worker" in name):
        # A container runtime puts a registry and a folder before a bare name.
        held = {name.rpartition("/")[2] for name in run("docker", "exec", node, *_LIST).split()}
        absent = tuple(r for r in references if r not in held)
        lacking.setdefault(absent, []).append(node)
    for absent, nodes in lacking.items():
        if absent:
            lifecycle.load(absent, tuple(nodes), folders, progress)
