"""What a decision asks the executor to do, as values.

The executor runs actions in order, what is applied in a row together, and stops at the first error. An
*irreversible* action ends the pass: whatever should follow it is decided again from what is then true.
Objects are plain Kubernetes dicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """One existing object; uid and resource_version are preconditions when given."""

    kind: str  # as in the object's `kind`, e.g. "Pod"
    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""


def ref_of(obj: Obj) -> Ref:
    """The very object that was read: one of the same name that comes later is another."""
    meta = obj["metadata"]
    return Ref(obj["kind"], meta["namespace"], meta["name"], meta.get("uid", ""))


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child; ``object`` is the whole intent of our field manager."""

    object: Obj

    irreversible = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Labels and annotations on an existing object that we never apply again, such as a pod.

    ``object`` names it by uid and holds the whole set of our marks: what is not in it goes away.
    """

    object: Obj

    irreversible = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete objects that stand or fall together (the pods of one group); absent ones are fine."""

    refs: tuple[Ref, ...]
    why: str
    grace_seconds: int | None = None

    irreversible = True


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """What makes sure that a MoEDeployment does not go before its pods: done before any of them comes."""

    irreversible = False


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """The last write, when nothing is left that needs teardown."""

    irreversible = True


Action = Apply | Mark | Delete | AddFinalizer | RemoveFinalizer


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the MoEDeployment, one per change."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The whole answer to one snapshot.

    ``status`` is written first, before any action: facts that cannot be observed again (placements,
    rollout start, restart counts) are on record before the act they justify. None = leave it alone.
    ``wake_after`` is in seconds; None = only an event or the resync wakes us.
    """

    status: Obj | None
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    wake_after: float | None = None
    claims: bool = False  # takes what others may want: GPUs, a place at a source, a node's store
