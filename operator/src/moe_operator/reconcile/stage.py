"""Step 5: every byte on every node before any of its GPUs is taken.

A Job without GPUs brings each node of the target its files, while the active revision serves. The engine
pods of a group are created only when every node of the group is done; their own stager then links in
milliseconds. Jobs begin in waves (``waves.py``), help each other (``seeding.py``), and are tried again by
themselves where somebody mends a node; a source that is wrong is not asked again until somebody says so.

Invariants: no engine pod of a group is created before all its nodes are verified; a node's store is never
filled and freed at the same time; what serves is never touched by how staging goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.names import (
    ANNOTATION_FROM_PEERS,
    COMPONENT_COLLECTOR,
    COMPONENT_STAGER,
    peers_name,
)
from moe_operator.api.spec import MoESpec
from moe_operator.reconcile import waves
from moe_operator.reconcile.actions import Delete
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.mend import damaged_since, with_mended
from moe_operator.reconcile.plan import remember_retry, retry_asked
from moe_operator.reconcile.seeding import Seeding, taking_part, with_seeders
from moe_operator.reconcile.site_looks import Look, is_over, look
from moe_operator.reconcile.sites import Site, sites_of, waits_for_files, with_present_nodes, with_stores
from moe_operator.reconcile.snapshot import Fleet, Snapshot
from moe_operator.reconcile.staging_rows import begun, conclude, staging_rows
from moe_operator.reconcile.store_jobs import component, refs, works_on
from moe_operator.resources.manifest_config_map import manifest_key
from moe_operator.resources.model_source import source_host
from moe_operator.resources.ownership import Owner
from moe_operator.resources.staging_job import Pull, staging_job
from moe_operator.rollout.revision import POD_AFFECTING, Revision

LOOK_SECONDS = 5.0
AGAIN_SECONDS = 60.0  # between two tries at a node or a source that could not


def stage(snapshot: Snapshot, draft: Draft) -> Draft:
    """Bring every wanted group's files one step further and say how far they are."""
    draft = with_present_nodes(snapshot, draft)
    sites = sites_of(draft)
    draft = with_stores(snapshot, draft, sites)
    damaged = damaged_since(draft)
    looks = tuple(look(snapshot, site, damaged.get(site.store_id)) for site in sites)
    draft = with_mended(draft, looks)
    waiters = {(g.revision, g.replica) for g in draft.groups if waits_for_files(draft, g)}
    missing = tuple(
        seen
        for seen in looks
        if seen.state != "done" and (seen.site.group in waiters or seen.site.store_id in damaged)
    )
    not_done = {seen.site.group for seen in missing}
    draft = replace(draft, staged=frozenset(s.group for s in sites if s.group not in not_done))
    draft = _cleared(snapshot, draft, looks, missing)
    draft, waiting = _advanced(snapshot, draft, looks, missing)
    return _reported(snapshot, draft, looks, waiting)


def _cleared(snapshot: Snapshot, draft: Draft, looks: Sequence[Look], missing: Sequence[Look]) -> Draft:
    """Without Jobs that nobody needs, that prove nothing any more, or whose time for another try has come."""
    asked, again = retry_asked(snapshot, draft), [seen.job for seen in looks if seen.state == "refuted"]
    for seen in missing:
        left = seen.ended_at + AGAIN_SECONDS - snapshot.now
        if seen.state == "failed" and (asked or (seen.tries_again and left <= 0)):
            again.append(seen.job)
        elif seen.state == "failed" and seen.tries_again:
            draft = draft.wake(left)
    if tried := refs(again):
        draft = draft.delete(Delete(tried, "another try at staging"))
    names = {seen.job_name for seen in looks}
    jobs = [j for j in snapshot.children.get("Job", ()) if component(j) == COMPONENT_STAGER]
    unwanted = [j for j in jobs if j["metadata"]["name"] not in names]
    gone = refs(unwanted)
    return draft.delete(Delete(gone, "nobody needs these files")) if gone else draft


def _advanced(
    snapshot: Snapshot, draft: Draft, looks: Sequence[Look], missing: Sequence[Look]
) -> tuple[Draft, dict[str, str]]:
    """With the Jobs and seeders of this wave; and node → host for those that wait for their turn."""
    blocked = {row.node for row in draft.status.staging if row.phase in {"Blocked", "Failed"}}
    pulling = [seen.site for seen in missing if seen.site.node not in blocked]
    size = draft.status.manifest.total_bytes
    part = taking_part(snapshot, size, pulling, [seen.site for seen in looks])
    draft, seeding = with_seeders(snapshot, draft, part)
    if not missing and not any(waits_for_files(draft, group) for group in draft.groups):
        return draft, {}
    if snapshot.fleet is None:  # also: is it still the same node?
        return replace(draft, staged=frozenset()).wake(0.0), {}
    absent = {seen.job_name: seen for seen in missing if seen.state == "absent"}
    if absent and retry_asked(snapshot, draft):
        draft = remember_retry(snapshot, draft)
    given_up = {s.site.revision.manifest for s in missing if s.state == "failed" and not s.tries_again}
    absent = {n: s for n, s in absent.items() if s.site.revision.manifest not in given_up}
    if any(site.revision.manifest not in given_up for site in pulling):
        draft = draft.wake(LOOK_SECONDS)
    if not absent or not seeding.settled:
        return draft, {}
    ordered = sorted(absent.values(), key=lambda seen: seen.site.node in blocked)
    return _admitted(snapshot, draft, snapshot.fleet, ordered, seeding, looks)


