"""A Kubernetes API server's semantics in memory.

Every write goes one way: read what is stored → isolate the subresource → default and validate → see
whether anything changed → number it, record who owns what, tell the watchers. Rules kept from the real
server: one growing resourceVersion; a write that changes nothing is not a write; generation follows
everything but metadata and status; a deleted object stays while it has finalizers (and a bound pod until
its kubelet lets go); nothing is created in a namespace that is absent or being deleted.

All methods are synchronous and return copies; one event loop (or one thread) uses an instance at a time.
"""

from __future__ import annotations

import builtins
import hashlib
import ipaddress
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from moe_operator.api import structural
from moe_operator.runtime import kube
from moe_operator.runtime.kube import ApiError, Kind, Listing, Obj
from moe_operator.sandbox import api_errors as errors
from moe_operator.sandbox import field_ownership, garbage, patches, selectors
from moe_operator.sandbox.api_admission import Admission, Gate, configured, received
from moe_operator.sandbox.api_catalogue import Catalogue
from moe_operator.sandbox.api_collector import Collector
from moe_operator.sandbox.api_lifecycle import (
    desired,
    first_metadata,
    isolated,
    marked_for_deletion,
    released,
    without_managed_fields,
)
from moe_operator.sandbox.api_preconditions import check_absent, check_manager, check_patch, check_put
from moe_operator.sandbox.api_resources import Resource, established
from moe_operator.sandbox.api_store import Selection, Store, Stored, Watch, too_new
from moe_operator.sandbox.field_ownership import Fields, Manager, Managers, Owned, dated, dotted, fields_of
from moe_operator.sandbox.wire import rfc3339

