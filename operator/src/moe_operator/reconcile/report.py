"""Step 11: what people and tools read: conditions, counts, the group that holds things up.

kstatus rules: ``Ready`` is there from the first write, ``Reconciling`` and ``Stalled`` only while they hold,
``observedGeneration`` always. ``Ready`` is about serving: a healthy rollout and a refused edit leave it True.
A condition keeps its transition time until its status changes, so an unchanged world writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.intent import Ack
from moe_operator.api.moments import moment
from moe_operator.api.names import (
    COMPONENT_ENGINE,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    LABEL_ROLE,
    ROLE_LEADER,
    gateway_name,
    label_value,
)
from moe_operator.api.status import Condition, GatewayStatus
from moe_operator.reconcile.actions import Event
from moe_operator.reconcile.draft import Draft, Truth, Verdict
from moe_operator.reconcile.external_route import Route, observed_routes, through_route
from moe_operator.reconcile.gateway_acks import (
    gateway_pods,
    keys_in_force,
    keys_look_seconds,
    reachable,
    rejections,
    serving_acks,
)
from moe_operator.reconcile.isolate import gateway_spec
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.rollout.groups import Group
from moe_operator.rollout.rank_pod import pod_trouble

LOOK_SECONDS = 1.0
PENDING = Verdict("Unknown", Reason.PENDING)


def report(snapshot: Snapshot, draft: Draft) -> Draft:
    """Conclude the conditions that sum up the others, and write them all."""
    draft = _gateway(snapshot, draft)
    draft = _serving(snapshot, draft)
    draft = _progress(draft)
    draft = _api_error(snapshot, draft)
    selector = ",".join(
        (
            f"{LABEL_DEPLOYMENT}={label_value(snapshot.name)}",
            f"{LABEL_COMPONENT}={COMPONENT_ENGINE}",
            f"{LABEL_ROLE}={ROLE_LEADER}",
        )
    )
    draft = _transitions(snapshot, draft)
    return draft.with_status(
        observed_generation=snapshot.generation,
        replicas=len([g for g in draft.groups if g.revision == _serving_revision(draft) and g.pods]),
        ready_replicas=len(_serving_groups(draft)),
        selector=selector,
    )


def _serving_revision(draft: Draft) -> str:
    return draft.status.active_revision or draft.status.target_revision


def _serving_groups(draft: Draft) -> list[Group]:
    return [g for g in draft.groups_of(draft.status.active_revision) if g.serving]


def _gateway(snapshot: Snapshot, draft: Draft) -> Draft:
    if ConditionType.GATEWAY_READY in draft.conditions:  # there is nothing that it could be ready with
        return draft
    if through_route(snapshot):
        return _route(snapshot, draft)
    name, kind = gateway_name(snapshot.name), ConditionType.GATEWAY_READY
    pods, acks = gateway_pods(snapshot), serving_acks(snapshot)
    service = snapshot.child("Service", name)
    port = service["spec"]["ports"][0]["port"] if service else 0
    generation = draft.status.gateway.generation
    acked = min((a.generation for a in acks), default=-1)
    status = GatewayStatus(
        replicas=len(pods),
        ready_replicas=len(acks),
        endpoint=f"http://{name}.{snapshot.namespace}.svc:{port}" if port else "",
        generation=generation,
        acked_generation=acked,
        keys_digest=keys_in_force(acks),
    )
    draft = draft.with_status(gateway=status)
    refused = "; ".join(rejections(snapshot))
    if refused:
        said = f"configuration {acked} goes on serving; {refused}"
        return draft.say(kind, "False", Reason.GATEWAY_CONFIG_REJECTED, said).wake(LOOK_SECONDS)
    troubles = (pod_trouble(p, snapshot.complaints.get(p["metadata"]["uid"], "")) for p in pods)
    trouble = next((f": {trouble.message}" for trouble in troubles if trouble), "")
    if trouble or not acks:
        reason = Reason.GATEWAY_STARTING if snapshot.child("Deployment", name) else Reason.PENDING
        said = f"{len(acks)} of {len(pods)} gateway pods are ready{trouble}"
        return draft.say(kind, "False", reason, said)
    if acked < generation or any(p["kind"] == "ConfigMap" for p in draft.applies):
        said = f"configuration {generation} is on its way; the slowest gateway pod runs {acked}"
        return draft.say(kind, "False", Reason.GATEWAY_STARTING, said).wake(LOOK_SECONDS)
    look = keys_look_seconds(snapshot, acks)
    draft = draft if look is None else draft.wake(look)
    said = f"{len(acks)} gateway pod(s) run configuration {generation}; {_who_gets_in(draft, acks)}"
    return draft.say(kind, "True", Reason.GATEWAY_READY, said)


def _route(snapshot: Snapshot, draft: Draft) -> Draft:
    found, kind = observed_routes(snapshot), ConditionType.GATEWAY_READY
    generation = draft.status.gateway.generation
    acked = min(ack.generation for ack in serving_acks(snapshot))
    draft = draft.with_status(gateway=GatewayStatus(generation=generation, acked_generation=acked))
    refused = "; ".join(route.refusal for route in found if route.refusal)
    if refused:
        return draft.say(kind, "False", Reason.ROUTE_NOT_ACCEPTED, refused).wake(LOOK_SECONDS)
    ways = "; ".join(map(_way, found))
    if acked < generation:
        settled_in = max(route.settled_in for route in found)
        said = f"on its way to the gateway, {settled_in:.0f} s to settle: {ways}"
        return draft.say(kind, "False", Reason.GATEWAY_STARTING, said).wake(settled_in + LOOK_SECONDS)
    return draft.say(kind, "True", Reason.GATEWAY_READY, f"accepted: {ways}")


def _way(route: Route) -> str:
    shares = ", ".join(f"{revision} {weight}" for revision, weight in sorted(route.weights.items()))
    return f"{route.kind} {route.name} with weights {shares}"


def _who_gets_in(draft: Draft, acks: Iterable[Ack]) -> str:
    """The door in words: nobody should have to read a spec to learn that it is open."""
    spec = gateway_spec(draft)
    auth = spec.gateway.auth if spec else None
    if auth is None:
        return "open to whoever can connect: no API keys are asked for"
    secret = f"API keys of Secret {auth.secret_ref.name}"
    if draft.intent and draft.intent.keys:
        missing = ", and it has none: nobody gets in" if any(ack.keys == 0 for ack in acks) else ""
        return f"{secret} are asked for{missing}"
    return f"open until every gateway pod has the {secret} mounted"


def _serving(snapshot: Snapshot, draft: Draft) -> Draft:
    serving = len(_serving_groups(draft))
    wanted = draft.wish.replicas if draft.wish else len(draft.groups_of(draft.status.active_revision))
    arrive = reachable(snapshot)
    if wanted == 0 and draft.wish:
        draft = draft.say(ConditionType.AVAILABLE, "False", Reason.SCALED_TO_ZERO, "spec.replicas is 0")
        return draft.say(ConditionType.READY, "True", Reason.SCALED_TO_ZERO, "nothing is to serve")
    available: Truth = "True" if serving and arrive else "False"
    active = draft.status.active_revision
    said = f"{serving} of {wanted} group(s) of revision {active} serve" if active else "nothing serves yet"
    said += "" if arrive else "; no request arrives: no gateway is ready"
    reason = Reason.SERVING if available == "True" else Reason.NOT_SERVING
    draft = draft.say(ConditionType.AVAILABLE, available, reason, said)
    whole = available == "True" and serving >= wanted and _knows(draft)
    if whole or not draft.status.active_revision:
        draft = draft.say(ConditionType.DEGRADED, "False", reason, "")
    else:
        draft = draft.say(ConditionType.DEGRADED, "True", *_why_degraded(draft, said))
    if whole:
        return draft.say(ConditionType.READY, "True", Reason.SERVING, said)
    if available == "True" and serving >= wanted:
        said = f"{said}; the gateway is being told"
        return draft.say(ConditionType.READY, "False", Reason.GATEWAY_STARTING, said)
    return draft.say(ConditionType.READY, "False", Reason.NOT_SERVING, said)


def _knows(draft: Draft) -> bool:
    """Whether the gateway has been told about what serves: then a request arrives."""
    gateway = draft.condition(ConditionType.GATEWAY_READY)
    was_ready = draft.status.condition(ConditionType.READY)
    return gateway.status == "True" or bool(was_ready and was_ready.status == "True")


def _why_degraded(draft: Draft, said: str) -> tuple[Reason, str]:
    for group in draft.groups_of(draft.status.active_revision):
        if group.record.phase == "Failed":
            return Reason.RESTARTS_EXHAUSTED, f"replica {group.replica}: {group.record.message}"
        if group.record.phase == "Restarting" or group.record.restarts:
            return Reason.GROUP_RESTARTING, f"replica {group.replica}: {group.record.message or said}"
    return Reason.NOT_SERVING, said


PHASES = {
    "Preflight": Reason.INSUFFICIENT_CAPACITY_FOR_ROLLOUT,
    "Staging": Reason.STAGING,
    "Starting": Reason.REVISION_STARTING,
    "Verifying": Reason.VERIFYING,
    "Shifting": Reason.SWITCHING,
    "Draining": Reason.DRAINING_OLD,
    "Retiring": Reason.DRAINING_OLD,
}


def _progress(draft: Draft) -> Draft:
    kind, stalled = ConditionType.PROGRESSING, draft.conditions.get(ConditionType.STALLED)
    rollout = draft.status.rollout
    if ConditionType.CAPACITY_FOR_ROLLOUT not in draft.conditions:
        in_flight = rollout.phase in PHASES
        reason = Reason.CAPACITY_AVAILABLE if in_flight else Reason.NOT_APPLICABLE
        truth: Truth = "True" if in_flight else "Unknown"
        draft = draft.say(ConditionType.CAPACITY_FOR_ROLLOUT, truth, reason)
    draft = draft.say(ConditionType.ROLLOUT_PAUSED, "False", Reason.NOT_APPLICABLE)
    failed = [g for g in draft.groups if g.record.phase == "Failed" and g.revision in draft.wanted]
    if not stalled and failed:
        said = f"revision {failed[0].revision} replica {failed[0].replica}: {failed[0].record.message}"
        draft = draft.stalled(Reason.RESTARTS_EXHAUSTED, said)
        stalled = draft.conditions[ConditionType.STALLED]
    if stalled:
        if kind not in draft.conditions:
            draft = draft.say(kind, "False", stalled.reason, stalled.message)
        return draft
    done = draft.condition(ConditionType.READY).status == "True" and rollout.phase == "Stable"
    if done:
        return draft.say(
            kind, "False", Reason.REVISION_READY, f"revision {draft.status.active_revision} serves"
        )
    reason, said = _what_goes_on(draft)
    draft = draft.say(kind, "True", reason, said)
    return draft.say(ConditionType.RECONCILING, "True", reason, said)


def _what_goes_on(draft: Draft) -> tuple[Reason, str]:
    """The first thing in the chain that is not done yet."""
    for kind in (ConditionType.PLAN_ACCEPTED, ConditionType.CAPACITY_FOR_ROLLOUT, ConditionType.PLACED):
        verdict = draft.condition(kind)
        if verdict.status != "True" and verdict.reason is not Reason.NOT_APPLICABLE:
            return verdict.reason, verdict.message
    stuck = next((g for g in draft.groups if g.record.message and g.revision in draft.wanted), None)
    if stuck:
        trouble = next((p.trouble for p in stuck.current if p.trouble), None)
        reason = trouble.reason if trouble else Reason.GROUP_RESTARTING
        return reason, f"replica {stuck.replica}: {stuck.record.message}"
    staged = draft.condition(ConditionType.WEIGHTS_STAGED)
    if staged.status == "False":
        return staged.reason, staged.message
    phase = draft.status.rollout.phase
    starting = draft.groups_of(draft.status.target_revision)
    ranks = f"{sum(g.record.ready_ranks for g in starting)} of {sum(g.size for g in starting)} ranks ready"
    return PHASES.get(phase, Reason.GROUP_STARTING), ranks


def _api_error(snapshot: Snapshot, draft: Draft) -> Draft:
    if not snapshot.last_error:
        return draft
    return draft.say(ConditionType.PROGRESSING, "False", Reason.API_ERROR, snapshot.last_error)


def _transitions(snapshot: Snapshot, draft: Draft) -> Draft:
    conditions = [c for kind in ConditionType if (c := _condition(snapshot, draft, kind))]
    for condition in conditions:
        before = draft.status.condition(condition.type)
        if condition.type == ConditionType.READY and (before is None or before.status != condition.status):
            up = condition.status == "True"
            if before is not None or up:
                kind: Literal["Normal", "Warning"] = "Normal" if up else "Warning"
                draft = draft.event(Event(kind, condition.reason, condition.message))
    return draft.with_status(conditions=conditions)


def _condition(snapshot: Snapshot, draft: Draft, kind: ConditionType) -> Condition | None:
    verdict = draft.conditions.get(kind)
    if kind.only_when_true and (verdict is None or verdict.status != "True"):
        return None
    verdict = verdict or PENDING
    before = draft.status.condition(kind)
    same = before is not None and before.status == verdict.status
    return Condition(
        type=kind,
        status=verdict.status,
        reason=verdict.reason,
        message=verdict.message,
        observed_generation=snapshot.generation,
        last_transition_time=before.last_transition_time if before and same else moment(snapshot.now),
    )
