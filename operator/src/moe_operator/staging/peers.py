"""Other nodes that have the same bytes: who has which, who is fetching which, and whom not to ask any more.

Rules: a peer's word is never trusted, only the digest of what it sent; one that sent wrong bytes is not asked
again by this process, one that failed is left alone for a while. A file that a peer is fetching right now is
waited for as long as that peer's copy grows, so that many nodes together ask the origin for one copy. The
peers' token goes to the peers only: their redirects are not followed.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from moe_operator.api.manifest import StageExit
from moe_operator.staging.credentials import bearer
from moe_operator.staging.failure import StageError, Stopped
from moe_operator.staging.hosts import HostPolicy
from moe_operator.staging.pace import Gate
from moe_operator.staging.stop import Stop
from moe_operator.staging.transfer import CONTENT_TAG, Link
from moe_operator.staging.transport import HttpStream, Transport

CATALOGUE_BYTES = 16 << 20
LOOK_SECONDS = 0.5
SHUN_SECONDS = 15.0
CATALOGUE_PATH = "/blobs"
BLOB_PATH = "/blobs/sha256/"


@dataclass(slots=True)
class Peer:
    """One other node, as far as it is known."""

    url: str
    have: frozenset[str] = frozenset()
    coming: dict[str, tuple[int, float]] = field(default_factory=dict)  # digest -> (mark, when it last moved)
    shunned_until: float = 0.0


@dataclass(frozen=True, slots=True)
class FromPeer:
    """One blob of one peer, as a transfer reads it."""

    transport: Transport
    url: str
    token_file: Path | None

    def open(self, path: str, offset: int = 0) -> HttpStream:
        """GET the blob; ``path`` is only what it is called here."""
        stream = self.transport.open(self.url, offset=offset, authorization=bearer(self.token_file), hops=0)
        stream.tag = CONTENT_TAG
        return stream


class Peers:
    """All peers of a pull. Without URLs nobody has anything and nothing is asked."""

    def __init__(
        self, urls: Sequence[str], token_file: Path | None, stop: Stop, *, stall_seconds: float
    ) -> None:
        self._peers = [Peer(_checked(url)) for url in urls]
        named = [urlsplit(peer.url).netloc for peer in self._peers]
        self._transport = Transport(HostPolicy.of(named, named), stop, stall_seconds=stall_seconds)
        self._token_file = token_file
        self._stall_seconds = stall_seconds
        self._stop = stop
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._peers)

    def link(self, link: Link, threads: int) -> Link:
        """How to talk to a peer: once, and without taking a slot of the origin's."""
        return replace(link, gate=Gate(threads), retries=0, from_peer=True)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep asking the peers what they have while the block runs; it begins with the first answers."""
        if not self._peers:
            yield
            return
        over = threading.Event()
        with ThreadPoolExecutor(min(len(self._peers), 16), thread_name_prefix="peer") as pool:
            list(pool.map(self._look, self._peers))
            watcher = threading.Thread(target=self._watch, args=(pool, over), name="peers", daemon=True)
            watcher.start()
            try:
                yield
            finally:
                over.set()
                watcher.join()

    def holders(self, digest: str) -> list[Peer]:
        """Peers that say they have a blob, in random order so that they share the work."""
        now = time.monotonic()
        with self._lock:
            found = [peer for peer in self._peers if digest in peer.have and peer.shunned_until <= now]
        random.shuffle(found)
        return found

    def is_coming(self, digest: str) -> bool:
        """Whether a peer is fetching a blob and has moved lately."""
        now = time.monotonic()
        with self._lock:
            return any(
                digest in peer.coming and now - peer.coming[digest][1] < self._stall_seconds
                for peer in self._peers
                if peer.shunned_until <= now
            )

    def blob(self, peer: Peer, digest: str) -> FromPeer:
        """Where to read a blob of a peer."""
        return FromPeer(self._transport, f"{peer.url}{BLOB_PATH}{digest}", self._token_file)

    def failed(self, peer: Peer) -> None:
        """It did not deliver: leave it alone for a while."""
        self._shun(peer, time.monotonic() + SHUN_SECONDS)

    def lied(self, peer: Peer) -> None:
        """Its bytes were not what it called them: never again."""
        self._shun(peer, float("inf"))

    def _shun(self, peer: Peer, until: float) -> None:
        with self._lock:
            peer.shunned_until = max(peer.shunned_until, until)

    def _watch(self, pool: ThreadPoolExecutor, over: threading.Event) -> None:
        while not over.wait(LOOK_SECONDS):
            list(pool.map(self._look, self._peers))

    def _look(self, peer: Peer) -> None:
        if peer.shunned_until > time.monotonic():
            return
        try:
            raw = self._transport.read(
                peer.url + CATALOGUE_PATH, CATALOGUE_BYTES, authorization=bearer(self._token_file), hops=0
            )
            catalogue = json.loads(raw)
            have = frozenset(map(str, catalogue["have"]))
            marks = {str(digest): int(mark) for digest, mark in catalogue["coming"].items()}
        except Stopped:
            return
        except (StageError, ValueError, KeyError, TypeError, AttributeError):
            self.failed(peer)
            return
        now = time.monotonic()
        with self._lock:
            before = peer.coming
            peer.have = have
            peer.coming = {
                digest: before[digest] if digest in before and before[digest][0] == mark else (mark, now)
                for digest, mark in marks.items()
            }


def _checked(url: str) -> str:
    parts = urlsplit(url)
    plain = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
    if not plain or parts.query or parts.fragment or parts.username is not None:
        raise StageError(StageExit.BAD_MANIFEST, f"--peer {url[:200]!r} is not http://HOST:PORT")
    return f"{parts.scheme}://{parts.netloc}"
