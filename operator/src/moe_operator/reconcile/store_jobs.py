"""Jobs and pods that work on nodes' stores, as they tell of themselves."""

from __future__ import annotations

from collections.abc import Iterable

from moe_operator.api.names import ANNOTATION_NODE, LABEL_COMPONENT
from moe_operator.reconcile.actions import Obj, Ref


def component(obj: Obj) -> str:
    """What an object of ours is for."""
    return str((obj["metadata"].get("labels") or {}).get(LABEL_COMPONENT, ""))


def works_on(job: Obj) -> str:
    """The node whose store a Job of ours fills or frees; "" for other Jobs."""
    return str((job["metadata"].get("annotations") or {}).get(ANNOTATION_NODE, ""))


def refs(objects: Iterable[Obj | None]) -> tuple[Ref, ...]:
    """Existing objects that are not on their way out, to be deleted."""
    return tuple(
        Ref(o["kind"], o["metadata"]["namespace"], o["metadata"]["name"], o["metadata"].get("uid", ""))
        for o in objects
        if o is not None and not o["metadata"].get("deletionTimestamp")
    )
