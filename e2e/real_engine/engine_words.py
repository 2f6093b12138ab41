"""What a rank of the real engine says of itself in its log: that it is real, and with whom it computes."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORLD = re.compile(r"world_size=(\d+) rank=(\d+) .*backend=(\S+)")
_PARAMETERS = re.compile(r"Loading weights took [\d.]+ seconds")


@dataclass(frozen=True, slots=True)
class RankWords:
    """``world``: processes of the collective, ``rank``: this one, ``backend``: how they talk."""

    world: int
    rank: int
    backend: str
    loaded: bool


def rank_words(log: str) -> RankWords | None:
    """Read a log; None when the rank has not come as far as meeting the others."""
    world = _WORLD.search(log)
    if world is None:
        return None
    return RankWords(int(world[1]), int(world[2]), world[3], bool(_PARAMETERS.search(log)))
