"""What ``up`` does with the cluster it finds.

Every rough morning is a row of facts: containers in whatever state the machine's end left them, a record
of what they were made from, an API server that answers or not. The order of the rules matters: what cannot
be repaired is looked at first, so that ``REVIVE`` is only said of a whole cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

RUNNING, PAUSED, EXITED = "running", "paused", "exited"
REPAIRABLE = frozenset({RUNNING, PAUSED, EXITED, "restarting"})


class Course(StrEnum):
    """What to do."""

    CREATE = "create"
    REUSE = "reuse"
    REVIVE = "revive"
    RECREATE = "recreate"


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster as found. ``ready`` is None when the API server does not answer."""

    containers: Mapping[str, str] = field(default_factory=dict)  # name → Docker's state
    recorded: str | None = None  # digest the containers were made from
    ready: Mapping[str, bool] | None = None  # node → Ready


@dataclass(frozen=True, slots=True)
class Verdict:
    """The course, why, and the containers that must be set going first."""

    course: Course
    because: str
    start: tuple[str, ...] = ()
    unpause: tuple[str, ...] = ()


def judge(wanted: str, size: int, seen: Seen) -> Verdict:
    """Decide from the digest and number of nodes that are wanted, and what was seen."""
    states = seen.containers
    broken = sorted(name for name, state in states.items() if state not in REPAIRABLE)
    if not states:
        return Verdict(Course.CREATE, "there is no cluster")
    if broken:
        return Verdict(Course.RECREATE, f"half removed: {', '.join(f'{n} is {states[n]}' for n in broken)}")
    if seen.recorded is None:
        return Verdict(Course.RECREATE, "its creation was never finished")
    if seen.recorded != wanted:
        return Verdict(Course.RECREATE, "it was made from another configuration")
    if len(states) != size:
        return Verdict(Course.RECREATE, f"{len(states)} of {size} nodes are left")
    start = tuple(sorted(name for name, state in states.items() if state == EXITED))
    unpause = tuple(sorted(name for name, state in states.items() if state == PAUSED))
    if start or unpause:
        return Verdict(Course.REVIVE, f"stopped: {', '.join((*start, *unpause))}", start, unpause)
    if seen.ready is None:
        return Verdict(Course.REVIVE, "its API server does not answer yet")
    waiting = sorted(name for name in states if not seen.ready.get(name))
    if waiting:
        return Verdict(Course.REVIVE, f"not Ready: {', '.join(waiting)}")
    return Verdict(Course.REUSE, "every node is Ready")
