"""What the gateway pods that serve have acknowledged.

Only pods that are Ready and not on their way out count: those are the ones clients can reach. A serving pod
that did not answer counts as one that acknowledged nothing, so nothing moves on without it.
"""

from __future__ import annotations

from collections.abc import Iterable

from moe_operator.api.intent import Ack
from moe_operator.api.names import COMPONENT_GATEWAY, LABEL_COMPONENT
from moe_operator.reconcile.actions import Obj
from moe_operator.reconcile.snapshot import Snapshot

SILENT = Ack(generation=-1, accepted=True, envoy_live=False)


def gateway_pods(snapshot: Snapshot) -> list[Obj]:
    """Every gateway pod that is not being deleted."""
    return [
        p
        for p in snapshot.pods
        if (p["metadata"].get("labels") or {}).get(LABEL_COMPONENT) == COMPONENT_GATEWAY
        and not p["metadata"].get("deletionTimestamp")
    ]


def serving_acks(snapshot: Snapshot) -> list[Ack]:
    """One answer for each gateway pod that clients can reach."""
    answers = {probe.pod: probe.ack for probe in snapshot.gateways if probe.ack}
    return [answers.get(p["metadata"]["name"], SILENT) for p in gateway_pods(snapshot) if _ready(p)]


def rejections(snapshot: Snapshot) -> Iterable[str]:
    """Envoy's words for configurations it refused."""
    return (f"{p.pod}: {p.ack.rejected}" for p in snapshot.gateways if p.ack and not p.ack.accepted)


def _ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
