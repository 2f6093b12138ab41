"""What is known of a route through somebody else's gateway, and which weights it gets next.

Nobody acknowledges a weight there. So a change counts as acknowledged when the route's parents have accepted
it and a settling time has passed; and traffic moves in two steps: a revision is made known with weight 0,
and gets its weight when that has settled, so that no gateway sends to a backend it has not resolved yet.

Gateways send a dead backend its share all the same (Gateway API demands it). So a revision that has lost its
last serving leader gets weight 0 at once, and what stands by takes over, without any waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from moe_operator.api.intent import Ack, HostState, Intent
from moe_operator.api.moments import elapsed
from moe_operator.api.names import (
    ANNOTATION_ROUTE_GENERATION,
    ANNOTATION_ROUTE_SINCE,
    LABEL_REVISION,
    gateway_name,
)
from moe_operator.reconcile.actions import Obj
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.resources.http_route import SERVING

SETTLE_SECONDS = 30.0
ON_THE_WAY = -1  # generation of a route whose weights are a step towards an intent, and no intent's
FULL = 100
KIND = "HTTPRoute"


@dataclass(frozen=True, slots=True)
class Route:
    """An HTTPRoute of ours as the API server has it. ``weights``: revision → share."""

    weights: Mapping[str, int]
    generation: int  # of the intent whose weights these are, or ON_THE_WAY
    since: str  # when it got these weights
    settled_in: float  # seconds until these weights can be taken for known
    refusal: str  # why a parent does not take it, in the gateway's words; "" = all parents have accepted it

    @property
    def accepted(self) -> bool:
        """Whether requests arrive through it."""
        return not self.refusal

    @property
    def known(self) -> bool:
        """Whether every gateway can be taken to send by these weights."""
        return self.accepted and not self.settled_in


def observed_route(snapshot: Snapshot) -> Route | None:
    """The route that exists."""
    found = snapshot.child(KIND, gateway_name(snapshot.name))
    if found is None:
        return None
    notes = found["metadata"].get("annotations") or {}
    since, generation = notes.get(ANNOTATION_ROUTE_SINCE, ""), notes.get(ANNOTATION_ROUTE_GENERATION, "")
    return Route(
        weights=dict(_weights(snapshot, found)),
        generation=int(generation) if generation.isdigit() else ON_THE_WAY,
        since=since,
        settled_in=max(0.0, SETTLE_SECONDS - elapsed(since, snapshot.now)) if since else SETTLE_SECONDS,
        refusal="; ".join(_refusals(found)),
    )


def through_route(snapshot: Snapshot) -> bool:
    """Whether clients come through somebody else's gateway: there is a route and no gateway of our own."""
    name = gateway_name(snapshot.name)
    return snapshot.child(KIND, name) is not None and snapshot.child("Deployment", name) is None


def route_ack(snapshot: Snapshot, intent: Intent | None) -> Ack:
    """The route's state as a gateway pod of our own would tell it."""
    route = observed_route(snapshot)
    if route is None or intent is None:
        return Ack(generation=ON_THE_WAY)
    generation = route.generation if route.known else ON_THE_WAY
    return Ack(generation=generation, hosts=list(_hosts(snapshot, intent)))


def wanted_weights(intent: Intent, otherwise: str) -> dict[str, int]:
    """Revision → share, for every revision with leaders; ``otherwise`` with 0 when there is none."""
    alive = {c.revision: c.weight for c in intent.colours if any(not e.leaving for e in c.endpoints)}
    if not alive:
        return {otherwise: 0}
    if not any(alive.values()):
        return dict.fromkeys(alive, FULL)  # what stands by takes over
    return alive


def next_weights(wanted: Mapping[str, int], route: Route | None) -> Mapping[str, int]:
    """The weights on the way to ``wanted``."""
    if route is None:
        return wanted
    kept = {revision: route.weights.get(revision, 0) for revision in wanted}
    rising = [revision for revision, weight in wanted.items() if weight and not kept[revision]]
    if not rising or not any(kept.values()):
        return wanted
    introduced = all(revision in route.weights for revision in rising)
    return wanted if introduced and route.known else kept


def is_marked(pod: Obj) -> bool:
    """Whether a gateway of others may send to this leader."""
    return SERVING.items() <= (pod["metadata"].get("labels") or {}).items()


def _weights(snapshot: Snapshot, route: Obj) -> Iterable[tuple[str, int]]:
    for rule in route["spec"].get("rules") or ():
        for backend in rule.get("backendRefs") or ():
            service = snapshot.child("Service", backend["name"])
            labels = (service["metadata"].get("labels") or {}) if service else {}
            if LABEL_REVISION in labels:
                yield labels[LABEL_REVISION], int(backend.get("weight", 1))


def _refusals(route: Obj) -> Iterable[str]:
    parents = (route.get("status") or {}).get("parents") or ()
    for parent in route["spec"]["parentRefs"]:
        name = f"Gateway {parent.get('namespace', '')}/{parent['name']}"
        answers = [p for p in parents if _is_of(p["parentRef"], parent, route)]
        if not answers:
            yield f"{name} has not answered"
        for answer in answers:
            yield from (f"{name}: {words}" for words in _objections(answer, route))


def _is_of(answered: Obj, asked: Obj, route: Obj) -> bool:
    here = route["metadata"]["namespace"]
    place = [(ref["name"], ref.get("namespace", here), ref.get("sectionName")) for ref in (answered, asked)]
    return place[0] == place[1]


def _objections(answer: Obj, route: Obj) -> Iterable[str]:
    conditions = {c["type"]: c for c in answer.get("conditions") or ()}
    for kind in ("Accepted", "ResolvedRefs"):
        condition = conditions.get(kind)
        if condition is None or condition.get("observedGeneration", 0) < route["metadata"]["generation"]:
            yield f"{kind} is not known yet"
        elif condition["status"] != "True":
            yield f"{kind} is {condition['status']}: {condition['reason']}: {condition.get('message', '')}"


def _hosts(snapshot: Snapshot, intent: Intent) -> Iterable[HostState]:
    for colour in intent.colours:
        for endpoint in colour.endpoints:
            probe = snapshot.leaders.get(endpoint.pod)
            yield HostState(
                address=endpoint.address,
                port=endpoint.port,
                revision=colour.revision,
                healthy=bool(probe and probe.healthy),
                weight=colour.weight,
                # an engine that does not say is not taken for idle
                active_requests=1 if probe is None or probe.running is None else probe.running,
            )
