"""What becomes of an object when its owners go: the decisions of the garbage collector.

An owner is *gone* when nothing with its uid exists, *waiting* when it is being deleted in the foreground.
An object lives while one owner is neither; then references to the others are dropped. Otherwise it is
deleted, in the foreground when an owner waits and the object itself has dependents, so that an order of
teardown holds all the way down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from moe_operator.runtime.kube import Obj

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object."""

    propagation: Propagation


@dataclass(frozen=True, slots=True)
class DropReferences:
    """Keep the object, without its references to these owners."""

    uids: frozenset[str]


Verdict = Delete | DropReferences | None


def judge(obj: Obj, owner_of: Callable[[str], Obj | None], *, has_dependents: bool) -> Verdict:
    """What to do with ``obj``; ``owner_of`` finds a living object by uid."""
    meta = obj["metadata"]
    references = meta.get("ownerReferences", ())
    if not references or "deletionTimestamp" in meta:
        return None
    lost, waiting, solid = set(), set(), False
    for reference in references:
        owner = owner_of(reference["uid"])
        if owner is None or not _same_place(owner, obj):
            lost.add(reference["uid"])
        elif deleting_in_foreground(owner):
            waiting.add(reference["uid"])
        else:
            solid = True
    if solid:
        return DropReferences(frozenset(lost | waiting)) if lost or waiting else None
    return Delete(_propagation(meta.get("finalizers", ()), waited_for=bool(waiting), parent=has_dependents))


def _propagation(finalizers: Iterable[str], *, waited_for: bool, parent: bool) -> Propagation:
    if ORPHAN in finalizers:
        return "Orphan"
    if FOREGROUND in finalizers or (waited_for and parent):
        return "Foreground"
    return "Background"


def _same_place(owner: Obj, obj: Obj) -> bool:
    """A namespaced owner only counts inside its namespace."""
    namespace = owner["metadata"].get("namespace")
    return namespace is None or namespace == obj["metadata"].get("namespace")


def deleting_in_foreground(obj: Obj) -> bool:
    """Whether the object waits for its dependents."""
    meta = obj["metadata"]
    return "deletionTimestamp" in meta and FOREGROUND in meta.get("finalizers", ())


def blocks(dependent: Obj, owner_uid: str) -> bool:
    """Whether the dependent holds up the foreground deletion of that owner."""
    return any(
        reference["uid"] == owner_uid and reference.get("blockOwnerDeletion", False)
        for reference in dependent["metadata"].get("ownerReferences", ())
    )


def without_references(obj: Obj, uids: Iterable[str]) -> Obj:
    """``obj`` without its references to ``uids``."""
    gone = set(uids)
    left = [ref for ref in obj["metadata"].get("ownerReferences", ()) if ref["uid"] not in gone]
    meta = {name: value for name, value in obj["metadata"].items() if name != "ownerReferences"}
    return {**obj, "metadata": {**meta, "ownerReferences": left} if left else meta}


def without_finalizer(obj: Obj, finalizer: str) -> Obj:
    """``obj`` without one finalizer."""
    left = [name for name in obj["metadata"].get("finalizers", ()) if name != finalizer]
    meta = {name: value for name, value in obj["metadata"].items() if name != "finalizers"}
    return {**obj, "metadata": {**meta, "finalizers": left} if left else meta}
