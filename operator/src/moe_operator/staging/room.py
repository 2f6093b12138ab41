"""Room for what is missing, found before the first byte rather than missed after the last that fits.

Rule: what is missing and a reserve must fit on the disk, and the store must stay within its budget. Blobs
that no view links to make way first, oldest first; a published view never does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from moe_operator.api.manifest import ManifestFile, StageExit
from moe_operator.staging.collect import free_bytes, held_bytes, make_room
from moe_operator.staging.failure import StageError
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store

RESERVE_SHARE = 0.05
RESERVE_MOST = 50 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes. ``reserve`` None = 5 % of the file system, at most 50 GiB; ``budget`` None = the whole disk."""

    reserve: int | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is asked of a disk against what it has; bytes."""

    missing: int
    reserve: int
    free: int
    budget_left: int | None  # None = no budget

    @property
    def short(self) -> int:
        """How many bytes are too few, 0 when all fits."""
        over_budget = 0 if self.budget_left is None else self.missing - self.budget_left
        return max(self.missing + self.reserve - self.free, over_budget, 0)


def shortage(store: Store, missing: int, limits: Limits) -> Shortage:
    """Look at the disk and the store."""
    disk = os.statvfs(store.root)
    reserve = limits.reserve
    if reserve is None:
        reserve = min(int(disk.f_blocks * disk.f_frsize * RESERVE_SHARE), RESERVE_MOST)
    left = None if limits.budget is None else limits.budget - held_bytes(store)
    return Shortage(missing, reserve, free_bytes(store), left)


def reserve(store: Store, blobs: Sequence[ManifestFile], limits: Limits, stop: Stop) -> int:
    """Make sure that ``blobs`` fit; returns the bytes freed for them. INSUFFICIENT_DISK with the numbers."""
    missing = sum(_missing_bytes(store, file) for file in blobs)
    if not missing:
        return 0
    found = shortage(store, missing, limits)
    freed = make_room(store, found.short, stop) if found.short else 0
    if freed:
        found = shortage(store, missing, limits)
    if found.short:
        raise no_room(store, found)
    return freed


def no_room(store: Store, found: Shortage) -> StageError:
    """INSUFFICIENT_DISK, with what is asked, what there is and how much is lacking."""
    budget = (
        "" if found.budget_left is None else f", {max(found.budget_left, 0)} bytes left of the store's budget"
    )
    return StageError(
        StageExit.INSUFFICIENT_DISK,
        f"the store {store.root} has {found.free} bytes free{budget}: {found.short} too few",
        expected=f"{found.missing} bytes to fetch + {found.reserve} bytes in reserve",
        actual=f"{found.free} bytes free{budget}",
        hint="free space in the store, lower the reserve, or choose a cache class with a larger disk",
    )


def _missing_bytes(store: Store, file: ManifestFile) -> int:
    if store.blob(file.sha256).exists():
        return 0
    try:
        allocated = store.part(file.sha256).stat().st_blocks * 512
    except FileNotFoundError:
        allocated = 0
    return max(file.size - allocated, 0)
