"""What every controller reads off an object: its key, its owner, its conditions, its age.

Pure readings of plain dicts; ``now`` is always epoch seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from moe_operator.api.moments import moment
from moe_operator.runtime.kube import ApiError, Obj


class Key(NamedTuple):
    """Namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def key_of(obj: Obj) -> Key:
    """Namespace (empty for cluster-scoped objects) and name."""
    meta = obj["metadata"]
    return Key(meta.get("namespace", ""), meta["name"])


def phase_of(pod: Obj) -> str:
    """A pod without a phase is Pending: nothing has looked at it yet."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def finished(pod: Obj) -> bool:
    """Whether the pod will never run again."""
    return phase_of(pod) in {"Succeeded", "Failed"}


def deleting(obj: Obj) -> bool:
    """Whether somebody asked for the object to go."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def condition(obj: Obj, kind: str) -> Obj | None:
    """The condition of a type, when the object has it."""
    found = [c for c in (obj.get("status") or {}).get("conditions") or () if c["type"] == kind]
    return found[0] if found else None


def is_true(obj: Obj, kind: str) -> bool:
    """Whether a condition is there and True."""
    found = condition(obj, kind)
    return found is not None and found["status"] == "True"


def with_transitions(new: Iterable[Obj], old: Sequence[Obj], now: float) -> list[Obj]:
    """``new`` conditions with ``lastTransitionTime``: kept while the status of a type is unchanged."""
    before = {c["type"]: c for c in old}
    result = []
    for entry in new:
        same = before.get(entry["type"])
        kept = same["lastTransitionTime"] if same and same["status"] == entry["status"] else moment(now)
        result.append({**entry, "lastTransitionTime": kept})
    return result


def controlled_by(obj: Obj, uid: str) -> bool:
    """Whether the owner with ``uid`` is the controller of ``obj``."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(o["uid"] == uid and o.get("controller") for o in owners)


def owner_reference(owner: Obj) -> Obj:
    """The reference a controller puts into what it creates."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def selects(selector: Obj, labels: Mapping[str, str] | None) -> bool:
    """A LabelSelector (matchLabels and matchExpressions) against labels; an empty one selects all."""
    has = labels or {}
    if any(has.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(matches(has, e) for e in selector.get("matchExpressions") or ())


def matches(fields: Mapping[str, str], requirement: Obj) -> bool:
    """One ``{key, operator, values}`` of a label or node selector."""
    value = fields.get(requirement["key"])
    values = requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
        case other:
            raise ValueError(f"selector operator {other!r} does not exist")


def status_patch(obj: Obj, status: Obj) -> Obj:
    """What a controller applies to write ``status`` of this very object (its uid is a precondition)."""
    meta = {k: obj["metadata"][k] for k in ("name", "namespace", "uid") if k in obj["metadata"]}
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": meta, "status": status}


def moved_on(error: ApiError) -> bool:
    """Whether the object is gone or changed since it was listed: the next step sees it as it is."""
    return error.not_found or error.conflict
