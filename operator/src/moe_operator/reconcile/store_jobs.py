"""Jobs and pods that work on nodes' stores, as they tell of themselves.

A node's store is filled, freed or read again, one of them at a time. A scrubber waits until nobody else works
there and makes way for whoever comes: what it proved is on the disk, so the next one goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from moe_operator.api.names import ANNOTATION_NODE, COMPONENT_SCRUBBER, LABEL_COMPONENT
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.status import StoreStatus
from moe_operator.reconcile.actions import Delete, Obj, Ref
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.site_looks import is_over, job_ended, last_words, pods_of_job
from moe_operator.reconcile.sites import with_store_list
from moe_operator.reconcile.snapshot import Fleet, Snapshot

AGAIN_SECONDS = 3600.0  # after a Job that could not


def component(obj: Obj) -> str:
    """What an object of ours is for."""
    return str((obj["metadata"].get("labels") or {}).get(LABEL_COMPONENT, ""))


def works_on(job: Obj) -> str:
    """The node whose store a Job of ours works on; "" for other Jobs."""
    return str((job["metadata"].get("annotations") or {}).get(ANNOTATION_NODE, ""))


def refs(objects: Iterable[Obj | None]) -> tuple[Ref, ...]:
    """Existing objects that are not on their way out, to be deleted."""
    return tuple(
        Ref(o["kind"], o["metadata"]["namespace"], o["metadata"]["name"], o["metadata"].get("uid", ""))
        for o in objects
        if o is not None and not o["metadata"].get("deletionTimestamp")
    )


def is_busy(fleet: Fleet, node: str, begun: Iterable[Obj] = ()) -> bool:
    """Whether a node's store is filled or freed now, or begins to be by one of the objects ``begun``."""
    jobs = [*(o for o in begun if o["kind"] == "Job"), *(job for job in fleet.jobs if not is_over(job))]
    return any(works_on(job) == node and component(job) != COMPONENT_SCRUBBER for job in jobs)


def scrubbers(jobs: Iterable[Obj], nodes: Collection[str]) -> list[Obj]:
    """Scrubbers that are under way on these nodes."""
    return [j for j in jobs if component(j) == COMPONENT_SCRUBBER and works_on(j) in nodes and not is_over(j)]


def making_way(jobs: Iterable[Obj], nodes: Collection[str], policy: OperatorPolicy) -> Delete | None:
    """The end of scrubbers on these nodes, as far as they work on stores of this operator."""
    roots = {cache.root for cache in policy.cache_classes.values()}
    found = refs(job for job in scrubbers(jobs, nodes) if roots & _host_paths(job))
    return Delete(found, "somebody else needs the node's store") if found else None


def _host_paths(job: Obj) -> set[str]:
    volumes = job["spec"]["template"]["spec"].get("volumes") or ()
    return {volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}


def with_results(
    snapshot: Snapshot,
    draft: Draft,
    of: str,
    name_of: Callable[[StoreStatus], str],
    after: Callable[[StoreStatus, Obj], tuple[StoreStatus, bool]],
) -> Draft:
    """With what the Jobs of one component came to on record, and without those Jobs.

    ``after`` gives the record that follows from a Job that is over, and whether it did what it should; one
    that did not stays for a while, so that the next try is not made at once.
    """
    found = [j for j in snapshot.children.get("Job", ()) if component(j) == of]
    jobs = {j["metadata"]["name"]: j for j in found}
    stores, gone = [], []
    for store in draft.status.stores:
        job = jobs.pop(name_of(store), None)
        if job is None or not is_over(job):
            stores.append(store)
            continue
        record, done = after(store, job)
        stores.append(record)
        left = 0.0 if done else AGAIN_SECONDS - (snapshot.now - ended_at(snapshot, job))
        if left <= 0:
            gone.append(job)
        else:
            draft = draft.wake(left)
    draft = with_store_list(draft, stores)
    over = refs([*gone, *filter(is_over, jobs.values())])  # a store may leave the record before its Job goes
    return draft.delete(Delete(over, "it has ended, and what it came to is on record")) if over else draft


def ended_at(snapshot: Snapshot, job: Obj) -> float:
    """When a Job that is over ended."""
    return job_ended(job, "Complete") or job_ended(job, "Failed") or snapshot.now


def trouble_of(snapshot: Snapshot, job: Obj) -> str:
    """Why a Job failed, in its own words or the Job controller's."""
    pods = pods_of_job(snapshot.pods, job)
    words = last_words(pods[-1]) if pods else None
    if words is not None:
        return f"{words.reason}: {words.message}"
    conditions = (job.get("status") or {}).get("conditions") or ()
    said = next((c.get("message") for c in conditions if c.get("type") == "Failed"), "")
    return f"it ended without a word: {said}".rstrip(": ")
