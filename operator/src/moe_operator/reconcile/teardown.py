"""A MoEDeployment that is being deleted: engines go first, then the finalizer, then the rest by ownership.

The finalizer never hangs: when engine pods outlive their grace period and a margin (a dead node keeps them
Terminating for ever), it is removed all the same, and the garbage collector takes what is left.
"""

from __future__ import annotations

from moe_operator.api.moments import elapsed
from moe_operator.api.names import COMPONENT_ENGINE, FINALIZER, LABEL_COMPONENT
from moe_operator.reconcile.actions import Decision, Delete, Ref, RemoveFinalizer
from moe_operator.reconcile.snapshot import Snapshot

GRACE_SECONDS = 10  # workers whose leader went first ignore SIGTERM (vLLM 0.32)
PATIENCE_SECONDS = 60


def teardown(snapshot: Snapshot) -> Decision:
    """One step towards nothing."""
    if FINALIZER not in (snapshot.object["metadata"].get("finalizers") or ()):
        return Decision(status=None)
    pods = [
        p
        for p in snapshot.pods
        if (p["metadata"].get("labels") or {}).get(LABEL_COMPONENT) == COMPONENT_ENGINE
    ]
    waited = elapsed(snapshot.object["metadata"]["deletionTimestamp"], snapshot.now)
    if not pods or waited > PATIENCE_SECONDS:
        return Decision(status=None, actions=(RemoveFinalizer(),))
    refs = tuple(
        Ref("Pod", snapshot.namespace, p["metadata"]["name"], p["metadata"]["uid"])
        for p in pods
        if not p["metadata"].get("deletionTimestamp")
        or int(p["metadata"].get("deletionGracePeriodSeconds") or 0) > GRACE_SECONDS
    )
    actions = (Delete(refs, "the MoEDeployment is being deleted", GRACE_SECONDS),) if refs else ()
    return Decision(status=None, actions=actions, wake_after=PATIENCE_SECONDS - waited + 1)
