"""The in-memory API as the operator sees it: the ``Kube`` protocol straight on a server's state.

``MemoryKube(MemoryApi())`` answers without a network and without giving way to other tasks, thousands of
times a second; ``sandbox.rest`` serves the same state over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from moe_operator.api.names import FIELD_MANAGER
from moe_operator.runtime.kube import JsonPatch, Kind, Listing, Obj, WatchEvent
from moe_operator.sandbox.api_admission import Admission
from moe_operator.sandbox.api_server import MemoryApi

__all__ = ["Admission", "MemoryApi", "MemoryKube"]


class MemoryKube:
    """``Kube`` on a :class:`MemoryApi`; ``manager`` owns what is written without apply.

    With ``shared`` lists hold the server's own objects, as an informer's cache does: not to be changed.
    """

    def __init__(self, api: MemoryApi, *, manager: str = FIELD_MANAGER, shared: bool = False) -> None:
        self.api = api
        self._manager = manager
        self._shared = shared

    def sharing(self) -> MemoryKube:
        """The same client with shared lists."""
        return MemoryKube(self.api, manager=self._manager, shared=True)

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj:
        """Read one object."""
        return self.api.get(kind, namespace, name)

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        """Read all objects of a kind."""
        if self._shared:
            found = self.api.select(kind, namespace, labels=labels, fields=fields)
            return Listing(tuple(stored.obj for stored in found), str(self.api.store.revision))
        return self.api.list(kind, namespace, labels=labels, fields=fields)

    async def apply(self, obj: Obj, *, manager: str, force: bool = True) -> Obj:
        """Server-side apply."""
        return self.api.apply(obj, manager=manager, force=force)

    async def apply_status(self, obj: Obj, *, manager: str, force: bool = True) -> Obj:
        """Server-side apply of the status."""
        return self.api.apply(obj, manager=manager, force=force, subresource="status")

    async def create(self, obj: Obj) -> Obj:
        """POST."""
        return self.api.create(obj, manager=self._manager)

    async def replace(self, obj: Obj) -> Obj:
        """PUT."""
        return self.api.replace(obj, manager=self._manager)

    async def patch_json(self, kind: Kind, namespace: str | None, name: str, operations: JsonPatch) -> Obj:
        """JSON patch."""
        return self.api.patch(kind, namespace, name, operations, patch_type="json", manager=self._manager)

    async def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
    ) -> None:
        """DELETE with preconditions."""
        self.api.delete(
            kind,
            namespace,
            name,
            uid=uid,
            resource_version=resource_version,
            grace_seconds=grace_seconds,
            propagation=propagation,
        )

    def watch(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", resource_version: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """Changes after ``resource_version``."""
        return self.api.watch(kind, namespace, labels=labels, resource_version=resource_version).events()
