"""Step 8: free what nobody needs any more, node by node.

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
from moe_operator.reconcile.actions import Obj
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.kept import own_views, views_on
from moe_operator.reconcile.site_looks import job_ended, last_words, pods_of_job
from moe_operator.reconcile.sites import id_of, with_store_list
from moe_operator.reconcile.snapshot import Fleet, Snapshot
from moe_operator.reconcile.store_jobs import ended_at, is_busy, trouble_of, with_results
from moe_operator.resources.gc_job import gc_job
from moe_operator.resources.ownership import Owner

EVERY_SECONDS = 24 * 3600.0
LOOK_SECONDS = 5.0


def collect(snapshot: Snapshot, draft: Draft) -> Draft:
    """One step of every store that has something to free."""
    if draft.wish is None:
        return draft
    draft = with_results(
        snapshot,
        draft,
        COMPONENT_COLLECTOR,
        lambda store: _job_name(snapshot, store),
        lambda store, job: _after(snapshot, store, job),
    )
    draft = with_store_list(draft, (s for s in draft.status.stores if s.views))
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


def _is_old(store: StoreStatus, now: float) -> bool:
    return store.collected_at is not None and elapsed(store.collected_at, now) >= EVERY_SECONDS


def _job_name(snapshot: Snapshot, store: StoreStatus) -> str:
    return collector_name(snapshot.name, store_key(*id_of(store)))


def _after(snapshot: Snapshot, store: StoreStatus, job: Obj) -> tuple[StoreStatus, bool]:
    if trouble := _trouble(snapshot, job):
        return store.model_copy(update={"message": trouble}), False
    kept = set((job["metadata"].get("annotations") or {}).get(ANNOTATION_KEPT, "").split(","))
    views = [view for view in store.views if view in kept]
    now = moment(ended_at(snapshot, job))
    return store.model_copy(update={"views": views, "collected_at": now, "message": ""}), True


def _trouble(snapshot: Snapshot, job: Obj) -> str:
    """Why a collector freed nothing; "" when it did, even if that was less than the disk needs."""
    if job_ended(job, "Complete") is not None:
        return ""
    pods = pods_of_job(snapshot.pods, job)
    words = last_words(pods[-1]) if pods else None
    if words is not None and words.code == StageExit.INSUFFICIENT_DISK:
        return ""
    return trouble_of(snapshot, job)


def _begun(snapshot: Snapshot, draft: Draft, fleet: Fleet, store: StoreStatus) -> Draft:
    if fleet.nodes.get(store.node) != store.node_uid:  # gone, and its disk with it
        return with_store_list(draft, (s for s in draft.status.stores if id_of(s) != id_of(store)))
    if is_busy(fleet, store.node, draft.applies):
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
