"""Which IO the next decision needs, computed from the children alone.

Nodes and other owners' pods are read only while something has to be placed; other deployments' staging only
while something has to be staged, freed or read again; engines are asked only while
they have to prove themselves; gateways are asked while there are any.
"""

from __future__ import annotations

from moe_operator.api.names import COMPONENT_STAGER, LABEL_COMPONENT
from moe_operator.api.spec import MoESpec
from moe_operator.reconcile.accept import accept
from moe_operator.reconcile.actions import Obj
from moe_operator.reconcile.collect import due_stores
from moe_operator.reconcile.decide import first_draft
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.external_route import through_route
from moe_operator.reconcile.gateway_acks import draining_gateways, gateway_pods
from moe_operator.reconcile.mend import has_to_mend
from moe_operator.reconcile.place import rollout_failed, unplaced
from moe_operator.reconcile.plan import plan_step, resolver_pods
from moe_operator.reconcile.scrub import due_scrubs
from moe_operator.reconcile.serve import served_name
from moe_operator.reconcile.sites import sites_of, waits_for_files
from moe_operator.reconcile.snapshot import Snapshot, Wants
from moe_operator.reconcile.teardown import frees_stores
from moe_operator.rollout.groups import Group
from moe_operator.rollout.rank_pod import waits_silently


def wants(snapshot: Snapshot) -> Wants:
    """What to gather beyond the children."""
    if snapshot.deleting:
        return Wants(fleet=frees_stores(snapshot))
    accepted = accept(snapshot, first_draft(snapshot))
    draft = plan_step(snapshot, accepted)
    asked = [*gateway_pods(snapshot), *draining_gateways(snapshot)]
    unproven = [
        (g, g.leader)
        for g in draft.groups
        if g.ready and not g.record.verified and g.leader and g.leader.ip and g.revision in draft.records
    ]
    return Wants(
        cluster=_must_place(draft),
        fleet=bool(due_stores(snapshot, draft))
        or bool(due_scrubs(snapshot, draft))
        or has_to_mend(draft, sites_of(draft))
        or any(waits_for_files(draft, g) and _is_staged(draft, g) for g in draft.groups),
        complaints=frozenset(p["metadata"]["uid"] for p in snapshot.pods if waits_silently(p)),
        resolver_pod_ip=_resolver_ip(snapshot, accepted.wish),
        stager_pods={
            p.name: p.ip for g in draft.groups for p in g.current if p.ip and not p.staged and not p.ended
        }
        | {p["metadata"]["name"]: _ip(p) for p in snapshot.pods if _is_pulling(p)},
        leaders={leader.name: leader.ip for _, leader in unproven} | _behind_route(snapshot, draft),
        completions={
            leader.name: served_name(snapshot, draft.records[group.revision].spec)
            for group, leader in unproven
        },
        gateway_pods={p["metadata"]["name"]: ip for p in asked if (ip := _ip(p))},
        ack_generation=draft.intent.generation if draft.intent else -1,
    )


def _is_staged(draft: Draft, group: Group) -> bool:
    """Whether there are files that a group's nodes must hold."""
    revision = draft.records.get(group.revision)
    return bool(revision and revision.view)


def _is_pulling(pod: Obj) -> bool:
    return _component(pod) == COMPONENT_STAGER and _running(pod) and bool(_ip(pod))


def _behind_route(snapshot: Snapshot, draft: Draft) -> dict[str, str]:
    """Leaders that only we can ask: a gateway of others tells nobody what runs on them."""
    if draft.intent is None or not through_route(snapshot):
        return {}
    return {e.pod: e.address for colour in draft.intent.colours for e in colour.endpoints}


def _must_place(draft: Draft) -> bool:
    if draft.target is None or draft.wish is None or rollout_failed(draft, draft.target):
        return False
    return bool(unplaced(draft, draft.target, draft.wish.replicas))


def _resolver_ip(snapshot: Snapshot, wish: MoESpec | None) -> str:
    asked = resolver_pods(snapshot, wish) if wish else []
    return next((_ip(pod) for pod in asked if _running(pod) and _ip(pod)), "")


def _component(pod: Obj) -> str:
    return str((pod["metadata"].get("labels") or {}).get(LABEL_COMPONENT, ""))


def _running(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get(
        "deletionTimestamp"
    )


def _ip(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")
