"""Bring a manifest's files into a node's store and publish them as a view.

Order: fast path (the view is there and untouched) → reserve disk → per digest, under its lock: reuse,
verify or fetch → publish. A view is published only when every byte of it was verified. Bytes that do
not match are put aside and fetched once more; a second mismatch is the source's fault and permanent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moe_operator.api.manifest import Manifest, ManifestFile, StageExit, view_digest
from moe_operator.staging.digest import file_sha256
from moe_operator.staging.failure import StageError, Stopped, store_faults
from moe_operator.staging.lock import busy, held
from moe_operator.staging.partial import JOURNAL_BYTES, Partial
from moe_operator.staging.selection import check_manifest
from moe_operator.staging.sources import Source
from moe_operator.staging.store import Store
from moe_operator.staging.transfer import Link, transfer
from moe_operator.staging.view import is_intact, publish
from moe_operator.staging.workers import for_each

RESERVE_SHARE = 0.05
RESERVE_MOST = 50 << 30


@dataclass(frozen=True, slots=True)
class Options:
    """How to pull. ``reserve_bytes`` None = 5 % of the file system, at most 50 GiB."""

    threads: int = 2
    verify: Literal["fast", "full"] = "fast"
    reserve_bytes: int | None = None
    lock_seconds: float = 900.0
    journal_bytes: int = JOURNAL_BYTES


def pull(
    manifest: Manifest, open_source: Callable[[], Source], store: Store, link: Link, options: Options
) -> Path:
    """Publish the view of ``manifest`` and return its directory; the source is opened only when needed."""
    check_manifest(manifest)
    digest = view_digest(manifest.files)
    link.progress.expect(manifest.total_bytes, digest)
    with store_faults(store.root):
        if options.verify == "fast" and is_intact(store, digest, manifest.files, link.stop):
            link.progress.reuse(manifest.total_bytes)
            link.progress.enter("Ready", "the view is published already")
            return store.view(digest)
        store.prepare()
        blobs = list({file.sha256: file for file in manifest.files}.values())
        link.progress.expect(sum(file.size for file in blobs), digest)
        _reserve(store, blobs, link, options)
        link.progress.enter("Pulling")
        _Pull(manifest.source, open_source, store, link, options).all(blobs)
        link.progress.enter("Publishing")
        with held(store.lock(digest), store.view(digest), options.lock_seconds, link.stop):
            view = publish(store, digest, manifest, link.stop)
        link.progress.enter("Ready")
        return view


def _reserve(store: Store, blobs: Iterable[ManifestFile], link: Link, options: Options) -> None:
    """INSUFFICIENT_DISK before the first byte, rather than after the last that fits."""
    link.progress.enter("Reserving")
    missing = sum(_missing_bytes(store, file) for file in blobs)
    disk = os.statvfs(store.root)
    free = disk.f_bavail * disk.f_frsize
    reserve = options.reserve_bytes
    if reserve is None:
        reserve = min(int(disk.f_blocks * disk.f_frsize * RESERVE_SHARE), RESERVE_MOST)
    if missing and missing + reserve > free:
        raise StageError(
            StageExit.INSUFFICIENT_DISK,
            f"the store {store.root} has {free} bytes free, {missing + reserve - free} too few",
            expected=f"{missing} bytes to fetch + {reserve} bytes in reserve",
            actual=f"{free} bytes free",
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


class _Pull:
    """The blobs of one manifest on their way into one store."""

    def __init__(
        self, name: str, open_source: Callable[[], Source], store: Store, link: Link, options: Options
    ) -> None:
        self._name = name
        self._open_source = open_source
        self._source: Source | None = None
        self._source_lock = threading.Lock()
        self._store = store
        self._link = link
        self._options = options

    def all(self, blobs: list[ManifestFile]) -> None:
        """Bring every blob, largest first; those another process is busy with come last."""
        largest_first = sorted(blobs, key=lambda file: -file.size)
        order = sorted(largest_first, key=lambda file: busy(self._store.lock(file.sha256)))
        for_each(order, self._bring, self._options.threads, self._link.stop)

    def _bring(self, file: ManifestFile) -> None:
        digest = file.sha256
        self._link.stop.check()
        with held(
            self._store.lock(digest), self._store.part(digest), self._options.lock_seconds, self._link.stop
        ):
            if self._have(file):
                self._link.progress.reuse(file.size)
            else:
                self._fetch(file)

    def _have(self, file: ManifestFile) -> bool:
        """Whether the verified blob is here; one that is not what its name says is put aside."""
        blob = self._store.blob(file.sha256)
        if not blob.exists():
            return False
        if self._options.verify == "fast" and self._store.trusted(file.sha256):
            _same_length(file, blob.stat().st_size)
            return True
        if file_sha256(blob, self._link.stop) == file.sha256:
            _same_length(file, blob.stat().st_size)
            self._store.note(file.sha256, self._name)
            return True
        self._store.quarantine(blob)
        return False

    def _fetch(self, file: ManifestFile) -> None:
        wrong: list[str] = []
        while len(wrong) < 2:
            actual = self._fetch_once(file)
            if actual == file.sha256:
                return
            wrong.append(actual)
        raise _mismatch(file, *wrong)

    def _fetch_once(self, file: ManifestFile) -> str:
        """Fetch and publish; returns the digest of what came, published only if it is the right one."""
        link = self._link
        partial = Partial(
            self._store,
            file.sha256,
            file.size,
            interval=self._options.journal_bytes,
            chunk=link.chunk,
            stop=link.stop,
        )
        with closing(partial):
            link.progress.reuse(partial.position)
            try:
                transfer(self._opened(), file.path, file.size, partial, link)
            except (StageError, Stopped):
                partial.checkpoint()
                raise
            actual = partial.sha256()
            if actual == file.sha256:
                partial.publish(self._name)
            else:
                link.progress.drop(file.size)
                partial.quarantine()
            return actual

    def _opened(self) -> Source:
        with self._source_lock:
            if self._source is None:
                self._source = self._open_source()
            return self._source


def _same_length(file: ManifestFile, actual: int) -> None:
    """A digest belongs to one length: a manifest that states another is wrong, not the blob."""
    if file.size != actual:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"the manifest states a wrong length for {file.path}: the bytes of its digest are in the store",
            file=file.path,
            expected=f"{actual} bytes",
            actual=f"{file.size} bytes",
            hint="resolve the model again",
        )


def _mismatch(file: ManifestFile, first: str, second: str) -> StageError:
    if first == second:
        how, hint = (
            "the same bytes",
            "the file at the source is not the published one; upload it again or correct the checksum list",
        )
    else:
        how, hint = (
            f"different bytes (first {first})",
            "bytes change on the way: check the network, the proxy and this node's memory",
        )
    return StageError(
        StageExit.CHECKSUM_MISMATCH,
        f"{file.path} does not match its checksum, twice with {how}",
        file=file.path,
        expected=file.sha256,
        actual=second,
        hint=hint,
    )
