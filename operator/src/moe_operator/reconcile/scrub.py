"""Step 9: read again what lies on the nodes' disks, since disks forget silently.

A store with files of this deployment is read once per period of the admin's policy. It is read by one
scrubber, whichever deployment comes first; the others take over what that one found when it is their turn.
The record of a store says when it was read last, so a restart forgets nothing; between two readings nothing
is written, and nobody looks before the next one is due.

Invariants: a deployment never has two of its nodes read at a time; a scrubber begins only where no store is
filled or freed, and ends where one begins to be. What it finds is told once and mended (``mend.py``).
"""

from __future__ import annotations

from dataclasses import replace

from moe_operator.api.conditions import Reason
from moe_operator.api.manifest import StageExit, TerminationMessage
from moe_operator.api.moments import epoch, moment
from moe_operator.api.names import COMPONENT_SCRUBBER, scrubber_name, store_key
from moe_operator.api.quantity import human_bytes
from moe_operator.api.status import Status, StoreStatus
from moe_operator.reconcile.actions import Event, Obj
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.mend import MENDED
from moe_operator.reconcile.site_looks import is_over, job_ended, last_words, pods_of_job
from moe_operator.reconcile.sites import StoreId, id_of, sites_of, with_store_list
from moe_operator.reconcile.snapshot import Fleet, Snapshot
from moe_operator.reconcile.store_jobs import (
    component,
    ended_at,
    is_busy,
    making_way,
    scrubbers,
    trouble_of,
    with_results,
    works_on,
)
from moe_operator.reconcile.waves import key_of
from moe_operator.resources.ownership import Owner
from moe_operator.resources.scrub_job import scrub_job

HOUR = 3600.0
WAIT_SECONDS = 60.0  # between two looks at a node on which others are at work


def scrub(snapshot: Snapshot, draft: Draft) -> Draft:
    """One step towards every store having been read within the period."""
    draft = _made_way(snapshot, draft)
    if draft.wish is None:
        return draft
    before = draft.status.stores
    draft = with_results(
        snapshot,
        draft,
        COMPONENT_SCRUBBER,
        lambda store: _job_name(snapshot, store),
        lambda store, job: _after(snapshot, draft, store, job),
    )
    if due_scrubs(snapshot, draft):
        draft = _next(snapshot, draft, snapshot.fleet) if snapshot.fleet is not None else draft.wake(0.0)
    return _awake_in_time(snapshot, _told(draft, before))


def due_scrubs(snapshot: Snapshot, draft: Draft) -> list[StoreStatus]:
    """Stores whose time to be read has come, the one that waits longest first; none while one is being read.

    A store that could not be read comes after those that can.
    """
    if not _period(snapshot) or draft.wish is None or snapshot.namespace_terminating:
        return []
    if any(component(j) == COMPONENT_SCRUBBER and not is_over(j) for j in snapshot.children.get("Job", ())):
        return []
    due = [
        store
        for store in draft.status.stores
        if _due_at(snapshot, store) <= snapshot.now
        and snapshot.child("Job", _job_name(snapshot, store)) is None
        and store.cache_class in snapshot.policy.cache_classes
    ]
    return sorted(due, key=lambda s: (bool(s.scrub_message), _due_at(snapshot, s), s.node, s.cache_class))


def _period(snapshot: Snapshot) -> float:
    """Seconds between two readings; 0 = they are turned off."""
    return snapshot.policy.staging.scrub.every_hours * HOUR


def _due_at(snapshot: Snapshot, store: StoreStatus) -> float:
    """A period after it was read last, or filled: what is staged is verified."""
    return max(_scrubbed_at(store), epoch(store.filled_at) if store.filled_at else 0.0) + _period(snapshot)


def _job_name(snapshot: Snapshot, store: StoreStatus) -> str:
    return scrubber_name(snapshot.name, store_key(*id_of(store)))


def _made_way(snapshot: Snapshot, draft: Draft) -> Draft:
    """Without scrubbers where this deployment fills or frees a store."""
    jobs = snapshot.children.get("Job", ())
    begun = [o for o in draft.applies if o["kind"] == "Job"]
    at_work = [j for j in (*jobs, *begun) if component(j) != COMPONENT_SCRUBBER and not is_over(j)]
    known = snapshot.fleet.jobs if snapshot.fleet is not None else jobs
    way = making_way(known, {node for job in at_work if (node := works_on(job))}, snapshot.policy)
    return draft.delete(way) if way else draft


