"""Where the objects are: indexes for reading, a bounded history for watching.

A stored object is never changed in place: a write replaces it, so history and snapshots share it, and
readers get copies. One counter numbers all writes; it is every object's ``resourceVersion``.
"""

from __future__ import annotations

import asyncio
import marshal
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from moe_operator.api.names import LABEL_DEPLOYMENT
from moe_operator.runtime.kube import ApiError, Kind, Obj, WatchEvent
from moe_operator.sandbox.api_errors import expired
from moe_operator.sandbox.field_ownership import Managers
from moe_operator.sandbox.selectors import EVERY_FIELD, EVERY_LABEL, FieldSelector, LabelSelector

Key = tuple[str, str]  # namespace ("" = cluster), name
ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


class Stored:
    """One version of one object, with its decoded field owners."""

    __slots__ = ("_packed", "managers", "obj", "revision")

    def __init__(self, obj: Obj, managers: Managers) -> None:
        self.obj = obj
        self.managers = managers
        self.revision = int(obj["metadata"]["resourceVersion"])
        self._packed: bytes | None = None

    def __deepcopy__(self, memo: object) -> Stored:
        return self  # never changed in place, so copies of a whole store share it

    def copy(self) -> Obj:
        """A copy the caller may keep and change."""
        if self._packed is None:
            self._packed = marshal.dumps(self.obj)
        return cast("Obj", marshal.loads(self._packed))

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return key_of(self.obj)


def key_of(obj: Obj) -> Key:
    """Namespace and name of an object."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class Change:
    """One write as watchers see it."""

    revision: int
    type: ChangeType
    now: Stored
    before: Stored | None

    def __deepcopy__(self, memo: object) -> Change:
        return self


@dataclass(frozen=True, slots=True)
class Selection:
    """What a list or a watch asked for."""

    namespace: str | None = None
    labels: LabelSelector = EVERY_LABEL
    fields: FieldSelector = EVERY_FIELD

    def includes(self, stored: Stored | None) -> bool:
        """Whether the object is asked for."""
        if stored is None:
            return False
        meta = stored.obj["metadata"]
        return (
            (self.namespace is None or meta.get("namespace", "") == self.namespace)
            and self.labels.matches(meta.get("labels"))
            and self.fields.matches(stored.obj)
        )


class Table:
    """All objects of one kind and the changes that led to them."""

    def __init__(self, kind: Kind, history: int) -> None:
        self.kind = kind
        self._history = history
        self._by_namespace: dict[str, dict[str, Stored]] = defaultdict(dict)
        self._by_deployment: dict[str, set[Key]] = defaultdict(set)
        self.changes: list[Change] = []
        self.forgotten = 0  # revision up to which changes are gone
        self._watchers: set[asyncio.Event] = set()

    def find(self, key: Key) -> Stored | None:
        """The object, or None."""
        return self._by_namespace.get(key[0], {}).get(key[1])

    def select(self, selection: Selection) -> list[Stored]:
        """Objects in the order of namespace and name."""
        return [stored for stored in self._candidates(selection) if selection.includes(stored)]

    def _candidates(self, selection: Selection) -> Iterable[Stored]:
        deployment = selection.labels.only_value(LABEL_DEPLOYMENT)
        if deployment is not None:
            found = (self.find(key) for key in sorted(self._by_deployment.get(deployment, ())))
            return [stored for stored in found if stored is not None]
        name, namespace = selection.fields.only_value("metadata.name"), selection.namespace
        if name is not None and namespace is not None:
            stored = self.find((namespace, name))
            return [stored] if stored else []
        namespaces = sorted(self._by_namespace) if namespace is None else [namespace]
        return [
            stored for space in namespaces for _, stored in sorted(self._by_namespace.get(space, {}).items())
        ]

    def everything(self, namespace: str | None = None) -> list[Stored]:
        """All objects, of one namespace or of all."""
        return self.select(Selection(namespace))

    def count(self, namespace: str | None = None) -> int:
        """How many objects there are."""
        if namespace is not None:
            return len(self._by_namespace.get(namespace, {}))
        return sum(map(len, self._by_namespace.values()))

    def record(self, change: Change) -> None:
        """Take a change in, and wake the watchers."""
        key = change.now.key
        if change.before is not None:
            self._unindex(key, change.before)
        if change.type == "DELETED":
            del self._by_namespace[key[0]][key[1]]
        else:
            self._by_namespace[key[0]][key[1]] = change.now
            if deployment := _deployment(change.now):
                self._by_deployment[deployment].add(key)
        self.changes.append(change)
        if len(self.changes) > 2 * self._history:
            self.forget(keep=self._history)
        self.wake()

    def _unindex(self, key: Key, stored: Stored) -> None:
        if deployment := _deployment(stored):
            self._by_deployment[deployment].discard(key)
            if not self._by_deployment[deployment]:
                del self._by_deployment[deployment]

    def forget(self, keep: int = 0) -> None:
        """Drop all but the last ``keep`` changes, as etcd's compaction does."""
        cut = len(self.changes) - keep
        if cut > 0:
            self.forgotten = self.changes[cut - 1].revision
            del self.changes[:cut]

    def since(self, revision: int) -> list[Change]:
        """Changes after ``revision``; ApiError 410 when some of them are gone."""
        if revision < self.forgotten:
            raise expired(revision, self.forgotten)
        return self.changes[bisect_right(self.changes, revision, key=lambda change: change.revision) :]

    def wake(self) -> None:
        """Let every watcher look again."""
        for event in self._watchers:
            event.set()

    def join(self, event: asyncio.Event) -> None:
        """Be woken at every change."""
        self._watchers.add(event)

    def leave(self, event: asyncio.Event) -> None:
        """Be woken no more."""
        self._watchers.discard(event)


