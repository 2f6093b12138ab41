"""Step 10: how requests arrive: the managed gateway's objects and its intent, or a way through another's.

That is an HTTPRoute or an InferencePool. Changing from one to another keeps the old way open until the new
one works: all else goes when a route or pool is accepted and has settled, a route or pool goes when every
gateway pod runs the newest configuration.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.intent import Intent
from moe_operator.api.moments import moment
from moe_operator.api.names import (
    ANNOTATION_REFRESH_KEYS,
    ANNOTATION_REFRESHED,
    COMPONENT_GATEWAY,
    LABEL_COMPONENT,
    LABEL_REVISION,
    gateway_name,
)
from moe_operator.api.spec import External, MoESpec
from moe_operator.reconcile.actions import Delete, Mark, Obj, ref_of
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.drift import differs, stamped
from moe_operator.reconcile.external_route import (
    ON_THE_WAY,
    POOL,
    ROUTE,
    SETTLE_SECONDS,
    all_to_one,
    is_marked,
    next_weights,
    observed_routes,
    through_route,
    wanted_weights,
    way_objects,
)
from moe_operator.reconcile.gateway_acks import gateway_pods, serving_acks
from moe_operator.reconcile.gateway_intent import wanted_intent
from moe_operator.reconcile.isolate import gateway_spec
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.resources.gateway import gateway_objects, intent_config_map
from moe_operator.resources.http_route import GATEWAY_API, SERVING, backend_service, http_route
from moe_operator.resources.inference_pool import INFERENCE_API, inference_pool
from moe_operator.resources.ownership import Owner, pod_mark

MANAGED_KINDS = (
    "Deployment", "Service", "PodDisruptionBudget", "RoleBinding", "Role", "ServiceAccount",
)  # fmt: skip
API_OF = {ROUTE: GATEWAY_API, POOL: INFERENCE_API}


def route(snapshot: Snapshot, draft: Draft) -> Draft:
    """Apply what requests need to arrive and do not have; take away what they do not need any more."""
    draft = _refresh_keys(snapshot, draft)
    spec = gateway_spec(draft)
    if spec is None or snapshot.namespace_terminating:
        return draft
    intent = wanted_intent(snapshot, draft, spec)
    owner = _owner(snapshot)
    gateway = draft.status.gateway.model_copy(update={"generation": intent.generation})
    draft = _apply(snapshot, draft, [intent_config_map(owner, intent)]).with_status(gateway=gateway)
    to = spec.gateway.external
    return _external(snapshot, draft, spec, to, intent) if to else _managed(snapshot, draft, spec, intent)


def _owner(snapshot: Snapshot) -> Owner:
    return Owner(snapshot.name, snapshot.namespace, snapshot.uid)


def _apply(snapshot: Snapshot, draft: Draft, objects: Iterable[Obj]) -> Draft:
    wanted = map(stamped, objects)
    return draft.apply(*(o for o in wanted if differs(snapshot.child(o["kind"], o["metadata"]["name"]), o)))


# A gateway of our own


def _managed(snapshot: Snapshot, draft: Draft, spec: MoESpec, intent: Intent) -> Draft:
    draft = _apply(snapshot, draft, gateway_objects(_owner(snapshot), spec, snapshot.policy))
    there = [*way_objects(snapshot), *_backends(snapshot)]
    if not there:
        return _marked(snapshot, draft, set())
    acks = [] if through_route(snapshot) else serving_acks(snapshot)
    if not acks or any(ack.generation < intent.generation for ack in acks):
        return draft
    return _without(draft, there, "the managed gateway has taken over")


def _refresh_keys(snapshot: Snapshot, draft: Draft) -> Draft:
    """Repeat the deployment's annotation on each gateway pod.

    A kubelet that sees a pod change syncs its volumes, and with them the Secret of the keys, at once.
    """
    wish = (snapshot.object["metadata"].get("annotations") or {}).get(ANNOTATION_REFRESH_KEYS)
    if not wish:
        return draft
    marks = {ANNOTATION_REFRESH_KEYS: wish, ANNOTATION_REFRESHED: moment(snapshot.now)}
    behind = [
        pod
        for pod in gateway_pods(snapshot)
        if (pod["metadata"].get("annotations") or {}).get(ANNOTATION_REFRESH_KEYS) != wish
    ]
    return draft.mark(*(Mark(pod_mark(pod, annotations=marks)) for pod in behind))


# A gateway of others


def _external(snapshot: Snapshot, draft: Draft, spec: MoESpec, to: External, intent: Intent) -> Draft:
    kind, name = _way(snapshot, to)
    obstacle = _obstacle(snapshot, kind, name)
    if obstacle:
        draft = draft.stalled(*obstacle).wake(SETTLE_SECONDS)
        return draft.say(ConditionType.GATEWAY_READY, "False", *obstacle)
    before = next((r for r in observed_routes(snapshot) if (r.kind, r.name) == (kind, name)), None)
    wanted = wanted_weights(intent, draft.status.active_revision or draft.status.target_revision)
    wanted = all_to_one(wanted) if kind == POOL else wanted
    weights = next_weights(wanted, before)
    same = before is not None and before.weights == weights
    since = (before.since if before and same else "") or moment(snapshot.now)
    generation = intent.generation if weights == wanted else ON_THE_WAY
    draft = _marked(snapshot, draft, {e.pod for c in intent.colours for e in c.endpoints if not e.leaving})
    owner = _owner(snapshot)
    draft = _apply(snapshot, draft, _way_objects(owner, spec, to, weights, generation, since))
    managed = list(_managed_objects(snapshot))
    if before and same and before.known:
        others = [o for o in way_objects(snapshot) if (o["kind"], o["metadata"]["name"]) != (kind, name)]
        backends = _backends(snapshot, weights if kind == ROUTE else ())
        return _without(draft, [*managed, *others, *backends], "no request comes this way any more")
    draft = draft.wake(before.settled_in if before and same else SETTLE_SECONDS)
    return _apply(snapshot, draft, gateway_objects(owner, spec, snapshot.policy)) if managed else draft


def _way(snapshot: Snapshot, to: External) -> tuple[str, str]:
    """Kind and name of what leads to the engines."""
    return (POOL, to.inference_pool.name) if to.inference_pool else (ROUTE, gateway_name(snapshot.name))


def _obstacle(snapshot: Snapshot, kind: str, name: str) -> tuple[Reason, str] | None:
    if kind not in snapshot.children:
        return Reason.GATEWAY_API_ABSENT, f"the API server does not serve {API_OF[kind]}/v1 {kind}s"
    if name in snapshot.taken.get(kind, ()):
        return Reason.NAME_TAKEN, f"{kind} {name} exists and does not belong to this deployment"
    return None


def _way_objects(
    owner: Owner, spec: MoESpec, to: External, weights: Mapping[str, int], generation: int, since: str
) -> Iterable[Obj]:
    if to.inference_pool:
        yield inference_pool(owner, to.inference_pool, weights, generation, since)
    if to.http_route_ref:
        yield from (backend_service(owner, revision) for revision in sorted(weights))
        yield http_route(owner, spec, to.http_route_ref, weights, generation, since)


def _without(draft: Draft, objects: Iterable[Obj], why: str) -> Draft:
    refs = tuple(map(ref_of, objects))
    return draft.delete(Delete(refs, why)) if refs else draft


def _managed_objects(snapshot: Snapshot) -> Iterable[Obj]:
    name = gateway_name(snapshot.name)
    return (found for kind in MANAGED_KINDS if (found := snapshot.child(kind, name)))


def _backends(snapshot: Snapshot, needed: Container[str] = ()) -> Iterable[Obj]:
    """Services of revisions that a route does not need."""
    for service in snapshot.children.get("Service", ()):
        labels = service["metadata"].get("labels") or {}
        revision = labels.get(LABEL_REVISION)
        if labels.get(LABEL_COMPONENT) == COMPONENT_GATEWAY and revision and revision not in needed:
            yield service


def _marked(snapshot: Snapshot, draft: Draft, serving: set[str]) -> Draft:
    """Leaders carry the mark by which a backend's Service finds them exactly while they serve."""
    wrong = [p for p in snapshot.pods if is_marked(p) != (p["metadata"]["name"] in serving)]
    marks = [pod_mark(p, labels={} if is_marked(p) else SERVING) for p in wrong]
    return draft.mark(*map(Mark, marks))
