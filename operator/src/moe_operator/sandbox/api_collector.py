"""The controllers inside the server: garbage, namespaces and CRDs that are being deleted.

Each write leaves *suspects*: dependents of what vanished, owners that wait for what vanished, the
namespace or CRD that may be empty now. A run looks at every suspect once, and at those its own writes add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moe_operator.runtime import kube
from moe_operator.runtime.kube import Obj
from moe_operator.sandbox import garbage
from moe_operator.sandbox.api_resources import CRD_FINALIZER, Resource, resource_of_crd
from moe_operator.sandbox.api_store import Stored, Table, owner_uids

if TYPE_CHECKING:
    from moe_operator.sandbox.api_server import MemoryApi


class Collector:
    """Works off suspects, by uid, each once however often it was noticed."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self._suspects: dict[str, None] = {}  # an ordered set
        self._running = False

    def noticed(self, resource: Resource, change: str, stored: Stored) -> None:
        """Remember whom a write makes suspect."""
        obj = stored.obj
        meta, store = obj["metadata"], self._api.store
        if change == "DELETED":
            self._suspect(
                *(dependent.obj["metadata"]["uid"] for _, dependent in store.dependents(meta["uid"]))
            )
            self._suspect(*owner_uids(obj))
            self._suspect_containers(resource, obj)
            return
        if "ownerReferences" in meta or "deletionTimestamp" in meta:
            self._suspect(meta["uid"])

    def _suspect(self, *uids: str) -> None:
        self._suspects.update(dict.fromkeys(uids))

    def _suspect_containers(self, resource: Resource, obj: Obj) -> None:
        """A namespace or CRD that is being deleted may have lost its last object."""
        tables = self._api.store.table(kube.NAMESPACE), self._api.store.table(kube.CRD)
        names = obj["metadata"].get("namespace", ""), f"{resource.kind.plural}.{resource.kind.group}"
        for table, name in zip(tables, names, strict=True):
            container = table.find(("", name))
            if container and "deletionTimestamp" in container.obj["metadata"]:
                self._suspect(container.obj["metadata"]["uid"])

    def run(self) -> None:
        """Until nothing is suspect. Writes of a run do not start another one."""
        if self._running:
            return
        self._running = True
        try:
            while self._suspects:
                uid = next(iter(self._suspects))
                del self._suspects[uid]
                if found := self._api.store.by_uid(uid):
                    self._look(*found)
        finally:
            self._running = False

    def _look(self, table: Table, stored: Stored) -> None:
        if "deletionTimestamp" in stored.obj["metadata"]:
            self._advance_deletion(table, stored)
        else:
            self._collect(table, stored)

    def _collect(self, table: Table, stored: Stored) -> None:
        uid = stored.obj["metadata"]["uid"]
        parent = next(self._api.store.dependents(uid), None) is not None
        match garbage.judge(stored.obj, self._living, has_dependents=parent):
            case garbage.Delete(propagation):
                namespace, name = stored.key
                self._api.delete(table.kind, namespace, name, uid=uid, propagation=propagation)
            case garbage.DropReferences(uids):
                self._api.rewrite(stored, garbage.without_references(stored.copy(), uids))

    def _living(self, uid: str) -> Obj | None:
        found = self._api.store.by_uid(uid)
        return found[1].obj if found else None

    def _advance_deletion(self, table: Table, stored: Stored) -> None:
        finalizers = stored.obj["metadata"].get("finalizers", ())
        if garbage.ORPHAN in finalizers:
            self._orphan(stored)
        elif garbage.FOREGROUND in finalizers:
            self._delete_dependents_first(stored)
        elif table.kind == kube.NAMESPACE:
            self._empty_namespace(stored)
        elif table.kind == kube.CRD and CRD_FINALIZER in finalizers:
            self._end_custom_objects(stored)

    def _orphan(self, stored: Stored) -> None:
        uid = stored.obj["metadata"]["uid"]
        for _, dependent in list(self._api.store.dependents(uid)):
            self._api.rewrite(dependent, garbage.without_references(dependent.copy(), [uid]))
        self._api.rewrite(stored, garbage.without_finalizer(stored.copy(), garbage.ORPHAN))

    def _delete_dependents_first(self, stored: Stored) -> None:
        uid = stored.obj["metadata"]["uid"]
        dependents = [dependent for _, dependent in self._api.store.dependents(uid)]
        if not any(garbage.blocks(dependent.obj, uid) for dependent in dependents):
            self._api.rewrite(stored, garbage.without_finalizer(stored.copy(), garbage.FOREGROUND))
            return
        self._suspect(
            *(
                dependent.obj["metadata"]["uid"]
                for dependent in dependents
                if "deletionTimestamp" not in dependent.obj["metadata"]
            )
        )

    def _empty_namespace(self, namespace: Stored) -> None:
        name = namespace.obj["metadata"]["name"]
        tables = [table for table in list(self._api.store.tables.values()) if table.count(name)]
        for table in tables:
            self._delete_all(table, name)
        if namespace.obj["spec"].get("finalizers") and not any(table.count(name) for table in tables):
            self._api.rewrite(namespace, {**namespace.copy(), "spec": {}})

    def _end_custom_objects(self, crd: Stored) -> None:
        table = self._api.store.table(resource_of_crd(crd.obj).kind)
        self._delete_all(table, None)
        if not table.count():
            self._api.rewrite(crd, garbage.without_finalizer(crd.copy(), CRD_FINALIZER))

    def _delete_all(self, table: Table, namespace: str | None) -> None:
        for stored in table.everything(namespace):
            if "deletionTimestamp" not in stored.obj["metadata"]:
                self._api.delete(table.kind, stored.key[0], stored.key[1])
