"""The blobs of one manifest on their way into one store: from here, from a peer, or from the origin.

Rules: one writer per digest on a node, and what was verified before is used again. Peers are asked before the
origin; a peer that fails costs one request, one that lies costs one more transfer of that file. Bytes that do
not match are put aside and fetched once more; a second mismatch of bytes that all came from the origin is the
origin's fault and permanent.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from moe_operator.api.manifest import ManifestFile, StageExit
from moe_operator.staging.agenda import Agenda
from moe_operator.staging.digest import file_sha256
from moe_operator.staging.failure import StageError, Stopped
from moe_operator.staging.lock import busy, held
from moe_operator.staging.partial import JOURNAL_BYTES, Partial
from moe_operator.staging.peers import LOOK_SECONDS, Peer, Peers
from moe_operator.staging.sources import Source
from moe_operator.staging.store import Store
from moe_operator.staging.transfer import Link, transfer
from moe_operator.staging.workers import for_each


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How to fetch: files at once, what counts as verified, and how long and how often to wait."""

    threads: int = 2
    verify: Literal["fast", "full"] = "fast"
    lock_seconds: float = 900.0
    journal_bytes: int = JOURNAL_BYTES


class Fetch:
    """Brings every blob of one pull."""

    def __init__(
        self,
        name: str,
        open_source: Callable[[], Source],
        store: Store,
        link: Link,
        peers: Peers,
        options: FetchOptions,
    ) -> None:
        self._name = name
        self._open_source = open_source
        self._source: Source | None = None
        self._source_lock = threading.Lock()
        self._store = store
        self._link = link
        self._peers = peers
        self._peer_link = peers.link(link, options.threads)
        self._options = options

    def all(self, blobs: Sequence[ManifestFile]) -> None:
        """Bring every blob.

        Alone: largest first. With peers: in random order, so that each node fetches something else from the
        origin. Blobs that another process of this node is busy with come last.
        """
        order = sorted(blobs, key=lambda file: random.random() if self._peers else -file.size)
        agenda = Agenda(sorted(order, key=lambda file: busy(self._store.lock(file.sha256))))

        def work(_worker: int) -> None:
            while (file := agenda.next(self._link.stop)) is not None:
                if not self._bring(file):
                    agenda.later(file, LOOK_SECONDS)

        with self._peers.watched():
            for_each(range(self._options.threads), work, self._options.threads, self._link.stop)

    def _bring(self, file: ManifestFile) -> bool:
        """Have a blob in the store; False when a peer will have it soon and it should be asked for later."""
        digest = file.sha256
        self._link.stop.check()
        with held(
            self._store.lock(digest), self._store.part(digest), self._options.lock_seconds, self._link.stop
        ):
            if self._have(file):
                self._store.journal(digest).unlink(missing_ok=True)  # of a run that died as it published
                self._link.progress.reuse(file.size)
            elif self._peers.holders(digest) or self._store.part(digest).exists():
                # Whoever holds some of it goes on, so that two nodes never wait for each other.
                self._fetch(file)
            elif self._peers.is_coming(digest):
                return False
            else:
                return self._fetch_if_ours(file)
        return True

    def _fetch_if_ours(self, file: ManifestFile) -> bool:
        """Fetch what no peer has, unless one of them is about to."""
        if not self._peers:
            self._fetch(file)
            return True
        claim = self._store.claim(file.sha256)
        claim.touch()
        try:
            ours = self._peers.leave_it_to_us(file.sha256, self._store.id)
            if ours:
                self._fetch(file)
            return ours
        finally:
            claim.unlink(missing_ok=True)

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
        self._store.condemn(file.sha256)
        return False

    def _fetch(self, file: ManifestFile) -> None:
        wrong: list[str] = []
        while len(wrong) < 2:
            actual, helpers = self._fetch_once(file)
            if actual == file.sha256:
                return
            for peer in helpers:
                self._peers.lied(peer)
            if not helpers:
                wrong.append(actual)
        raise _mismatch(file, *wrong)

    def _fetch_once(self, file: ManifestFile) -> tuple[str, list[Peer]]:
        """Fetch, and publish what is right; returns the digest of what came and the peers that sent some."""
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
                helpers = self._from_peers(file, partial)
                if partial.position != file.size or not file.size:
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
            return actual, helpers

    def _from_peers(self, file: ManifestFile, partial: Partial) -> list[Peer]:
        """Take what the peers give; returns those that gave something, whole or not."""
        helpers = []
        for peer in self._peers.holders(file.sha256):
            before = partial.position
            try:
                transfer(self._peers.blob(peer, file.sha256), file.path, file.size, partial, self._peer_link)
            except StageError as fault:
                self._peers.failed(peer)
                self._link.progress.retry("peer", f"{file.path} from {peer.url}: {fault.message}")
            if partial.position != before:
                helpers.append(peer)
            if partial.position == file.size:
                break
        return helpers

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