PatchType = Literal["json", "merge", "strategic"]
_FIRST_NAMESPACES = ("default", "kube-system")


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes, through which door."""

    manager: str
    subresource: str = ""

    def owner(self, operation: Literal["Apply", "Update"]) -> Manager:
        """The entry of managedFields that this writer has."""
        return Manager(self.manager, operation, self.subresource)


def _random_uid() -> str:
    return str(uuid.uuid4())


def _addresses_in_turn() -> Callable[[Obj], str]:
    addresses = ipaddress.ip_network("10.96.0.0/16").hosts()
    return lambda service: str(next(addresses))


class MemoryApi:
    """The server.

    Times come from ``clock`` (epoch seconds), uids and generated names from ``new_uid``, a new Service's
    address from ``service_address``; ``history`` changes of each kind can be watched from the past.

    With ``auto_collect`` every write that leaves garbage is followed by :meth:`collect_garbage`; without,
    garbage waits for the call, as it waits for the controller in a cluster.
    """

    def __init__(
        self,
        *,
        admission: Admission = structural,
        clock: Callable[[], float] = time.time,
        new_uid: Callable[[], str] = _random_uid,
        service_address: Callable[[Obj], str] | None = None,
        history: int = 10_000,
        auto_collect: bool = True,
    ) -> None:
        self.gate = Gate(admission)
        self.catalogue = Catalogue()
        self._clock = clock
        self._new_uid = new_uid
        self._service_address = service_address or _addresses_in_turn()
        self._auto_collect = auto_collect
        self.store = Store(history)
        self._collector = Collector(self)
        for name in _FIRST_NAMESPACES:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def now(self) -> str:
        """The server's time (RFC 3339)."""
        return rfc3339(self._clock())

    # Reading

    def get(self, kind: Kind, namespace: str | None, name: str) -> Obj:
        """One object; ApiError 404."""
        return self.stored(self.catalogue.of_kind(kind), namespace, name).copy()

    def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        """Objects of a kind, in order of namespace and name."""
        found = self.select(kind, namespace, labels=labels, fields=fields)
        return Listing(tuple(stored.copy() for stored in found), str(self.store.revision))

    def select(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> builtins.list[Stored]:
        """Like :meth:`list`, without copying; the objects may not be changed."""
        table = self.store.table(self.catalogue.of_kind(kind).kind)
        return table.select(_selection(kind, namespace, labels, fields))

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        initial_end: bool = False,
    ) -> Watch:
        """Changes after ``resource_version`` ("" or "0": existing objects first). Iterating it raises
        ApiError 410 when those changes are no longer known.
        """
        table = self.store.table(self.catalogue.of_kind(kind).kind)
        start = None if resource_version in ("", "0") else _revision(resource_version)
        if start is not None and start > self.store.revision:
            raise too_new(start, self.store.revision)
        selection = _selection(kind, namespace, labels, fields)
        return Watch(table, selection, lambda: self.store.revision, start, initial_end)

    def compact(self) -> None:
        """Forget the history: watches from the past are answered with 410 from now on."""
        for table in self.store.tables.values():
            table.forget()

    def stored(self, resource: Resource, namespace: str | None, name: str) -> Stored:
        """The stored object; ApiError 404."""
        found = self.store.table(resource.kind).find((namespace or "", name))
        if found is None:
            raise errors.not_found(resource.kind, name)
        return found

    # Writing

    def create(self, obj: Obj, *, manager: str = "unknown") -> Obj:
        """POST. ApiError 409 AlreadyExists, 404/403 for the namespace, 422 for the content."""
        resource, new = received(self.catalogue, obj)
        if "resourceVersion" in new["metadata"]:
            raise ApiError(500, errors.UNKNOWN, "resourceVersion should not be set on objects to be created")
        return self._create(resource, new, Writer(manager), operation="Update")

    def replace(self, obj: Obj, *, manager: str = "unknown", subresource: str = "") -> Obj:
        """PUT. The object's resourceVersion and uid, when given, are preconditions."""
        resource, new = received(self.catalogue, obj)
        stored = self._addressed(resource, new)
        if resource.custom and "resourceVersion" not in new["metadata"]:
            problem = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
            raise errors.invalid(resource.kind, new["metadata"]["name"], [problem])
        return self._update(resource, stored, new, Writer(manager, subresource))

    def patch(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        patch: Any,
        *,
        patch_type: PatchType,
        manager: str = "unknown",
        subresource: str = "",
    ) -> Obj:
        """PATCH of the three kinds that are not apply; ApiError 422 when it does not fit."""
        resource = self.catalogue.of_kind(kind)
        stored = self.stored(resource, namespace, name)
        if patch_type == "strategic" and resource.custom:
            raise ApiError(
                415, "UnsupportedMediaType", "strategic merge patch is not supported for custom resources"
            )
        try:
            new = _PATCHES[patch_type](resource, stored.copy(), patch)
        except patches.PatchError as error:
            raise errors.invalid(kind, name, [f"the server rejected our request: {error}"]) from error
        _, new = received(self.catalogue, new)
        check_patch(resource, stored.obj, new, subresource)
        return self._update(resource, stored, new, Writer(manager, subresource))

    def apply(self, obj: Obj, *, manager: str, force: bool = True, subresource: str = "") -> Obj:
        """Server-side apply; ApiError 409 names the managers in the way when not forced."""
        check_manager(manager)
        resource, config = configured(self.catalogue, obj)
        if "managedFields" in config["metadata"]:
            raise errors.bad_request("metadata.managedFields must be nil")
        writer = Writer(manager, subresource)
        config = self.gate.applicable(resource, config, subresource)
        stored = self.store.table(resource.kind).find(self._key(resource, config))
        if stored is None:
            return self._apply_new(resource, config, writer)
        check_patch(resource, stored.obj, config, subresource)
        return self._apply_over(resource, stored, config, writer, force=force)

    def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: garbage.Propagation = "Background",
    ) -> Obj:
        """DELETE; returns the last state. ApiError 404, or 409 when a precondition does not hold."""
        resource = self.catalogue.of_kind(kind)
        stored = self.stored(resource, namespace, name)
        meta = stored.obj["metadata"]
        for field, wanted in (("uid", uid), ("resourceVersion", resource_version)):
            if wanted is not None and wanted != meta[field]:
                raise errors.precondition(kind, name, field, wanted, meta[field])
        new = marked_for_deletion(resource, stored.obj, self._clock(), grace_seconds, propagation)
        if new != stored.obj:
            stored = self._commit(resource, stored, new, stored.managers)
            self._settle()
        return stored.copy()

    def bind(self, namespace: str, name: str, node: str) -> Obj:
        """Bind a pod to a node, as a scheduler does; ApiError 409 when it is bound already."""
        resource = self.catalogue.of_kind(kube.POD)
        stored = self.stored(resource, namespace, name)
        if stored.obj["spec"].get("nodeName"):
            raise errors.conflict(kube.POD, name, f"pod {name} is already assigned to node")
        if "deletionTimestamp" in stored.obj["metadata"]:
            raise errors.conflict(
                kube.POD, name, f"pod {name} is being deleted, cannot be assigned to a host"
            )
        new = stored.copy()
        new["spec"]["nodeName"] = node
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.now()}
        others = [c for c in new["status"].get("conditions", ()) if c["type"] != "PodScheduled"]
        new["status"]["conditions"] = [*others, scheduled]
        return self.rewrite(stored, new, manager="kube-scheduler").copy()

    def collect_garbage(self) -> None:
        """Do everything the garbage, namespace and CRD controllers would have done by now."""
        self._collector.run()

    def rewrite(self, stored: Stored, new: Obj, manager: str = "kube-controller-manager") -> Stored:
        """For the controllers inside the server: store ``new`` as it is, without admission."""
        resource = self.catalogue.of_object(new)
        old, new = without_managed_fields(stored.obj), without_managed_fields(new)
        owner = Writer(manager).owner("Update")
        fields = field_ownership.after_update(resource.shape, old, new, stored.managers, owner)
        return self._commit(resource, stored, new, dated(fields, stored.managers, self.now()))

    # The way of a write

    def _key(self, resource: Resource, obj: Obj) -> tuple[str, str]:
        meta = obj["metadata"]
        return meta["namespace"] if resource.kind.namespaced else "", meta.get("name", "")

    def _addressed(self, resource: Resource, new: Obj) -> Stored:
        stored = self.stored(resource, *self._key(resource, new))
        check_put(resource, stored.obj, new)
        return stored

    def _create(
        self, resource: Resource, new: Obj, writer: Writer, operation: Literal["Apply", "Update"]
    ) -> Obj:
        meta = new["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + hashlib.sha256(self._new_uid().encode()).hexdigest()[:5]
        if not meta.get("name"):
            missing = "metadata.name: Required value: name or generateName is required"
            raise errors.invalid(resource.kind, "", [missing])
        namespace, name = self._key(resource, new)
        self._check_namespace(resource, namespace, name)
        if self.store.table(resource.kind).find((namespace, name)):
            raise errors.already_exists(resource.kind, name)
        applied = field_ownership.owned_fields(resource.shape, new) if operation == "Apply" else None
        new["metadata"] = first_metadata(resource, meta, namespace, self._new_uid(), self.now())
        if resource.has_status and not resource.created_with_status:
            new.pop("status", None)
        new = self.gate.admit(resource, new, None)
        self._allocate(resource, new)
        fields = applied if applied is not None else field_ownership.owned_fields(resource.shape, new)
        managers = {writer.owner(operation): Owned(fields, self.now())}
        stored = self._record(resource, "ADDED", new, managers)
        self._settle()
        return stored.copy()

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.kind.namespaced:
            return
        home = self.store.table(kube.NAMESPACE).find(("", namespace))
        if home is None:
            raise errors.not_found(kube.NAMESPACE, namespace)
        if "deletionTimestamp" in home.obj["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise errors.forbidden(resource.kind, name, why)

    def _allocate(self, resource: Resource, new: Obj) -> None:
        if resource.kind == kube.SERVICE and new["spec"]["type"] != "ExternalName":
            address = new["spec"].get("clusterIP") or self._service_address(new)
            new["spec"] |= {"clusterIP": address, "clusterIPs": [address]}

    def _apply_new(self, resource: Resource, config: Obj, writer: Writer) -> Obj:
        name = config["metadata"].get("name", "")
        if writer.subresource:
            raise errors.not_found(resource.kind, name)
        check_absent(resource, config)
        return self._create(resource, config, writer, operation="Apply")

    def _apply_over(
        self, resource: Resource, stored: Stored, config: Obj, writer: Writer, *, force: bool
    ) -> Obj:
        live = without_managed_fields(stored.obj)
        owner = writer.owner("Apply")
        result = field_ownership.apply(resource.shape, live, stored.managers, config, owner, force=force)
        if isinstance(result, tuple):
            raise errors.clash([(c.manager.name, [dotted(path) for path in c.paths]) for c in result])
        if result.obj is live and result.fields == fields_of(stored.managers):
            return stored.copy()
        return self._store(resource, stored, result.obj, writer.subresource, result.fields)

    def _update(self, resource: Resource, stored: Stored, new: Obj, writer: Writer) -> Obj:
        owner = writer.owner("Update")

        def fields(admitted: Obj) -> Mapping[Manager, Fields]:
            live = without_managed_fields(stored.obj)
            return field_ownership.after_update(resource.shape, live, admitted, stored.managers, owner)

        return self._store(resource, stored, new, writer.subresource, fields)

    def _store(
        self,
        resource: Resource,
        stored: Stored,
        new: Obj,
        subresource: str,
        fields: Mapping[Manager, Fields] | Callable[[Obj], Mapping[Manager, Fields]],
    ) -> Obj:
        old = stored.obj
        new = self.gate.admit(resource, isolated(resource, old, new, subresource), old)
        same = new == without_managed_fields(old)
        if callable(fields):
            fields = fields_of(stored.managers) if same else fields(new)
        if same and fields == fields_of(stored.managers):
            return stored.copy()
        stored = self._commit(resource, stored, new, dated(fields, stored.managers, self.now()))
        self._settle()
        return stored.copy()

    def _commit(self, resource: Resource, stored: Stored, new: Obj, managers: Managers) -> Stored:
        """Record the new state: a change, or the end of an object nothing holds any more."""
        new = {**new, "metadata": dict(new["metadata"])}
        if resource.counts_generation and desired(resource, new) != desired(resource, stored.obj):
            new["metadata"]["generation"] = stored.obj["metadata"].get("generation", 0) + 1
        return self._record(resource, "DELETED" if released(resource, new) else "MODIFIED", new, managers)

    def _record(
        self, resource: Resource, type_: Literal["ADDED", "MODIFIED", "DELETED"], new: Obj, managers: Managers
    ) -> Stored:
        new["metadata"]["managedFields"] = field_ownership.managed_fields(managers, resource.kind.api_version)
        table = self.store.table(resource.kind)
        stored = self.store.write(table, type_, new, managers)
        if resource.kind == kube.CRD:
            stored = self._follow_crd(stored, ended=type_ == "DELETED")
        self._collector.noticed(resource, type_, stored)
        return stored

    def _follow_crd(self, crd: Stored, *, ended: bool) -> Stored:
        if ended:
            self.catalogue.retire(crd.obj)
            return crd
        self.catalogue.serve(crd.obj)
        if "status" in crd.obj:
            return crd
        return self.rewrite(crd, {**crd.copy(), "status": established(crd.obj, self.now())})

    def _settle(self) -> None:
        if self._auto_collect:
            self._collector.run()


_PATCHES: Mapping[PatchType, Callable[[Resource, Obj, Any], Any]] = {
    "json": lambda _, obj, patch: patches.json_patch(obj, patch),
    "merge": lambda _, obj, patch: patches.merge_patch(obj, patch),
    "strategic": lambda resource, obj, patch: patches.strategic_patch(resource.shape, obj, patch),
}


def _selection(kind: Kind, namespace: str | None, labels: str, fields: str) -> Selection:
    return Selection(namespace, selectors.parse_labels(labels), selectors.parse_fields(kind, fields))


def _revision(text: str) -> int:
    if not text.isdecimal():
        raise errors.bad_request(f"resourceVersion: Invalid value: {text!r}")
    return int(text)
