"""What is known of the ways through somebody else's gateway, and which weights they get next.

A way is an HTTPRoute, or an InferencePool, whose one selected revision has all the weight.

Nobody acknowledges a weight there. So a change counts as acknowledged when the way's parents have accepted
it and a settling time has passed; and traffic moves in two steps: a revision is made known with weight 0,
and gets its weight when that has settled, so that no gateway sends to a backend it has not resolved yet, and
no pool selects leaders whose mark has not got about.

Gateways send a dead backend its share all the same (Gateway API demands it). So a revision that has lost its
last serving leader gets weight 0 at once, and what stands by takes over, without any waiting. A pool that has
nothing to take over keeps its selector: it is empty until a leader is marked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from moe_operator.api.intent import Ack, HostState, Intent
from moe_operator.api.moments import elapsed
from moe_operator.api.names import (
    ANNOTATION_POOL_STANDBY,
    ANNOTATION_ROUTE_GENERATION,
    ANNOTATION_ROUTE_SINCE,
    LABEL_REVISION,
    gateway_name,
)
from moe_operator.reconcile.actions import Obj
from moe_operator.reconcile.parent_answers import objections_to_pool, objections_to_route
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.resources.http_route import SERVING

SETTLE_SECONDS = 30.0
ON_THE_WAY = -1  # generation of a route whose weights are a step towards an intent, and no intent's
FULL = 100
ROUTE, POOL = "HTTPRoute", "InferencePool"


_Weights = Callable[[Snapshot, Obj], Iterable[tuple[str, int]]]
_Objections = Callable[[Obj], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Route:
    """An HTTPRoute or InferencePool of ours as the API server has it. ``weights``: revision → share."""

    kind: str
    name: str
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


def way_objects(snapshot: Snapshot) -> list[Obj]:
    """Routes and pools of ours that nobody has deleted; more than one only while one takes over."""
    there = (obj for kind in WAYS for obj in snapshot.children.get(kind, ()))
    return [obj for obj in there if not obj["metadata"].get("deletionTimestamp")]


def observed_routes(snapshot: Snapshot) -> list[Route]:
    """The ways that exist."""
    return [_observed(snapshot, obj) for obj in way_objects(snapshot)]


def _observed(snapshot: Snapshot, found: Obj) -> Route:
    weights, objections = WAYS[found["kind"]]
    notes = found["metadata"].get("annotations") or {}
    since, generation = notes.get(ANNOTATION_ROUTE_SINCE, ""), notes.get(ANNOTATION_ROUTE_GENERATION, "")
    return Route(
        kind=found["kind"],
        name=found["metadata"]["name"],
        weights=dict(weights(snapshot, found)),
        generation=int(generation) if generation.isdigit() else ON_THE_WAY,
        since=since,
        settled_in=max(0.0, SETTLE_SECONDS - elapsed(since, snapshot.now)) if since else SETTLE_SECONDS,
        refusal="; ".join(objections(found)),
    )


def through_route(snapshot: Snapshot) -> bool:
    """Whether clients come through somebody else's gateway: there is a way and no gateway of our own."""
    return bool(way_objects(snapshot)) and snapshot.child("Deployment", gateway_name(snapshot.name)) is None


def route_ack(snapshot: Snapshot, intent: Intent | None, route: Route) -> Ack:
    """A way's state as a gateway pod of our own would tell it."""
    if intent is None:
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


def all_to_one(weights: Mapping[str, int]) -> dict[str, int]:
    """The same for a pool, which selects one revision whether or not that has leaders."""
    selected = max(sorted(weights), key=lambda revision: weights[revision])
    return {revision: FULL if revision == selected else 0 for revision in weights}


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


def _route_weights(snapshot: Snapshot, route: Obj) -> Iterable[tuple[str, int]]:
    for rule in route["spec"].get("rules") or ():
        for backend in rule.get("backendRefs") or ():
            service = snapshot.child("Service", backend["name"])
            labels = (service["metadata"].get("labels") or {}) if service else {}
            if LABEL_REVISION in labels:
                yield labels[LABEL_REVISION], int(backend.get("weight", 1))


def _pool_weights(_: Snapshot, pool: Obj) -> Iterable[tuple[str, int]]:
    standby = (pool["metadata"].get("annotations") or {}).get(ANNOTATION_POOL_STANDBY, "")
    yield from ((revision, 0) for revision in standby.split(",") if revision)
    selected = (pool["spec"]["selector"].get("matchLabels") or {}).get(LABEL_REVISION)
    if selected:
        yield selected, FULL


WAYS: Mapping[str, tuple[_Weights, _Objections]] = {
    ROUTE: (_route_weights, objections_to_route),
    POOL: (_pool_weights, objections_to_pool),
}


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
