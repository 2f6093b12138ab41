"""What one write may change about an object, and how an object comes to its end.

Fields that the server keeps never change by a request. The main door leaves the status alone, a
subresource's door leaves everything else alone. A deleted object is marked first and vanishes when its
finalizers and its grace period are used up; only a pod on a node has a grace period, because only there a
kubelet has something to stop.
"""

from __future__ import annotations

from moe_operator.runtime import kube
from moe_operator.runtime.kube import Obj
from moe_operator.sandbox import garbage
from moe_operator.sandbox.api_resources import CRD_FINALIZER, Resource
from moe_operator.sandbox.wire import rfc3339

SYSTEM_META = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds",
)  # fmt: skip
_IDENTITY = ("apiVersion", "kind", "metadata")


def first_metadata(resource: Resource, meta: Obj, namespace: str, uid: str, now: str) -> Obj:
    """Metadata of a new object: the client's part, and what the server says."""
    left = {name: value for name, value in meta.items() if name not in (*SYSTEM_META, "managedFields")}
    left |= {"name": meta["name"], "uid": uid, "creationTimestamp": now}
    if resource.kind.namespaced:
        left["namespace"] = namespace
    if resource.counts_generation:
        left["generation"] = 1
    return left


def without_managed_fields(obj: Obj) -> Obj:
    """The object without the record of who owns what."""
    meta = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": meta}


def isolated(resource: Resource, old: Obj, new: Obj, subresource: str) -> Obj:
    """``new`` with everything this door may not change taken from ``old``."""
    if subresource:
        base = without_managed_fields(old)
        return {**base, subresource: new[subresource]} if subresource in new else base
    current = old["metadata"]
    kept = {name: current[name] for name in SYSTEM_META if name in current}
    free = {k: v for k, v in new["metadata"].items() if k not in SYSTEM_META and k != "managedFields"}
    isolated = {**new, "metadata": {**free, **kept}}
    if resource.has_status:
        isolated.pop("status", None)
        if "status" in old:
            isolated["status"] = old["status"]
    if resource.kind == kube.SERVICE:  # allocated once, kept when a PUT leaves it out
        allocated = {k: old["spec"][k] for k in ("clusterIP", "clusterIPs") if k in old["spec"]}
        isolated["spec"] = {**allocated, **isolated.get("spec", {})}
    return isolated


def desired(resource: Resource, obj: Obj) -> Obj:
    """What generation counts changes of."""
    ignored = {*_IDENTITY, "status"} if resource.has_status else set(_IDENTITY)
    return {name: value for name, value in obj.items() if name not in ignored}


def released(resource: Resource, obj: Obj) -> bool:
    """Whether a deleted object has nothing left to wait for."""
    meta = obj["metadata"]
    if "deletionTimestamp" not in meta or meta.get("finalizers") or meta.get("deletionGracePeriodSeconds"):
        return False
    return not (resource.kind == kube.NAMESPACE and obj.get("spec", {}).get("finalizers"))


def _grace(resource: Resource, obj: Obj, asked: int | None) -> int:
    """Seconds until a deletion is final: only a pod that a kubelet may be running has any."""
    spec, phase = obj.get("spec", {}), obj.get("status", {}).get("phase")
    if resource.kind != kube.POD or not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    return int(spec.get("terminationGracePeriodSeconds", 30)) if asked is None else asked


def marked_for_deletion(
    resource: Resource, obj: Obj, now: float, grace_seconds: int | None, propagation: garbage.Propagation
) -> Obj:
    """The object after a DELETE: it has a time to be gone by, and finalizers that say what to wait for."""
    meta = obj["metadata"]
    if "deletionTimestamp" in meta:  # whatever has become of it: a grace that runs only gets shorter
        left = meta.get("deletionGracePeriodSeconds", 0)
        grace = left if grace_seconds is None else min(grace_seconds, left)
    else:
        grace = _grace(resource, obj, grace_seconds)
    wait = {"Foreground": (garbage.FOREGROUND,), "Orphan": (garbage.ORPHAN,), "Background": ()}[propagation]
    kept = [f for f in meta.get("finalizers", ()) if f not in (garbage.FOREGROUND, garbage.ORPHAN)]
    if resource.kind == kube.CRD and "deletionTimestamp" not in meta:
        kept.append(CRD_FINALIZER)
    finalizers = [*kept, *wait]
    marked = {**meta, "finalizers": finalizers}
    if not finalizers:
        del marked["finalizers"]
    if "deletionTimestamp" not in meta or grace < meta.get("deletionGracePeriodSeconds", 0):
        marked["deletionTimestamp"] = rfc3339(now + grace)
        marked["deletionGracePeriodSeconds"] = grace
    if "generation" in meta and "deletionTimestamp" not in meta:
        marked["generation"] = meta["generation"] + 1
    new = {**obj, "metadata": marked}
    if resource.kind == kube.NAMESPACE:
        new["status"] = {**obj.get("status", {}), "phase": "Terminating"}
    return new
