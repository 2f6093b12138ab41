"""What the gateways were told last, and what those that serve have acknowledged.

Only pods that are Ready and not on their way out count: those are the ones clients can reach. A serving pod
that did not answer counts as one that acknowledged nothing, so nothing moves on without it. A pod on its way
out gets no new requests, but may still have old ones running. Behind a gateway of others its route or pool
answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import inf

from moe_operator.api.intent import INTENT_KEY, Ack, Intent
from moe_operator.api.moments import elapsed
from moe_operator.api.names import ANNOTATION_REFRESHED, COMPONENT_GATEWAY, LABEL_COMPONENT, gateway_name
from moe_operator.reconcile.actions import Obj
from moe_operator.reconcile.external_route import observed_routes, route_ack, through_route
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.resources.gateway_deployment import KEYS_VOLUME

REFRESH_SECONDS = 120.0  # a kubelet that is not told at once brings a Secret within this time
REFRESH_LOOK_SECONDS = 1.0
REFRESH_LOOK_GROWTH = 0.1  # of the time that has passed
EMPTY_LOOK_SECONDS = 10.0
SILENT = Ack(generation=-1, accepted=True, envoy_live=False)


def observed_intent(snapshot: Snapshot) -> Intent | None:
    """What the gateways were told last; None when nothing, or nothing readable, is there."""
    config_map = snapshot.child("ConfigMap", gateway_name(snapshot.name))
    text = ((config_map or {}).get("data") or {}).get(INTENT_KEY)
    if not text:
        return None
    try:
        return Intent.model_validate_json(text)
    except ValueError:
        return None  # somebody broke it: it is written anew


def gateway_pods(snapshot: Snapshot) -> list[Obj]:
    """Every gateway pod that is not being deleted."""
    return [p for p in _all_gateway_pods(snapshot) if not p["metadata"].get("deletionTimestamp")]


def serving_pods(snapshot: Snapshot) -> list[Obj]:
    """Every gateway pod that clients can reach."""
    return [p for p in gateway_pods(snapshot) if _ready(p)]


def serving_acks(snapshot: Snapshot) -> list[Ack]:
    """One answer for each gateway pod that clients can reach, or those of the ways through another's."""
    if through_route(snapshot):
        intent = observed_intent(snapshot)
        return [route_ack(snapshot, intent, route) for route in observed_routes(snapshot)]
    answers = {probe.pod: probe.ack for probe in snapshot.gateways if probe.ack}
    return [answers.get(p["metadata"]["name"], SILENT) for p in serving_pods(snapshot)]


def reachable(snapshot: Snapshot) -> bool:
    """Whether requests arrive anywhere."""
    if through_route(snapshot):
        return any(route.accepted for route in observed_routes(snapshot))
    return bool(serving_pods(snapshot))


def mounts_keys(pod: Obj) -> bool:
    """Whether API keys reach this gateway pod."""
    return any(volume["name"] == KEYS_VOLUME for volume in pod["spec"].get("volumes") or ())


def keys_in_force(acks: Iterable[Ack]) -> str:
    """Digest of the API keys that every one goes by; empty while they differ, or one has yet to follow."""
    digests = {ack.keys_digest for ack in acks}
    return digests.pop() if len(digests) == 1 else ""


def keys_look_seconds(snapshot: Snapshot, acks: Iterable[Ack]) -> float | None:
    """When the keys are worth another look, which nobody tells us: a kubelet brings a Secret, or somebody
    fills it. None = an event or the resync is soon enough.
    """
    passed = min(map(partial(_since_refresh, snapshot), gateway_pods(snapshot)), default=inf)
    if passed < REFRESH_SECONDS:
        return max(REFRESH_LOOK_SECONDS, passed * REFRESH_LOOK_GROWTH)
    return EMPTY_LOOK_SECONDS if any(ack.keys == 0 for ack in acks) else None


def _since_refresh(snapshot: Snapshot, pod: Obj) -> float:
    """Seconds since a pod's kubelet was asked to bring the Secret; infinite when it was not."""
    try:
        return elapsed((pod["metadata"].get("annotations") or {})[ANNOTATION_REFRESHED], snapshot.now)
    except (KeyError, ValueError):  # or somebody wrote there what is no moment
        return inf


def draining_gateways(snapshot: Snapshot) -> list[Obj]:
    """Gateway pods that are being deleted and may still stream."""
    return [p for p in _all_gateway_pods(snapshot) if p["metadata"].get("deletionTimestamp")]


def draining_acks(snapshot: Snapshot) -> list[Ack]:
    """The answers of gateway pods on their way out; one that is silent has nothing to say."""
    names = {p["metadata"]["name"] for p in draining_gateways(snapshot)}
    return [probe.ack for probe in snapshot.gateways if probe.ack and probe.pod in names]


def rejections(snapshot: Snapshot) -> Iterable[str]:
    """Envoy's words for configurations it refused."""
    names = {p["metadata"]["name"] for p in gateway_pods(snapshot)}
    answers = [probe for probe in snapshot.gateways if probe.pod in names]
    return (f"{p.pod}: {p.ack.rejected}" for p in answers if p.ack and not p.ack.accepted)


def _all_gateway_pods(snapshot: Snapshot) -> list[Obj]:
    labelled = ((p, p["metadata"].get("labels") or {}) for p in snapshot.pods)
    return [pod for pod, labels in labelled if labels.get(LABEL_COMPONENT) == COMPONENT_GATEWAY]


def _ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
