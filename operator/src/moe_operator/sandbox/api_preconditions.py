"""Which object a write was made for: its life (uid), its state (resourceVersion), and who may claim it.

A PUT names both as preconditions (409). A patch may name the uid but not change it (422), and the status door
of a custom kind does not look at it; an apply to an object that is absent may name no uid (409).
"""

from __future__ import annotations

from moe_operator.runtime.kube import ApiError, Obj
from moe_operator.sandbox import api_errors as errors
from moe_operator.sandbox.api_resources import Resource

_MAX_MANAGER = 128  # bytes


def check_version(resource: Resource, current: Obj, new: Obj) -> None:
    """ApiError 409 when the write was made from another state."""
    meta = current["metadata"]
    if new["metadata"].get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
        raise errors.stale(resource.kind, meta["name"])


def check_put(resource: Resource, current: Obj, new: Obj) -> None:
    """ApiError 409 when a PUT is for another life or state."""
    if uid := _other_uid(current, new):
        meta = current["metadata"]
        raise errors.precondition(resource.kind, meta["name"], "uid", uid, meta["uid"])
    check_version(resource, current, new)


def check_patch(resource: Resource, current: Obj, new: Obj, subresource: str) -> None:
    """ApiError 409 when a patch is for another state, 422 when for another life."""
    check_version(resource, current, new)
    uid = _other_uid(current, new)
    if uid and not (resource.custom and subresource):
        problem = f'metadata.uid: Invalid value: "{uid}": field is immutable'
        raise errors.invalid(resource.kind, current["metadata"]["name"], [problem])


def check_absent(resource: Resource, config: Obj) -> None:
    """ApiError 409 when an apply is for a life that is over."""
    if uid := config["metadata"].get("uid"):
        why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        raise errors.conflict(resource.kind, config["metadata"].get("name", ""), why)


def check_manager(name: str) -> None:
    """ApiError 422 when nobody, or nobody with a proper name, applies."""
    problem = "" if name else "Required value: is required for apply patch"
    if len(name.encode()) > _MAX_MANAGER:
        problem = f"Too long: may not be more than {_MAX_MANAGER} bytes"
    if problem:
        text = f'PatchOptions.meta.k8s.io "" is invalid: fieldManager: {problem}'
        raise ApiError(422, "Invalid", text)


def _other_uid(current: Obj, new: Obj) -> str:
    """The uid that a write names and that the object does not have; "" otherwise."""
    uid = new["metadata"].get("uid", "")
    return "" if uid == current["metadata"]["uid"] else str(uid)