def _deployment(stored: Stored) -> str:
    return str(stored.obj["metadata"].get("labels", {}).get(LABEL_DEPLOYMENT, ""))


@dataclass(slots=True, eq=False)
class Watch:
    """A stream of changes to the selected objects; iterate it, and close it when done.

    ``start=None`` first yields every existing object as ADDED. The selection is applied to both sides of a
    change: an object that leaves it is DELETED for this watcher, one that enters it is ADDED.
    """

    table: Table
    selection: Selection
    revision: Callable[[], int]
    start: int | None
    initial_end: bool = False  # announce the end of the initial objects with a bookmark
    _closed: bool = False
    _bookmark_due: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def close(self) -> None:
        """End the stream after what it has already yielded."""
        self._closed = True
        self._wake.set()

    def bookmark(self) -> None:
        """Say the current resourceVersion once everything before it was delivered."""
        self._bookmark_due = True
        self._wake.set()

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self.events()

    async def events(self) -> AsyncGenerator[WatchEvent, None]:
        """The stream; close it (``aclosing``) when it is left early."""
        self.table.join(self._wake)
        try:
            position = self.revision() if self.start is None else self.start
            if self.start is None:
                for stored in self.table.select(self.selection):
                    yield WatchEvent("ADDED", stored.copy())
                if self.initial_end:
                    yield self._marker(position, {"k8s.io/initial-events-end": "true"})
            while not self._closed:
                self._wake.clear()
                upto = self.revision()
                for change in self.table.since(position):
                    position = change.revision
                    if event := self._seen(change):
                        yield event
                position = max(position, upto)
                if self._bookmark_due:
                    self._bookmark_due = False
                    yield self._marker(position)
                if not self._wake.is_set():
                    await self._wake.wait()
        finally:
            self.table.leave(self._wake)

    def _seen(self, change: Change) -> WatchEvent | None:
        was, now = self.selection.includes(change.before), self.selection.includes(change.now)
        if change.type == "DELETED":
            return WatchEvent("DELETED", change.now.copy()) if was else None
        if now:
            return WatchEvent("MODIFIED" if was else "ADDED", change.now.copy())
        return WatchEvent("DELETED", change.now.copy()) if was else None

    def _marker(self, revision: int, annotations: dict[str, str] | None = None) -> WatchEvent:
        meta: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        kind = self.table.kind
        return WatchEvent("BOOKMARK", {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta})


class Store:
    """Tables of all kinds, one counter, and who belongs to whom."""

    def __init__(self, history: int) -> None:
        self._history = history
        self.revision = 0
        self.tables: dict[tuple[str, str], Table] = {}
        self._by_uid: dict[str, tuple[Table, Key]] = {}
        self._dependents: dict[str, set[str]] = defaultdict(set)  # owner's uid -> uids

    def table(self, kind: Kind) -> Table:
        """The table of a kind, made on first use."""
        key = kind.group, kind.plural
        if key not in self.tables:
            self.tables[key] = Table(kind, self._history)
        return self.tables[key]

    def write(self, table: Table, type_: ChangeType, obj: Obj, managers: Managers) -> Stored:
        """Number and record one change; ``obj`` belongs to the store from here on."""
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        now = Stored(obj, managers)
        before = table.find(now.key)
        table.record(Change(self.revision, type_, now, before))
        self._reindex(table, before, None if type_ == "DELETED" else now)
        return now

    def _reindex(self, table: Table, before: Stored | None, now: Stored | None) -> None:
        if before is not None:
            uid = before.obj["metadata"]["uid"]
            del self._by_uid[uid]
            for owner in owner_uids(before.obj):
                self._dependents[owner].discard(uid)
                if not self._dependents[owner]:
                    del self._dependents[owner]
        if now is not None:
            uid = now.obj["metadata"]["uid"]
            self._by_uid[uid] = table, now.key
            for owner in owner_uids(now.obj):
                self._dependents[owner].add(uid)

    def by_uid(self, uid: str) -> tuple[Table, Stored] | None:
        """The object with that uid."""
        if (place := self._by_uid.get(uid)) is None:
            return None
        table, key = place
        stored = table.find(key)
        return (table, stored) if stored else None

    def dependents(self, owner_uid: str) -> Iterator[tuple[Table, Stored]]:
        """Objects that name the owner in their ownerReferences."""
        for uid in sorted(self._dependents.get(owner_uid, ())):
            if found := self.by_uid(uid):
                yield found


def owner_uids(obj: Obj) -> list[str]:
    """Uids in the ownerReferences."""
    return [reference["uid"] for reference in obj["metadata"].get("ownerReferences", ())]


def too_new(asked: int, current: int) -> ApiError:
    """504: the client saw a newer server than this one."""
    return ApiError(504, "Timeout", f"Too large resource version: {asked}, current: {current}")
