"""Step 7: free what nobody needs any more, node by node.

A collector is told everything that stays, of every deployment, so whatever else lies in the store goes: files
of revisions that are not kept, of deployments that are gone, of pulls that nobody goes on with. It runs where
this deployment has files that it does not keep, and once a day everywhere. It begins only while nothing fills
that node's store, under the same lock as stagers begin, so the two never meet.

What is on record leaves the record when the collector that freed it has ended well.
"""

from __future__ import annotations

from dataclasses import replace

from moe_operator.api.manifest import StageExit
from moe_operator.api.moments import elapsed, moment
from moe_operator.api.names import ANNOTATION_KEPT, COMPONENT_COLLECTOR, collector_name, store_key
from moe_operator.api.status import StoreStatus
from moe_operator.reconcile.actions import Delete, Obj
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.kept import own_views, views_on
from moe_operator.reconcile.site_looks import is_over, job_ended, last_words, pods_of_job
from moe_operator.reconcile.sites import StoreId, with_store_list
from moe_operator.reconcile.snapshot import Fleet, Snapshot
from moe_operator.reconcile.store_jobs import component, refs, works_on
from moe_operator.resources.gc_job import gc_job
from moe_operator.resources.ownership import Owner

EVERY_SECONDS = 24 * 3600.0
AGAIN_SECONDS = 3600.0  # after a collector that could not
LOOK_SECONDS = 5.0


def collect(snapshot: Snapshot, draft: Draft) -> Draft:
    """One step of every store that has something to free."""
    if draft.wish is None:
        return draft
    draft = _collected(snapshot, draft)
    due = due_stores(snapshot, draft)
    if not due:
        return draft
    if snapshot.fleet is None:
        return draft.wake(0.0)
    for store in due:
        draft = _begun(snapshot, draft, snapshot.fleet, store)
    return draft


def due_stores(snapshot: Snapshot, draft: Draft) -> list[StoreStatus]:
    """Stores with files that this deployment does not keep, or that nobody looked through for a day."""
    if draft.wish is None or snapshot.namespace_terminating:
        return []
    kept = own_views(draft, draft.wish.weights.retain_revisions)
    return [
        store
        for store in draft.status.stores
        if snapshot.child("Job", _job_name(snapshot, store)) is None
        and (set(store.views) - kept or _is_old(store, snapshot.now))
        and store.cache_class in snapshot.policy.cache_classes
    ]


def id_of(store: StoreStatus) -> StoreId:
    """Which disk a record is about."""
    return (store.cache_class, store.node, store.node_uid)


def _is_old(store: StoreStatus, now: float) -> bool:
    return store.collected_at is not None and elapsed(store.collected_at, now) >= EVERY_SECONDS


def _job_name(snapshot: Snapshot, store: StoreStatus) -> str:
    return collector_name(snapshot.name, store_key(*id_of(store)))


def _collected(snapshot: Snapshot, draft: Draft) -> Draft:
    """With the records of stores whose collector has ended, and without that collector."""
    found = [j for j in snapshot.children.get("Job", ()) if component(j) == COMPONENT_COLLECTOR]
    jobs = {j["metadata"]["name"]: j for j in found}
    stores, over = [], []
    for store in draft.status.stores:
        job = jobs.pop(_job_name(snapshot, store), None)
        if job is None or not is_over(job):
            draft = draft if job is None else draft.wake(LOOK_SECONDS)
            stores.append(store)
            continue
        trouble = _trouble(snapshot, job)
        stores.append(_after(store, job, trouble, snapshot.now))
        left = AGAIN_SECONDS - (snapshot.now - (job_ended(job, "Failed") or snapshot.now)) if trouble else 0.0
        if left <= 0:
            over.append(job)
        else:
            draft = draft.wake(left)
    draft = with_store_list(draft, (s for s in stores if s.views))
    gone = refs([*over, *filter(is_over, jobs.values())])  # a store may leave the record before its Job goes
    return draft.delete(Delete(gone, "its store is collected")) if gone else draft


def _after(store: StoreStatus, job: Obj, trouble: str, now: float) -> StoreStatus:
    if trouble:
        return store.model_copy(update={"message": trouble})
    kept = set((job["metadata"].get("annotations") or {}).get(ANNOTATION_KEPT, "").split(","))
    ended = job_ended(job, "Complete") or job_ended(job, "Failed") or now
    views = [view for view in store.views if view in kept]
    return store.model_copy(update={"views": views, "collected_at": moment(ended), "message": ""})


def _trouble(snapshot: Snapshot, job: Obj) -> str:
    """Why a collector freed nothing; "" when it did, even if that was less than the disk needs."""
    if job_ended(job, "Complete") is not None:
        return ""
    pods = pods_of_job(snapshot.pods, job)
    words = last_words(pods[-1]) if pods else None
    if words is None:
        return "the collector ended without a word"
    return "" if words.code == StageExit.INSUFFICIENT_DISK else f"{words.reason}: {words.message}"


def _begun(snapshot: Snapshot, draft: Draft, fleet: Fleet, store: StoreStatus) -> Draft:
    if fleet.nodes.get(store.node) != store.node_uid:  # gone, and its disk with it
        return with_store_list(draft, (s for s in draft.status.stores if id_of(s) != id_of(store)))
    if is_busy(fleet, draft, store.node):
        return draft.wake(LOOK_SECONDS)
    assert draft.wish is not None
    kept = own_views(draft, draft.wish.weights.retain_revisions) & set(store.views)
    others = views_on(id_of(store), fleet, without=f"{snapshot.namespace}/{snapshot.name}")
    job = gc_job(
        Owner(snapshot.name, snapshot.namespace, snapshot.uid),
        snapshot.policy,
        snapshot.policy.cache_classes[store.cache_class],
        _job_name(snapshot, store),
        store.node,
        kept | others,
    )
    return replace(draft.apply(job), claims=True).wake(LOOK_SECONDS)


def is_busy(fleet: Fleet, draft: Draft, node: str) -> bool:
    """Whether a stager or a collector works on a node's store, or begins to in this very pass."""
    begins = any(o["kind"] == "Job" and works_on(o) == node for o in draft.applies)
    return begins or any(works_on(job) == node and not is_over(job) for job in fleet.jobs)