def _admitted(
    snapshot: Snapshot,
    draft: Draft,
    fleet: Fleet,
    absent: Iterable[Look],
    seeding: Seeding,
    looks: Sequence[Look],
) -> tuple[Draft, dict[str, str]]:
    me = waves.key_of(snapshot.object)
    verified = [seen.site for seen in looks if seen.state == "done"] + _running_sites(draft)
    damaged = damaged_since(draft)
    holders = {(s.view, s.node) for s in verified if s.node in seeding.urls and s.store_id not in damaged}
    fed = _fed_by_peers(fleet, me)
    places: dict[str, int] = {}
    waiting: dict[str, str] = {}
    for seen in absent:
        site = seen.site
        if _is_being_freed(fleet, site.node):
            continue
        host = source_host(site.revision.spec.model.source, snapshot.namespace)
        full = {node for view, node in holders if view == site.view and node != site.node}
        if full:
            if fed < waves.FANOUT * len(full):
                fed += 1
                draft = _begun(snapshot, draft, seen, host, seeding, all_from_peers=True)
            continue
        if host not in places:
            limit = waves.limit_of(_spec_now(draft, site.revision), host, snapshot.policy)
            places[host] = waves.free_places(me, host, limit, fleet)
        if places[host] > 0:
            places[host] -= 1
            draft = _begun(snapshot, draft, seen, host, seeding)
        else:
            waiting[site.node] = host
    return draft, waiting


def _spec_now(draft: Draft, revision: Revision) -> MoESpec:
    """The recorded spec with turns, bandwidth and verification as wished now, since they make no revision."""
    recorded = revision.spec
    if draft.wish is None:
        return recorded
    fixed = {name: getattr(recorded.weights, name) for name in POD_AFFECTING["weights"]}
    return recorded.model_copy(update={"weights": draft.wish.weights.model_copy(update=fixed)})


def _running_sites(draft: Draft) -> list[Site]:
    """Sites whose engine pod has its files already."""
    running = {
        (group.revision, group.replica, pod.rank)
        for group in draft.groups
        for pod in group.current
        if pod.staged and pod.running
    }
    return [site for site in sites_of(draft) if (*site.group, site.rank) in running]


def _fed_by_peers(fleet: Fleet, me: str) -> int:
    return sum(
        waves.owner_of(job) == me
        and not is_over(job)
        and ANNOTATION_FROM_PEERS in (job["metadata"].get("annotations") or {})
        for job in fleet.jobs
    )


def _is_being_freed(fleet: Fleet, node: str) -> bool:
    return any(
        component(job) == COMPONENT_COLLECTOR and works_on(job) == node and not is_over(job)
        for job in fleet.jobs
    )


def _begun(
    snapshot: Snapshot, draft: Draft, seen: Look, host: str, seeding: Seeding, *, all_from_peers: bool = False
) -> Draft:
    """With one more node pulling."""
    site = seen.site
    revision = site.revision
    config_map = snapshot.child("ConfigMap", revision.manifest)
    if config_map is None or snapshot.namespace_terminating:
        return draft
    spec = _spec_now(draft, revision)
    pull = Pull(
        name=seen.job_name,
        node=site.node,
        files=revision.files_of(site.rank),
        host=host,
        peers=seeding.for_node(site.node),
        peers_config=peers_name(snapshot.name),
        all_from_peers=all_from_peers,
        bandwidth=waves.bandwidth_of(spec, host, snapshot.policy),
    )
    owner = Owner(snapshot.name, snapshot.namespace, snapshot.uid)
    job = staging_job(owner, spec, snapshot.policy, revision.manifest, manifest_key(config_map), pull)
    return replace(draft.apply(job), claims=True)


def _reported(snapshot: Snapshot, draft: Draft, looks: Sequence[Look], waiting: Mapping[str, str]) -> Draft:
    target = draft.target
    if target is None or not target.view:
        reason = Reason.NOT_APPLICABLE if target else Reason.PENDING
        return draft.with_status(staging=[]).say(ConditionType.WEIGHTS_STAGED, "Unknown", reason)
    groups = [g for g in draft.groups_of(target.hash) if draft.is_wanted(g)]
    by_node = {seen.site.node: seen for seen in looks if seen.site.revision.hash == target.hash}
    damaged = damaged_since(draft)
    mending = {n for n, s in by_node.items() if s.site.store_id in damaged and s.state != "done"}
    rows = staging_rows(snapshot, draft, target, by_node, waiting, mending)
    placed = {(p.revision, p.replica): p for p in draft.status.placement}
    nodes = {
        r.node for g in groups if (p := placed.get((g.revision, g.replica))) is not None for r in p.ranks
    }
    if any(row.phase not in {"Ready", "Failed", "Blocked"} for row in rows):
        draft = draft.wake(LOOK_SECONDS)
    before = str((snapshot.object.get("status") or {}).get("targetRevision", ""))
    return conclude(begun(draft, target, rows, before), groups, rows, len(nodes))