def _after(snapshot: Snapshot, draft: Draft, store: StoreStatus, job: Obj) -> tuple[StoreStatus, bool]:
    pods = pods_of_job(snapshot.pods, job)
    words = last_words(pods[-1]) if pods else None
    found = words is not None and words.code == StageExit.CHECKSUM_MISMATCH
    if job_ended(job, "Complete") is None and not found:
        return store.model_copy(update={"scrub_message": trouble_of(snapshot, job)}), False
    ended = moment(ended_at(snapshot, job))
    facts: dict[str, object] = {"scrubbed_at": ended, "scrub_message": ""}
    if words is not None and found:
        facts |= _damage(store, words, ended)
    elif id_of(store) not in {site.store_id for site in sites_of(draft)}:  # else ``mend`` knows better
        facts |= MENDED
    return store.model_copy(update=facts), True


def _damage(store: StoreStatus, words: TerminationMessage, ended: str) -> dict[str, object]:
    """What was found, as of when it was found first."""
    corrupt = list(words.corrupt)
    if store.corrupt_at is not None and corrupt == store.corrupt:
        return {}
    return {"corrupt": corrupt, "corrupt_bytes": words.bytes_corrupt, "corrupt_at": ended}


def _next(snapshot: Snapshot, draft: Draft, fleet: Fleet) -> Draft:
    """With what others have found meanwhile, and with a scrubber on the first node that is free for one."""
    draft = _taken_over(snapshot, draft, fleet)
    due = [s for s in due_scrubs(snapshot, draft) if fleet.nodes.get(s.node) == s.node_uid]
    if not due:
        return draft
    free = [s for s in due if not is_busy(fleet, s.node, draft.applies)]
    if not free or scrubbers(fleet.jobs, {store.node for store in draft.status.stores}):
        return draft.wake(WAIT_SECONDS)
    store = free[0]
    assert draft.wish is not None
    job = scrub_job(
        Owner(snapshot.name, snapshot.namespace, snapshot.uid),
        draft.wish,
        snapshot.policy,
        snapshot.policy.cache_classes[store.cache_class],
        _job_name(snapshot, store),
        store.node,
    )
    return replace(draft.apply(job), claims=True)


def _taken_over(snapshot: Snapshot, draft: Draft, fleet: Fleet) -> Draft:
    """With what other deployments' scrubbers have found on the disks that are due."""
    theirs: dict[StoreId, StoreStatus] = {}
    for deployment in fleet.deployments:
        if key_of(deployment) != f"{snapshot.namespace}/{snapshot.name}":
            for store in Status.model_validate(deployment.get("status") or {}).stores:
                theirs[id_of(store)] = max(store, theirs.get(id_of(store), store), key=_scrubbed_at)
    due = {id_of(store) for store in due_scrubs(snapshot, draft)}
    return with_store_list(
        draft,
        (
            _newer(store, theirs.get(id_of(store), store)) if id_of(store) in due else store
            for store in draft.status.stores
        ),
    )


def _newer(own: StoreStatus, other: StoreStatus) -> StoreStatus:
    if _scrubbed_at(other) <= _scrubbed_at(own):
        return own
    facts = ("scrubbed_at", *(MENDED if other.corrupt_at is not None else ()))
    return own.model_copy(update={name: getattr(other, name) for name in facts} | {"scrub_message": ""})


def _scrubbed_at(store: StoreStatus) -> float:
    return epoch(store.scrubbed_at) if store.scrubbed_at else 0.0


def _told(draft: Draft, before: list[StoreStatus]) -> Draft:
    """With an event for each disk on which something was found now."""
    known = {id_of(store): store.corrupt_at for store in before}
    for store in draft.status.stores:
        if store.corrupt_at is not None and store.corrupt_at != known.get(id_of(store)):
            said = (
                f"{store.node}: {human_bytes(store.corrupt_bytes)} on its disk are not what was verified; "
                f"set aside, to be fetched again: {', '.join(store.corrupt)}"
            )
            draft = draft.event(Event("Warning", Reason.CORRUPTION_FOUND, said))
    return draft


def _awake_in_time(snapshot: Snapshot, draft: Draft) -> Draft:
    """Woken when the next store is due."""
    if not _period(snapshot):
        return draft
    times = [_due_at(snapshot, store) - snapshot.now for store in draft.status.stores]
    ahead = [seconds for seconds in times if seconds > 0]
    return draft.wake(min(ahead)) if ahead else draft
