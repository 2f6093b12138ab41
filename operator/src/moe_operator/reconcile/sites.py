"""Which nodes must hold which files, and what this deployment has put on whose disk.

A *site* is one rank's node with the files that rank needs. What is put into a node's store is on record
before the first byte, since a store cannot be asked later whose files it holds. A node that came back under
its old name with another UID has another disk: its placement is brought up to date, its record begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moe_operator.api.moments import moment
from moe_operator.api.names import store_key
from moe_operator.api.status import PlacementStatus, StoreStatus
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.rollout.groups import Group
from moe_operator.rollout.revision import Revision

StoreId = tuple[str, str, str]  # cache class, node, node UID


def id_of(store: StoreStatus) -> StoreId:
    """Which disk a record is about."""
    return (store.cache_class, store.node, store.node_uid)


@dataclass(frozen=True, slots=True)
class Site:
    """One rank's node and the view that it must hold before the rank's engine starts."""

    revision: Revision
    replica: int
    rank: int
    node: str
    node_uid: str
    view: str

    @property
    def store_id(self) -> StoreId:
        """Which disk."""
        return (self.revision.spec.weights.cache_class, self.node, self.node_uid)

    @property
    def store(self) -> str:
        """Its short name."""
        return store_key(*self.store_id)

    @property
    def group(self) -> tuple[str, int]:
        """The group it belongs to."""
        return (self.revision.hash, self.replica)


def sites_of(draft: Draft) -> tuple[Site, ...]:
    """Every site of every wanted group that has its nodes, the target's last."""
    placed = {(p.revision, p.replica): p for p in draft.status.placement}
    found: list[Site] = []
    for group in draft.groups:
        revision, placement = draft.records.get(group.revision), placed.get((group.revision, group.replica))
        if revision and revision.view and placement and draft.is_wanted(group):
            found += [
                Site(revision, group.replica, r.rank, r.node, r.node_uid, revision.files_of(r.rank).view)
                for r in sorted(placement.ranks, key=lambda r: r.rank)
            ]
    return tuple(found)


def waits_for_files(draft: Draft, group: Group) -> bool:
    """Whether engine pods of a group are still to be created: only they need files that are not there yet."""
    return draft.is_wanted(group) and bool(group.missing) and group.record.phase != "Failed"


def with_present_nodes(snapshot: Snapshot, draft: Draft) -> Draft:
    """With the UIDs that the placed nodes have now, as far as they exist."""
    if snapshot.fleet is None:
        return draft
    nodes = snapshot.fleet.nodes
    fresh = [_present(p, nodes) for p in draft.status.placement]
    return draft if fresh == draft.status.placement else draft.with_status(placement=fresh)


def _present(placement: PlacementStatus, nodes: Mapping[str, str]) -> PlacementStatus:
    ranks = [r.model_copy(update={"node_uid": nodes.get(r.node, r.node_uid)}) for r in placement.ranks]
    return placement.model_copy(update={"ranks": ranks})


def with_stores(snapshot: Snapshot, draft: Draft, sites: Sequence[Site]) -> Draft:
    """With every site's view on record as being in its node's store."""
    replaced = {(s.revision.spec.weights.cache_class, s.node): s.node_uid for s in sites}
    stores = {
        id_of(s): s
        for s in draft.status.stores
        if replaced.get((s.cache_class, s.node), s.node_uid) == s.node_uid
    }
    for site in sites:
        known = stores.get(site.store_id) or _new_store(snapshot, site)
        if site.view not in known.views:
            known = known.model_copy(update={"views": sorted({*known.views, site.view})})
        stores[site.store_id] = known
    return with_store_list(draft, stores.values())


def with_store_list(draft: Draft, stores: Iterable[StoreStatus]) -> Draft:
    """With these records instead of those before; the same ones are no change."""
    ordered = sorted(stores, key=lambda s: (s.node, s.cache_class, s.node_uid))
    return draft if ordered == draft.status.stores else draft.with_status(stores=ordered)


def _new_store(snapshot: Snapshot, site: Site) -> StoreStatus:
    cache_class, node, uid = site.store_id
    now = moment(snapshot.now)
    return StoreStatus(node=node, node_uid=uid, cache_class=cache_class, filled_at=now, collected_at=now)
