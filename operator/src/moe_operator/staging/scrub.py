"""Hash what was verified long ago again: disks forget silently.

Rules: the blob whose proof is oldest comes first; a blob that still is what its name says gets a fresh proof;
one that is not goes to ``trash/`` and loses its proof, so that every view that links to it counts as damaged
and the next pull fetches just that file.
"""

from __future__ import annotations

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


@dataclass(slots=True)
class Scrubbed:
    """What one run looked at; ``corrupt`` maps a digest to what its bytes are now."""

    blobs: int = 0
    bytes: int = 0
    corrupt: dict[str, str] = field(default_factory=dict)

    def summary(self, store: Store) -> dict[str, Any]:
        """For people and for the operator: with the views that are damaged now."""
        return {
            "blobs": self.blobs,
            "bytes": self.bytes,
            "corrupt": sorted(self.corrupt),
            "damagedViews": damaged_views(store, self.corrupt),
        }


def scrub(store: Store, older_than: float, bucket: Bucket, progress: Progress, stop: Stop) -> Scrubbed:
    """Hash every blob that was not proved for ``older_than`` seconds, at the bucket's pace."""
    due = store.proved_before(older_than)
    progress.expect(sum(store.blob(digest).stat().st_size for digest in due))
    progress.enter("Verifying", f"hashing {len(due)} blobs")
    scrubbed = Scrubbed()
    for digest in due:
        _scrub_one(store, digest, scrubbed, bucket, progress, stop)
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
        actual = file_sha256(store.blob(digest), stop, spend)
        scrubbed.blobs += 1
        scrubbed.bytes += store.blob(digest).stat().st_size
        if actual == digest:
            store.note(digest, "scrub")
        else:
            scrubbed.corrupt[digest] = actual
            store.condemn(digest)


def damaged_views(store: Store, corrupt: dict[str, str]) -> list[str]:
    """Published views that hold one of these blobs."""
    found = []
    for path in sorted((store.root / "views").glob("[0-9a-f]*")):
        try:
            links = read_description(store, path.name).links
        except StageError:  # no description: the view is damaged anyway
            found.append(path.name)
            continue
        if any(file.sha256 in corrupt for file in links):
            found.append(path.name)
    return found


def corruption(scrubbed: Scrubbed) -> StageError:
    """CHECKSUM_MISMATCH with the first corrupt blob."""
    digest, actual = next(iter(sorted(scrubbed.corrupt.items())))
    return StageError(
        StageExit.CHECKSUM_MISMATCH,
        f"{len(scrubbed.corrupt)} of {scrubbed.blobs} blobs are corrupt, the first is {digest}",
        file=digest,
        expected=digest,
        actual=actual,
        hint="they are set aside; moestage pull fetches them again. Look at the disk: smartctl, dmesg",
    )
