"""Free what nobody needs.

Order: views that are neither kept, nor in use, nor young → blobs that no view links to and no pull wants →
bytes on their way that nobody goes on with → trash. Invariants: a kept view keeps every one of its blobs; a
blob is deleted only under its own lock, after looking once more that nothing links to it or wants it; a
crash leaves nothing but names in ``trash/`` and ``.tmp-``, which the next run clears.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from moe_operator.api.manifest import StageExit
from moe_operator.staging.failure import StageError
from moe_operator.staging.lock import tried
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store
from moe_operator.staging.wanted import unused, unwant, wanted

HOUR = 3600.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
WEEK = 7 * 24 * HOUR
CRASHED_SECONDS = 600.0  # no write that ends with a rename takes this long


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds: ``grace`` for views and blobs, ``partial_age`` for bytes on their way that are kept for."""

    grace: float = HOUR
    partial_age: float = WEEK
    dry_run: bool = False


@dataclass(slots=True)
class Freed:
    """What one run freed, or would have."""

    views: list[str] = field(default_factory=list)
    blobs: int = 0
    partials: int = 0
    bytes_freed: int = 0


def checked_views(digests: Iterable[str]) -> frozenset[str]:
    """View digests to keep; BAD_MANIFEST for anything else, since a misspelt one would cost its view."""
    kept = frozenset(digests)
    for text in sorted(kept):
        if not _DIGEST.fullmatch(text):
            raise StageError(StageExit.BAD_MANIFEST, f"{text[:80]!r} is no view's digest", file=text[:80])
    return kept


def collect_alone(store: Store, keep: Collection[str], rules: Rules, stop: Stop) -> Freed:
    """``collect``, or LOCK_TIMEOUT when another process collects. Takes no byte of a disk that is full."""
    with tried(store.lock("gc")) as alone:
        if not alone:
            raise StageError(StageExit.LOCK_TIMEOUT, f"another gc of {store.root} is running")
        return collect(store, keep, rules, stop)


def collect(store: Store, keep: Collection[str], rules: Rules, stop: Stop) -> Freed:
    """Free everything that is neither kept nor used nor young. The caller holds the store's ``gc`` lock."""
    freed = Freed()
    _leftovers(store, rules, freed)
    gone = _views(store, keep, rules, freed, stop)
    for digest, path in _blobs(store):
        stop.check()
        _blob(store, digest, path, keep, gone, rules, freed)
    _partials(store, keep, rules, freed)
    return freed


def make_room(store: Store, short: int, stop: Stop) -> int:
    """Free at least ``short`` bytes of blobs that no view links to, oldest first; returns what was freed."""
    freed, rules = Freed(), Rules(grace=0)
    for _age, digest, path in sorted((path.stat().st_mtime, digest, path) for digest, path in _blobs(store)):
        if freed.bytes_freed >= short:
            break
        stop.check()
        _blob(store, digest, path, (), {}, rules, freed)
    return freed.bytes_freed


def held_bytes(store: Store) -> int:
    """Bytes of all blobs and of what is on its way."""
    parts = (path.stat().st_blocks * 512 for path in (store.root / "partial").glob("*.part"))
    return sum(path.stat().st_size for _digest, path in _blobs(store)) + sum(parts)


def _views(store: Store, keep: Collection[str], rules: Rules, freed: Freed, stop: Stop) -> dict[int, int]:
    """Free views; returns inode -> how many of its links went (in a dry run: would go)."""
    gone: dict[int, int] = {}
    for view in sorted((store.root / "views").iterdir()):
        stop.check()
        if view.name.startswith(".tmp-") or view.name in keep or _young(view, rules.grace):
            continue
        with unused(store, view.name) as free:
            if not free:
                continue
            for file in view.rglob("*"):
                if file.is_file():
                    gone[file.stat().st_ino] = gone.get(file.stat().st_ino, 0) + 1
            freed.views.append(view.name)
            if not rules.dry_run:
                unwant(store, view.name)
                _discard(store, view)
    return gone if rules.dry_run else {}


def _blob(
    store: Store,
    digest: str,
    path: Path,
    keep: Collection[str],
    gone: dict[int, int],
    rules: Rules,
    freed: Freed,
) -> None:
    with tried(store.lock(digest)) as mine:
        if not mine or not path.exists():
            return
        facts = path.stat()
        linked = facts.st_nlink - gone.get(facts.st_ino, 0) > 1
        if linked or _young(path, rules.grace) or digest in wanted(store, keep):
            return
        freed.blobs += 1
        freed.bytes_freed += facts.st_size
        if not rules.dry_run:
            store.meta(digest).unlink(missing_ok=True)
            path.unlink()


def _partials(store: Store, keep: Collection[str], rules: Rules, freed: Freed) -> None:
    for digest in sorted({path.stem for path in (store.root / "partial").glob("[0-9a-f]*.*")}):
        part = store.part(digest)
        with tried(store.lock(digest)) as mine:
            if not mine:
                continue
            if not part.exists():
                if not rules.dry_run:
                    store.journal(digest).unlink(missing_ok=True)
                    store.claim(digest).unlink(missing_ok=True)
                continue
            needed = digest in wanted(store, keep)
            if _young(part, rules.partial_age if needed else rules.grace):
                continue
            freed.partials += 1
            freed.bytes_freed += part.stat().st_blocks * 512
            if not rules.dry_run:
                store.journal(digest).unlink(missing_ok=True)
                part.unlink()


def _leftovers(store: Store, rules: Rules, freed: Freed) -> None:
    """What crashes left behind, and corrupt files that were kept for a look long enough."""
    trash = (
        (path, rules.partial_age if path.suffix == ".bad" else 0) for path in (store.root / "trash").iterdir()
    )
    unborn = (
        (path, CRASHED_SECONDS)
        for place in ("partial", "views", "meta")
        for path in (store.root / place).glob(".tmp-*")
    )
    for path, age in (*trash, *unborn):
        if _young(path, age):
            continue
        facts = path.lstat()
        freed.bytes_freed += facts.st_size if path.is_file() and facts.st_nlink == 1 else 0
        if not rules.dry_run:
            _delete(path)


def _discard(store: Store, view: Path) -> None:
    doomed = store.root / "trash" / f"{view.name}-{secrets.token_hex(4)}"
    view.rename(doomed)
    _delete(doomed)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _blobs(store: Store) -> Iterator[tuple[str, Path]]:
    for path in sorted((store.root / "blobs" / "sha256").glob("??/*")):
        yield path.name, path


def _young(path: Path, seconds: float) -> bool:
    return time.time() - path.lstat().st_mtime < seconds if seconds else False


def free_bytes(store: Store) -> int:
    """Bytes that the store's disk still takes."""
    disk = os.statvfs(store.root)
    return disk.f_bavail * disk.f_frsize
