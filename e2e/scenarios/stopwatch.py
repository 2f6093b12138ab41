"""How long each part of a story took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stopwatch:
    """Consecutive parts; each ends where the next begins."""

    clock: Callable[[], float] = time.monotonic
    parts: list[tuple[str, float]] = field(default_factory=list)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def part(self, name: str) -> float:
        """The part that ends now, in seconds."""
        now = self.clock()
        took, self._since = now - self._since, now
        self.parts.append((name, took))
        return took

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(seconds for _, seconds in self.parts)
