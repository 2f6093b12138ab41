"""Who waits, in which order, and who is turned away.

Invariants: at most ``max_waiting`` requests and ``MAX_HELD_BYTES`` of bodies wait; they are called in the
order in which they reached the gateway, also those that were called once and came back; nobody waits longer
than ``hold_seconds`` since then, all visits together. A room of no places is closed, which is not full: who
comes then has waited for as long as anybody may. Pure but for the futures that carry a verdict.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

MAX_HELD_BYTES = 256 << 20  # bodies that Envoy keeps for those who wait


class Verdict(Enum):
    """What becomes of a request."""

    CALLED = "called"  # an engine can take it
    EXPIRED = "expired"  # it has waited as long as it may
    FULL = "full"  # there was no place for it
    LEFT = "left"  # its client went away


@dataclass(frozen=True, slots=True)
class Rules:
    """The intent's part; seconds."""

    max_waiting: int
    hold_seconds: float


@dataclass(order=True, slots=True)
class Place:
    """One request that waits."""

    received: float  # Unix seconds, when it reached the gateway
    number: int
    size: int = field(compare=False)  # bytes of its body
    verdict: asyncio.Future[Verdict] = field(compare=False)


class WaitingQueue:
    """The places of one gateway pod; belongs to one event loop."""

    def __init__(self) -> None:
        self._places: list[Place] = []  # a heap; those that left stay in it until they come up
        self._taken = 0
        self._bytes = 0
        self._entered = 0
        self.verdicts: Counter[Verdict] = Counter()

    def __len__(self) -> int:
        return self._taken

    def enter(self, received: float, size: int, rules: Rules, now: float) -> Place | Verdict:
        """A place, or why there is none."""
        if not rules.max_waiting or now >= received + rules.hold_seconds:
            return self._count(Verdict.EXPIRED)
        if self._taken >= rules.max_waiting or self._bytes + size > MAX_HELD_BYTES:
            return self._count(Verdict.FULL)
        self._entered += 1
        place = Place(received, self._entered, size, asyncio.get_running_loop().create_future())
        self._forget_those_who_left()
        heapq.heappush(self._places, place)
        self._taken += 1
        self._bytes += size
        return place

    def leave(self, place: Place, verdict: Verdict) -> None:
        """Free a place; the first verdict counts."""
        if place.verdict.done():
            return
        self._taken -= 1
        self._bytes -= place.size
        self._count(verdict)
        place.verdict.set_result(verdict)

    def call_next(self) -> bool:
        """Call the one who came first; False when nobody waits."""
        while self._places:
            place = heapq.heappop(self._places)
            if not place.verdict.done():
                self.leave(place, Verdict.CALLED)
                return True
        return False

    def _forget_those_who_left(self) -> None:
        if len(self._places) > 2 * self._taken + 64:
            self._places = [place for place in self._places if not place.verdict.done()]
            heapq.heapify(self._places)

    def _count(self, verdict: Verdict) -> Verdict:
        self.verdicts[verdict] += 1
        return verdict
