"""Hash what was verified long ago again: disks forget silently.

Rules: the blob whose proof is oldest comes first; a blob that still is what its name says gets a fresh proof;
one that is not goes to ``trash/`` and loses its proof, so that every view that links to it counts as damaged
and the next pull fetches just that file. A run that is ended early tells nobody what it found, so every run
also tells what lies set aside and is still missing in a view.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from moe_operator.api.manifest import StageExit
from moe_operator.staging.digest import file_sha256
from moe_operator.staging.failure import StageError
from moe_operator.staging.lock import tried
from moe_operator.staging.pace import Bucket
from moe_operator.staging.progress import Progress
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store
from moe_operator.staging.view import read_description

MOST_NAMED = 16  # digests that a termination message has room for


@dataclass(slots=True)
class Scrubbed:
    """What one run looked at; ``corrupt``: digest → bytes of what is set aside and not replaced."""

    blobs: int = 0
    bytes: int = 0
    corrupt: dict[str, int] = field(default_factory=dict)

    def summary(self, store: Store) -> dict[str, Any]:
        """For people and for the operator: with the views that are damaged now."""
        return {
            "blobs": self.blobs,
            "bytes": self.bytes,
            "corrupt": sorted(self.corrupt),
            "damagedViews": damaged_views(links_of_views(store), self.corrupt),
        }


def scrub(store: Store, older_than: float, bucket: Bucket, progress: Progress, stop: Stop) -> Scrubbed:
    """Hash every blob that was not proved for ``older_than`` seconds, at the bucket's pace."""
    due = store.proved_before(older_than)
    progress.expect(sum(store.blob(digest).stat().st_size for digest in due))
    progress.enter("Verifying", f"hashing {len(due)} blobs")
    scrubbed = Scrubbed()
    for digest in due:
        _scrub_one(store, digest, scrubbed, bucket, progress, stop)
    scrubbed.corrupt |= _unmended(store)
    progress.enter("Ready")
    return scrubbed


def _scrub_one(
    store: Store, digest: str, scrubbed: Scrubbed, bucket: Bucket, progress: Progress, stop: Stop
) -> None:
    def spend(count: int) -> None:
        progress.throttle(bucket.take(count, stop))
        progress.reuse(count)

    with tried(store.lock(digest)) as mine:
        if not mine or not store.blob(digest).exists():  # a pull is at it, or it was collected
            return
        actual, size = file_sha256(store.blob(digest), stop, spend), store.blob(digest).stat().st_size
        scrubbed.blobs += 1
        scrubbed.bytes += size
        if actual == digest:
            store.note(digest, "scrub")
        else:
            scrubbed.corrupt[digest] = size
            store.condemn(digest)


def _unmended(store: Store) -> dict[str, int]:
    """Blobs that were set aside at any time and that a view still lacks."""
    needed = {digest for links in links_of_views(store).values() for digest in links or ()}
    aside = {digest: store.set_aside(digest) for digest in needed if not store.blob(digest).exists()}
    return {digest: bad.stat().st_size for digest, bad in aside.items() if bad.exists()}


def links_of_views(store: Store) -> dict[str, frozenset[str] | None]:
    """Published view → digests that it links to; None where nothing says so: it is damaged anyway."""
    found: dict[str, frozenset[str] | None] = {}
    for path in sorted((store.root / "views").glob("[0-9a-f]*")):
        try:
            found[path.name] = frozenset(f.sha256 for f in read_description(store, path.name).links)
        except StageError:
            found[path.name] = None
    return found


def damaged_views(links: Mapping[str, frozenset[str] | None], corrupt: Collection[str]) -> list[str]:
    """Published views that hold one of these blobs."""
    return [view for view, digests in links.items() if digests is None or not digests.isdisjoint(corrupt)]


def corruption(scrubbed: Scrubbed) -> StageError:
    """CHECKSUM_MISMATCH with the corrupt blobs, as many as a message has room for."""
    digests, total = sorted(scrubbed.corrupt), sum(scrubbed.corrupt.values())
    return StageError(
        StageExit.CHECKSUM_MISMATCH,
        f"{len(digests)} blobs are corrupt, {total} bytes, the first is {digests[0]}",
        file=digests[0],
        expected=digests[0],
        hint="they are set aside; moestage pull fetches them again. Look at the disk: smartctl, dmesg",
        corrupt=digests[:MOST_NAMED],
        bytes_corrupt=total,
    )
