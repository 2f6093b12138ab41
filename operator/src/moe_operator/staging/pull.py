"""Bring a manifest's files into a node's store and publish them as a view.

Order: fast path (the view is there and untouched) → say what is wanted → make room → per digest, under its
lock: reuse, verify or fetch → publish. A view is published only when every byte of it was verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from moe_operator.api.manifest import Manifest, ManifestFile, StageExit, select_files, view_digest
from moe_operator.staging.failure import StageError, store_faults
from moe_operator.staging.fetch import Fetch, FetchOptions
from moe_operator.staging.filtered_index import filtered_index
from moe_operator.staging.lock import held
from moe_operator.staging.peers import Peers
from moe_operator.staging.room import Limits, reserve
from moe_operator.staging.selection import INDEX, check_manifest
from moe_operator.staging.sources import Source
from moe_operator.staging.store import Store
from moe_operator.staging.transfer import Link
from moe_operator.staging.view import View, is_intact, publish
from moe_operator.staging.wanted import in_use, want


@dataclass(frozen=True, slots=True)
class Options:
    """How to pull, and ``patterns`` for the shards of a partial view (none = all)."""

    fetch: FetchOptions = field(default_factory=FetchOptions)
    limits: Limits = field(default_factory=Limits)
    patterns: tuple[str, ...] = ()


def pull(
    manifest: Manifest,
    open_source: Callable[[], Source],
    store: Store,
    link: Link,
    options: Options,
    peers: Peers,
) -> Path:
    """Publish the view of ``manifest`` and return its directory; the source is opened only when needed."""
    check_manifest(manifest)
    files = _selected(manifest, options.patterns)
    digest = view_digest(files)
    link.progress.expect(sum(file.size for file in files), digest)
    with store_faults(store.root):
        store.lay_out()  # whoever empties a disk often leaves nothing but the marker
    with store_faults(store.root), in_use(store, digest):
        if options.fetch.verify == "fast" and is_intact(store, digest, link.stop):
            link.progress.reuse(sum(file.size for file in files))
            link.progress.enter("Ready", "the view is published already")
            return store.view(digest)
        store.prove_writable()
        blobs = list({file.sha256: file for file in files}.values())
        link.progress.expect(sum(file.size for file in blobs), digest)
        link.progress.enter("Reserving")
        want(store, digest, (file.sha256 for file in blobs))
        reserve(store, blobs, options.limits, link.stop)
        link.progress.enter("Pulling")
        Fetch(manifest.source, open_source, store, link, peers, options.fetch).all(blobs)
        link.progress.enter("Publishing")
        with held(store.lock(digest), store.view(digest), options.fetch.lock_seconds, link.stop):
            index = _index(store, files, link) if len(files) < len(manifest.files) else None
            view = publish(store, View(manifest.source, manifest.resolved, tuple(files), index), link.stop)
        link.progress.enter("Ready")
        return view


def _selected(manifest: Manifest, patterns: tuple[str, ...]) -> list[ManifestFile]:
    try:
        return select_files(manifest.files, patterns)
    except ValueError as fault:
        raise StageError(
            StageExit.BAD_MANIFEST, str(fault), hint="correct --only or the selection file"
        ) from fault


def _index(store: Store, files: list[ManifestFile], link: Link) -> ManifestFile | None:
    """The filtered index of a partial view, as a blob."""
    raw = filtered_index(store, files)
    if raw is None:
        return None
    digest = hashlib.sha256(raw).hexdigest()
    with held(store.lock(digest), store.blob(digest), 60.0, link.stop):
        store.put(raw, "filtered index")
    return ManifestFile(path=INDEX, size=len(raw), sha256=digest)
