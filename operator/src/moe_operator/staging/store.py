"""A node's store: verified bytes by digest, and the views engines read.

    STORE_ID                     marker; without it the disk is not mounted and nothing is written
    blobs/sha256/ab/<digest>     0444; complete, verified and durable, or absent
    meta/<digest>.json           size, mtime and inode of what was verified
    partial/<digest>.part        bytes on their way, with .journal beside; .claim: about to be fetched
    locks/<digest>.lock          flock; dies with its process
    views/<view digest>/         hard links + .moe-view.json; appears by one rename
    wanted/<view digest>.json    digests a pull needs, so that nothing collects them before they are linked
    trash/                       what did not match or was replaced

Invariant: a blob's name is proof of its bytes at the time it was verified; ``trusted`` tells whether the
file is still that one. Nothing outside the root is ever written.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from moe_operator.api.manifest import StageExit
from moe_operator.staging.durable import sync_dir, write_atomic, write_new
from moe_operator.staging.failure import StageError, store_faults

STORE_ID = "STORE_ID"
VIEW_FILE = ".moe-view.json"
_DIRECTORIES = ("blobs/sha256", "meta", "partial", "locks", "views", "wanted", "trash")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which file on this disk was verified."""

    size: int
    mtime_ns: int
    ino: int

    @classmethod
    def of(cls, facts: os.stat_result) -> Identity:
        """From a stat."""
        return cls(facts.st_size, facts.st_mtime_ns, facts.st_ino)


@dataclass(frozen=True, slots=True)
class Store:
    """Names within a store, and the blobs' state."""

    root: Path

    def blob(self, digest: str) -> Path:
        """Verified bytes."""
        return self.root / "blobs" / "sha256" / digest[:2] / digest

    def meta(self, digest: str) -> Path:
        """Facts of the verified file."""
        return self.root / "meta" / f"{digest}.json"

    def part(self, digest: str) -> Path:
        """Bytes on their way."""
        return self.root / "partial" / f"{digest}.part"

    def journal(self, digest: str) -> Path:
        """How much of the part is durable."""
        return self.root / "partial" / f"{digest}.journal"

    def claim(self, digest: str) -> Path:
        """Says, while the digest's lock is held, that this node is about to fetch it from the origin."""
        return self.root / "partial" / f"{digest}.claim"

    @property
    def id(self) -> str:
        """What tells this store from every other."""
        return (self.root / STORE_ID).read_text().strip()

    def lock(self, name: str) -> Path:
        """Lock file of a digest."""
        return self.root / "locks" / f"{name}.lock"

    def view(self, digest: str) -> Path:
        """A published view."""
        return self.root / "views" / digest

    def lay_out(self) -> None:
        """Make the directories."""
        for name in _DIRECTORIES:
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def prove_writable(self) -> None:
        """Write something and take it away again."""
        probe = self.root / "trash" / f".tmp-probe-{uuid.uuid4().hex}"
        try:
            write_new(probe, b"probe")
        finally:
            probe.unlink(missing_ok=True)

    def identity(self, digest: str) -> Identity | None:
        """What was verified under this digest, None when nothing was (or the note is torn)."""
        try:
            meta = json.loads(self.meta(digest).read_bytes())
            return Identity(int(meta["size"]), int(meta["mtimeNs"]), int(meta["ino"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return None

    def trusted(self, digest: str) -> bool:
        """Whether the blob is still the file that was verified."""
        known = self.identity(digest)
        try:
            return known is not None and Identity.of(self.blob(digest).lstat()) == known
        except FileNotFoundError:
            return False

    def proved_before(self, seconds: float) -> list[str]:
        """Blobs whose last proof is at least ``seconds`` old, oldest first; one without a proof is oldest."""
        proofs = {path.name: self._proved_at(path.name) for path in (self.root / "blobs/sha256").glob("??/*")}
        limit = time.time() - seconds
        return sorted((d for d, at in proofs.items() if at <= limit), key=lambda d: (proofs[d], d))

    def _proved_at(self, digest: str) -> int:
        try:
            return int(json.loads(self.meta(digest).read_bytes())["verifiedAt"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0

    def adopt(self, digest: str, verified: Path, source: str) -> None:
        """Make a verified, durable file the blob of its digest."""
        blob = self.blob(digest)
        if not blob.parent.is_dir():
            blob.parent.mkdir(exist_ok=True)
            sync_dir(blob.parent.parent)
        verified.rename(blob)
        sync_dir(blob.parent)
        self.note(digest, source)

    def note(self, digest: str, source: str) -> None:
        """Write down which file was verified."""
        identity = Identity.of(self.blob(digest).lstat())
        meta = {
            "size": identity.size,
            "mtimeNs": identity.mtime_ns,
            "ino": identity.ino,
            "verifiedAt": int(time.time()),
            "source": source,
        }
        write_atomic(self.meta(digest), json.dumps(meta).encode())

    def condemn(self, digest: str) -> None:
        """Put a blob that is not what its name says aside; views that link to it count as damaged at once."""
        self.meta(digest).unlink(missing_ok=True)
        sync_dir(self.root / "meta")
        self.quarantine(self.blob(digest))

    def put(self, data: bytes, source: str) -> str:
        """Make bytes of our own a blob; returns their digest. The caller holds the digest's lock."""
        digest = hashlib.sha256(data).hexdigest()
        if not self.trusted(digest):
            fresh = self.root / "partial" / f".tmp-{digest}-{uuid.uuid4().hex}"
            write_new(fresh, data)
            fresh.chmod(0o444)
            self.adopt(digest, fresh, source)
        return digest

    def quarantine(self, path: Path) -> None:
        """Put a file that is not what its name says aside; at most one per name is kept."""
        path.rename(self.set_aside(path.name))

    def set_aside(self, name: str) -> Path:
        """Where a file of that name lies once it was put aside."""
        return self.root / "trash" / f"{name}.bad"


def open_store(root: Path) -> Store:
    """The store at ``root``; STORE_UNUSABLE when its marker is absent."""
    with store_faults(root):
        marked = (root / STORE_ID).is_file()
    if not marked:
        raise StageError(
            StageExit.STORE_UNUSABLE,
            f"{root} is not a weight store: {STORE_ID} is absent",
            expected=str(root / STORE_ID),
            actual="absent",
            hint=f"mount the disk; a new one is prepared once with: moestage init-store --store {root}",
        )
    return Store(root)


def init_store(root: Path) -> str:
    """Prepare a directory as a store and return its id; a store that exists keeps its own."""
    with store_faults(root):
        root.mkdir(parents=True, exist_ok=True)
        store = Store(root)
        store.lay_out()
        store.prove_writable()
        marker = root / STORE_ID
        if not marker.exists():
            write_atomic(marker, f"{uuid.uuid4()}\n".encode())
        return marker.read_text().strip()
