"""What is done before a MoEDeployment may vanish: engines end, then its files leave the nodes' stores.

Engine pods are deleted together and at once; their long grace period is meant for drains, and nobody drains
a deployment that was deleted. Pulls that are under way end with them. Then a last collector per node frees
what no other deployment keeps. Everything else belongs to the object by ownerReference and goes with it.

Patience is limited: pods on a dead node, or a store that cannot be reached, never hold up a delete for long.
What is left there is freed by the next collector that any deployment sends to that node.
"""

from __future__ import annotations

from collections.abc import Sequence

from moe_operator.api.moments import elapsed
from moe_operator.api.names import COMPONENT_ENGINE, COMPONENT_STAGER, FINALIZER, collector_name, store_key
from moe_operator.api.status import Status, StoreStatus
from moe_operator.reconcile.actions import Action, Apply, Decision, Delete, Obj, Ref, RemoveFinalizer
from moe_operator.reconcile.kept import views_on
from moe_operator.reconcile.site_looks import is_over
from moe_operator.reconcile.sites import id_of
from moe_operator.reconcile.snapshot import Fleet, Snapshot
from moe_operator.reconcile.store_jobs import component, is_busy, making_way, refs
from moe_operator.resources.gc_job import gc_job
from moe_operator.resources.ownership import Owner

GRACE_SECONDS = 10  # workers whose leader went first ignore SIGTERM (vLLM 0.32)
PATIENCE_SECONDS = 60  # with engines and pulls
COLLECT_SECONDS = 120  # with everything, collectors included
LOOK_SECONDS = 2.0
OVER = frozenset({"Succeeded", "Failed"})


def teardown(snapshot: Snapshot) -> Decision:
    """One step towards nothing."""
    if FINALIZER not in (snapshot.object["metadata"].get("finalizers") or ()):
        return Decision(status=None)
    waited = elapsed(snapshot.object["metadata"]["deletionTimestamp"], snapshot.now)
    pods = _users_of_stores(snapshot)
    if pods and waited <= PATIENCE_SECONDS:
        return Decision(status=None, actions=_ended(snapshot, pods), wake_after=PATIENCE_SECONDS - waited + 1)
    stores = _stores_left(snapshot)
    if not stores or waited > COLLECT_SECONDS:
        return Decision(status=None, actions=(RemoveFinalizer(),))
    if snapshot.fleet is None:
        return Decision(status=None, wake_after=0.0)
    return _collect(snapshot, snapshot.fleet, stores)


def frees_stores(snapshot: Snapshot) -> bool:
    """Whether last collectors are to begin or to be waited for now."""
    waited = elapsed(snapshot.object["metadata"]["deletionTimestamp"], snapshot.now)
    patient = waited <= PATIENCE_SECONDS and bool(_users_of_stores(snapshot))
    return not patient and bool(_stores_left(snapshot))


def _users_of_stores(snapshot: Snapshot) -> list[Obj]:
    """Engine pods, and pods of pulls that are under way."""
    return [
        pod
        for pod in snapshot.pods
        if component(pod) == COMPONENT_ENGINE
        or (component(pod) == COMPONENT_STAGER and (pod.get("status") or {}).get("phase") not in OVER)
    ]


def _stores_left(snapshot: Snapshot) -> list[StoreStatus]:
    """Stores with files of this deployment that no last collector has gone through yet."""
    if snapshot.namespace_terminating:
        return []  # nothing can be created in it
    stores = Status.model_validate(snapshot.object.get("status") or {}).stores
    jobs = {j["metadata"]["name"]: j for j in snapshot.children.get("Job", ())}
    return [
        store
        for store in stores
        if store.cache_class in snapshot.policy.cache_classes
        and not ((job := jobs.get(_job_name(snapshot, store))) and is_over(job))
    ]


def _job_name(snapshot: Snapshot, store: StoreStatus) -> str:
    return collector_name(snapshot.name, store_key(*id_of(store)), last=True)


def _ended(snapshot: Snapshot, pods: Sequence[Obj]) -> tuple[Action, ...]:
    pulls = refs(j for j in snapshot.children.get("Job", ()) if component(j) == COMPONENT_STAGER)
    engines = tuple(
        Ref("Pod", snapshot.namespace, p["metadata"]["name"], p["metadata"]["uid"])
        for p in pods
        if component(p) == COMPONENT_ENGINE
        and (
            not p["metadata"].get("deletionTimestamp")
            or int(p["metadata"].get("deletionGracePeriodSeconds") or 0) > GRACE_SECONDS
        )
    )
    if engines:
        return (Delete(engines, "the MoEDeployment is being deleted", GRACE_SECONDS),)
    return (Delete(pulls, "the MoEDeployment is being deleted"),) if pulls else ()


def _collect(snapshot: Snapshot, fleet: Fleet, stores: Sequence[StoreStatus]) -> Decision:
    present = [s for s in stores if fleet.nodes.get(s.node) == s.node_uid]
    if not present:
        return Decision(status=None, actions=(RemoveFinalizer(),))
    owner = Owner(snapshot.name, snapshot.namespace, snapshot.uid)
    begun: list[Action] = []
    for store in present:
        name = _job_name(snapshot, store)
        if snapshot.child("Job", name) or is_busy(fleet, store.node):
            continue
        keep = views_on(id_of(store), fleet, without=f"{snapshot.namespace}/{snapshot.name}")
        cache = snapshot.policy.cache_classes[store.cache_class]
        begun.append(Apply(gc_job(owner, snapshot.policy, cache, name, store.node, keep)))
    way = making_way(fleet.jobs, {store.node for store in present}, snapshot.policy)
    actions = (*begun, *((way,) if way else ()))
    return Decision(status=None, actions=actions, wake_after=LOOK_SECONDS, claims=bool(begun))
