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
from typing import Any, Literal, Protocol

from moe_operator.api import structural
from moe_operator.runtime import kube
from moe_operator.runtime.kube import ApiError, Kind, Listing, Obj
from moe_operator.sandbox import api_errors as errors
from moe_operator.sandbox import api_validation, field_ownership, garbage, patches, selectors
from moe_operator.sandbox.api_collector import Collector
from moe_operator.sandbox.api_defaults import fill_defaults
from moe_operator.sandbox.api_lifecycle import (
    SYSTEM_META,
    desired,
    isolated,
    marked_for_deletion,
    released,
    without_managed_fields,
)
from moe_operator.sandbox.api_resources import BUILTIN, Resource, established, resource_of_crd
from moe_operator.sandbox.api_store import Selection, Store, Stored, Watch, too_new
from moe_operator.sandbox.field_ownership import Fields, Manager, Managers, Owned
from moe_operator.sandbox.wire import clone, plain, rfc3339

PatchType = Literal["json", "merge", "strategic"]
_FIRST_NAMESPACES = ("default", "kube-system")


class Admission(Protocol):
    """What the server does to custom objects with their CRD's schema; ``api.structural`` is one."""

    def prune(self, schema: Mapping[str, Any], obj: Obj, /) -> Obj:
        """The object without fields that the schema does not know."""
        ...

    def default(self, schema: Mapping[str, Any], obj: Obj, /) -> Obj:
        """The object with the schema's defaults."""
        ...

    def violations(
        self, schema: Mapping[str, Any], obj: Obj, old: Obj | None = None, /
    ) -> builtins.list[str]:
        """Everything the schema and its rules forbid, field first."""
        ...


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
        self._admission = admission
        self._clock = clock
        self._new_uid = new_uid
        self._service_address = service_address or _addresses_in_turn()
        self._auto_collect = auto_collect
        self.store = Store(history)
        self._resources = {(r.kind.group, r.kind.plural): r for r in BUILTIN}
        self._collector = Collector(self)
        for name in _FIRST_NAMESPACES:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    # What is served

    def resources(self) -> builtins.list[Resource]:
        """Everything that is served now."""
        return list(self._resources.values())

    def resource(self, kind: Kind) -> Resource:
        """How a kind is served; ApiError 404 when it is not."""
        found = self._resources.get((kind.group, kind.plural))
        if found is None or found.kind.version != kind.version:
            raise errors.no_such_resource()
        return found

    def resource_of(self, obj: Obj) -> Resource:
        """How an object's type is served; ApiError 404 when it is not."""
        wanted = obj.get("apiVersion"), obj.get("kind")
        for resource in self._resources.values():
            if (resource.kind.api_version, resource.kind.kind) == wanted:
                return resource
        raise errors.no_such_resource()

    def now(self) -> str:
        """The server's time (RFC 3339)."""
        return rfc3339(self._clock())

    # Reading

    def get(self, kind: Kind, namespace: str | None, name: str) -> Obj:
        """One object; ApiError 404."""
        return self.stored(self.resource(kind), namespace, name).copy()

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
        table = self.store.table(self.resource(kind).kind)
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
        table = self.store.table(self.resource(kind).kind)
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

    def unknown_fields(self, kind: Kind, obj: Obj) -> builtins.list[str]:
        """Fields of a custom object that its schema does not know and that would be dropped."""
        resource = self.resource(kind)
        if resource.schema is None:
            return []
        sent = plain(obj)
        known = self._admission.prune(resource.schema, sent)
        lost = field_ownership.owned_fields(resource.shape, sent) - field_ownership.owned_fields(
            resource.shape, known
        )
        return [field_ownership.dotted(path)[1:] for path in sorted(lost)]

    # Writing

    def create(self, obj: Obj, *, manager: str = "unknown") -> Obj:
        """POST. ApiError 409 AlreadyExists, 404/403 for the namespace, 422 for the content."""
        resource, new = self._received(obj)
        if "resourceVersion" in new["metadata"]:
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        return self._create(resource, new, Writer(manager), operation="Update")

    def replace(self, obj: Obj, *, manager: str = "unknown", subresource: str = "") -> Obj:
        """PUT. The object's resourceVersion and uid, when given, are preconditions."""
        resource, new = self._received(obj)
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
        resource = self.resource(kind)
        stored = self.stored(resource, namespace, name)
        if patch_type == "strategic" and resource.custom:
            raise ApiError(
                415, "UnsupportedMediaType", "strategic merge patch is not supported for custom resources"
            )
        try:
            new = _patched(resource, stored.copy(), patch, patch_type)
        except (patches.PatchError, KeyError, TypeError) as error:
            raise errors.invalid(kind, name, [f"the server rejected our request: {error}"]) from error
        resource, new = self._received(new)
        self._check_preconditions(resource, stored, new)
        return self._update(resource, stored, new, Writer(manager, subresource))

    def apply(self, obj: Obj, *, manager: str, force: bool = True, subresource: str = "") -> Obj:
        """Server-side apply; ApiError 409 names the managers in the way when not forced."""
        if not manager:
            raise errors.bad_request("fieldManager is required for apply patch")
        resource, config = self._received(obj)
        if "managedFields" in config["metadata"]:
            raise errors.bad_request("metadata.managedFields must be nil")
        writer = Writer(manager, subresource)
        config = self._applicable(resource, config, subresource)
        stored = self.store.table(resource.kind).find(self._key(resource, config))
        if stored is None:
            return self._apply_new(resource, config, writer)
        self._check_preconditions(resource, stored, config)
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
        resource = self.resource(kind)
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
        resource = self.resource(kube.POD)
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
        resource = self.resource_of(new)
        old, new = without_managed_fields(stored.obj), without_managed_fields(new)
        owner = Writer(manager).owner("Update")
        fields = field_ownership.after_update(resource.shape, old, new, stored.managers, owner)
        return self._commit(resource, stored, new, self._owners(fields, stored.managers))

    # The way of a write

    def _received(self, obj: Obj) -> tuple[Resource, Obj]:
        try:
            new = plain(obj)
        except TypeError as error:
            raise errors.bad_request(str(error)) from error
        if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
            raise errors.bad_request("the object provided has no metadata")
        resource = self.resource_of(new)
        if found := api_validation.misshapen(resource, new):
            raise errors.bad_request(
                f"{resource.kind.kind} in version {resource.kind.version!r} cannot be handled: {found[0]}"
            )
        return resource, new

    def _key(self, resource: Resource, obj: Obj) -> tuple[str, str]:
        meta = obj["metadata"]
        if not resource.kind.namespaced:
            return "", meta.get("name", "")
        return meta.get("namespace") or "default", meta.get("name", "")

    def _addressed(self, resource: Resource, new: Obj) -> Stored:
        stored = self.stored(resource, *self._key(resource, new))
        self._check_preconditions(resource, stored, new)
        return stored

    def _check_preconditions(self, resource: Resource, stored: Stored, new: Obj) -> None:
        meta, current = new["metadata"], stored.obj["metadata"]
        if meta.get("uid", current["uid"]) != current["uid"]:
            raise errors.precondition(resource.kind, current["name"], "uid", meta["uid"], current["uid"])
        if meta.get("resourceVersion", current["resourceVersion"]) != current["resourceVersion"]:
            raise errors.stale(resource.kind, current["name"])

    def _create(
        self, resource: Resource, new: Obj, writer: Writer, operation: Literal["Apply", "Update"]
    ) -> Obj:
        meta = new["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + hashlib.sha256(self._new_uid().encode()).hexdigest()[:5]
        namespace, name = self._key(resource, new)
        self._check_namespace(resource, namespace, name)
        if self.store.table(resource.kind).find((namespace, name)):
            raise errors.already_exists(resource.kind, name)
        applied = field_ownership.owned_fields(resource.shape, new) if operation == "Apply" else None
        new["metadata"] = self._first_metadata(resource, meta, namespace)
        if resource.has_status and not resource.created_with_status:
            new.pop("status", None)
        new = self._admitted(resource, new, None)
        self._allocate(resource, new)
        fields = applied if applied is not None else field_ownership.owned_fields(resource.shape, new)
        managers = {writer.owner(operation): Owned(fields, self.now())}
        stored = self._record(resource, "ADDED", new, managers)
        self._settle()
        return stored.copy()

    def _first_metadata(self, resource: Resource, meta: Obj, namespace: str) -> Obj:
        left = {k: v for k, v in meta.items() if k not in SYSTEM_META and k != "managedFields"}
        left |= {"name": meta["name"], "uid": self._new_uid(), "creationTimestamp": self.now()}
        if resource.kind.namespaced:
            left["namespace"] = namespace
        if resource.counts_generation:
            left["generation"] = 1
        return left

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

    def _applicable(self, resource: Resource, config: Obj, subresource: str) -> Obj:
        """The part of an applied configuration that this door lets through."""
        if subresource:
            meta = {name: value for name, value in config["metadata"].items() if name in SYSTEM_META}
            kept = {name: config[name] for name in ("apiVersion", "kind", subresource) if name in config}
            config = {**kept, "metadata": meta}
        elif resource.has_status:
            config.pop("status", None)
        return self._admission.prune(resource.schema, config) if resource.schema is not None else config

    def _apply_new(self, resource: Resource, config: Obj, writer: Writer) -> Obj:
        name = config["metadata"].get("name", "")
        if writer.subresource:
            raise errors.not_found(resource.kind, name)
        if config["metadata"].keys() & {"uid", "resourceVersion"}:
            raise errors.conflict(
                resource.kind, name, "the object does not exist, but a precondition was given"
            )
        return self._create(resource, config, writer, operation="Apply")

    def _apply_over(
        self, resource: Resource, stored: Stored, config: Obj, writer: Writer, *, force: bool
    ) -> Obj:
        live = without_managed_fields(stored.obj)
        owner = writer.owner("Apply")
        result = field_ownership.apply(resource.shape, live, stored.managers, config, owner, force=force)
        if isinstance(result, tuple):
            raise _clash(result)
        if result.obj is live and result.fields == _fields(stored.managers):
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
        new = self._admitted(resource, isolated(resource, old, new, subresource), old)
        if found := api_validation.change_problems(resource, old, new):
            raise errors.invalid(resource.kind, old["metadata"]["name"], found)
        same = new == without_managed_fields(old)
        if callable(fields):
            fields = _fields(stored.managers) if same else fields(new)
        if same and fields == _fields(stored.managers):
            return stored.copy()
        stored = self._commit(resource, stored, new, self._owners(fields, stored.managers))
        self._settle()
        return stored.copy()

    def _owners(self, fields: Mapping[Manager, Fields], held: Managers) -> Managers:
        now = self.now()
        return {
            who: held[who] if who in held and held[who].fields == paths else Owned(paths, now)
            for who, paths in fields.items()
            if paths
        }

    def _admitted(self, resource: Resource, new: Obj, old: Obj | None) -> Obj:
        """A copy of ``new`` with defaults; ApiError 422 names every broken rule."""
        new = clone(new)
        found: builtins.list[str] = []
        if resource.schema is None:
            if missing := api_validation.missing_parts(resource.kind.plural, new):
                raise errors.invalid(resource.kind, new["metadata"].get("name", ""), missing)
            fill_defaults(resource.kind.plural, new)
        else:
            schema = resource.schema
            new = self._admission.default(schema, self._admission.prune(schema, new))
            found = self._admission.violations(schema, new, old)
        found = api_validation.problems(resource, new) + found
        if found:
            raise errors.invalid(resource.kind, new["metadata"].get("name", ""), found)
        return new

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
            self._serve(new, ended=type_ == "DELETED")
        self._collector.noticed(resource, type_, stored)
        return stored

    def _serve(self, crd: Obj, *, ended: bool) -> None:
        resource = resource_of_crd(crd)
        key = resource.kind.group, resource.kind.plural
        if ended:
            self._resources.pop(key, None)
            return
        self._resources[key] = resource
        if "status" not in crd:
            stored = self.stored(self.resource(kube.CRD), None, crd["metadata"]["name"])
            self.rewrite(stored, {**stored.copy(), "status": established(crd, self.now())})

    def _settle(self) -> None:
        if self._auto_collect:
            self._collector.run()


def _patched(resource: Resource, obj: Obj, patch: Any, patch_type: PatchType) -> Any:
    match patch_type:
        case "json":
            return patches.json_patch(obj, patch)
        case "merge":
            return patches.merge_patch(obj, patch)
        case "strategic":
            return patches.strategic_patch(resource.shape, obj, patch)


def _selection(kind: Kind, namespace: str | None, labels: str, fields: str) -> Selection:
    return Selection(namespace, selectors.parse_labels(labels), selectors.parse_fields(kind, fields))


def _revision(text: str) -> int:
    if not text.isdecimal():
        raise errors.bad_request(f"resourceVersion: Invalid value: {text!r}")
    return int(text)


def _fields(managers: Managers) -> Mapping[Manager, Fields]:
    return {who: owned.fields for who, owned in managers.items()}


def _clash(clashes: tuple[field_ownership.Clash, ...]) -> ApiError:
    count = sum(len(clash.paths) for clash in clashes)
    text = "; ".join(
        f'conflict with "{clash.manager.name}": {", ".join(map(field_ownership.dotted, clash.paths))}'
        for clash in clashes
    )
    return ApiError(409, "Conflict", f"Apply failed with {count} conflict{'s' * (count > 1)}: {text}")
