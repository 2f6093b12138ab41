"""Other nodes that have the same bytes: who has which, who is fetching which, and whom not to ask any more.

Rules: a peer's word is never trusted, only the digest of what it sent; one that sent wrong bytes is not
asked again by this process, one that failed is left alone for a while. A file that a peer is fetching right
now is waited for as long as that peer's copy grows, so that many nodes together ask the origin for one copy.
Before a node asks the origin it says so (a claim), then looks whether another one is fetching or has claimed
the file; of two claims the lower store id stays, and it goes on only when no other claim is undecided. The
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
STATE_BYTES = 4 << 10
LOOK_SECONDS = 0.5
UNDECIDED_SECONDS = 2.0  # a claim that is not decided by then was left behind
GLANCE_SECONDS = 0.02
SHUN_SECONDS = 15.0
CATALOGUE_PATH = "/blobs"
STATE_PATH = "/state/sha256/"
BLOB_PATH = "/blobs/sha256/"


@dataclass(slots=True)
class Peer:
    """One other node, as far as it is known."""

    url: str
    have: frozenset[str] = frozenset()
    coming: dict[str, tuple[int, float]] = field(default_factory=dict)  # digest -> (mark, when it last moved)
    shunned_until: float = 0.0

    def sees(self, digest: str, mark: int, now: float) -> None:
        """Note how far it says it is with a blob."""
        before = self.coming.get(digest)
        self.coming[digest] = before if before is not None and before[0] == mark else (mark, now)


@dataclass(frozen=True, slots=True)
class State:
    """What a peer says about one blob: ``have``, ``fetching``, ``claimed`` or ``absent``."""

    word: str
    store_id: str
    moved_at: float

    def is_alive(self, now: float, patience: float) -> bool:
        """Whether its word still counts: bytes that stopped growing are not waited for."""
        return self.word != "fetching" or now - self.moved_at < patience


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
        self._pool: ThreadPoolExecutor | None = None
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
            self._pool = pool
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

    def leave_it_to_us(self, digest: str, store_id: str) -> bool:
        """Whether no peer fetches or will fetch a blob that we have claimed; one that has it is noted."""
        end = time.monotonic() + UNDECIDED_SECONDS
        while True:
            now = time.monotonic()
            states = [state for state in self._asked(digest) if state.is_alive(now, self._stall_seconds)]
            claims = [state.store_id for state in states if state.word == "claimed"]
            if any(state.word == "fetching" for state in states) or any(other < store_id for other in claims):
                return False
            if not claims or now > end:
                return True
            self._stop.wait(GLANCE_SECONDS)

    def _asked(self, digest: str) -> list[State]:
        assert self._pool is not None
        now = time.monotonic()
        peers = [peer for peer in self._peers if peer.shunned_until <= now]
        return [
            state
            for state in self._pool.map(lambda peer: self._state(peer, digest), peers)
            if state is not None
        ]

    def _state(self, peer: Peer, digest: str) -> State | None:
        url = f"{peer.url}{STATE_PATH}{digest}"
        try:
            raw = self._transport.read(url, STATE_BYTES, authorization=bearer(self._token_file), hops=0)
            said = json.loads(raw)
            word, store_id, mark = str(said["state"]), str(said["store"]), int(said["mark"])
        except Stopped:
            return None
        except (StageError, ValueError, KeyError, TypeError):
            self.failed(peer)
            return None
        now = time.monotonic()
        with self._lock:
            if word == "have":
                peer.have |= {digest}
            elif word == "fetching":
                peer.sees(digest, mark, now)
            return State(word, store_id, peer.coming.get(digest, (0, now))[1])

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
            peer.have = have
            for gone in peer.coming.keys() - marks.keys():
                del peer.coming[gone]
            for digest, mark in marks.items():
                peer.sees(digest, mark, now)


def _checked(url: str) -> str:
    parts = urlsplit(url)
    plain = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
    if not plain or parts.query or parts.fragment or parts.username is not None:
        raise StageError(StageExit.BAD_MANIFEST, f"--peer {url[:200]!r} is not http://HOST:PORT")
    return f"{parts.scheme}://{parts.netloc}"
