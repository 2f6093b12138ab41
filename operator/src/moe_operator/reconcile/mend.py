"""Disks that a scrub found damaged: their nodes are staged again while what runs on them goes on.

What was proved before the damage was found counts no more, so the staging Jobs run again: they fetch what was
set aside, from other nodes first, and mend the views file by file. An engine that runs keeps what it has in
memory and open; the next one on that node finds every byte right. The damage leaves the record when every
site of the store was staged after it was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from moe_operator.api.moments import epoch
from moe_operator.api.status import StoreStatus
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.site_looks import Look
from moe_operator.reconcile.sites import Site, StoreId, id_of, with_store_list

MENDED: Mapping[str, object] = {"corrupt": [], "corrupt_bytes": 0, "corrupt_at": None}


def damaged_since(draft: Draft) -> dict[StoreId, float]:
    """Damaged stores, and when the damage was found."""
    return {id_of(s): epoch(s.corrupt_at) for s in draft.status.stores if s.corrupt_at is not None}


def has_to_mend(draft: Draft, sites: Iterable[Site]) -> bool:
    """Whether a site lies on a damaged store."""
    return not damaged_since(draft).keys().isdisjoint(site.store_id for site in sites)


def with_mended(draft: Draft, looks: Sequence[Look]) -> Draft:
    """Without the damage of stores whose sites are all done again."""
    sites = {seen.site.store_id for seen in looks}
    open_sites = {seen.site.store_id for seen in looks if seen.state != "done"}
    return with_store_list(draft, (_mended(s, id_of(s) in sites - open_sites) for s in draft.status.stores))


def _mended(store: StoreStatus, whole: bool) -> StoreStatus:
    return store.model_copy(update=MENDED) if whole and store.corrupt_at is not None else store
