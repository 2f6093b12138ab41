"""Where the nodes' image comes from: pulled where a registry answers, else built here.

What is already on the machine is preferred to what must be fetched or built, so a cluster can be made
again without the network that made it first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

# The node image that kind 0.33.0 was released with.
PINNED_IMAGE = "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
PINNED_KUBERNETES = "v1.37.0"


class Source(StrEnum):
    """The two ways to a node image."""

    REGISTRY = "registry"
    BUILD = "build"


@dataclass(frozen=True, slots=True)
class Choice:
    """The way taken, and why in words for the user."""

    source: Source
    because: str


def choose(
    asked: Source | None,
    *,
    pinned_is_here: bool,
    built_is_here: bool,
    registry_answers: Callable[[], bool],
) -> Choice:
    """Pick a source; the registry is asked only when nothing else decides."""
    if asked:
        return Choice(asked, "it was asked for")
    if pinned_is_here:
        return Choice(Source.REGISTRY, "the pinned image is on this machine")
    if built_is_here:
        return Choice(Source.BUILD, "an image built from these inputs is on this machine")
    if registry_answers():
        return Choice(Source.REGISTRY, "an image registry answers")
    return Choice(Source.BUILD, "no image registry can be reached")
