"""Give verified blobs to other nodes.

Rules: only a blob that is still the file that was verified leaves this node; whoever asks must know the
token; nothing is ever written. The number of connections is bounded, and beyond it the answer is 503, so a
crowd of peers cannot take the node's disk and network from the engine. Bytes go from the page cache to the
socket without passing through this process.
"""

from __future__ import annotations

import hmac
import io
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from moe_operator.staging.credentials import bearer
from moe_operator.staging.failure import StageError, Stopped
from moe_operator.staging.listen import Routes, bound
from moe_operator.staging.lock import busy
from moe_operator.staging.pace import Bucket
from moe_operator.staging.peers import BLOB_PATH, CATALOGUE_PATH, STATE_PATH
from moe_operator.staging.progress import Progress
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store

SEND_BYTES = 1 << 20
FRESH_SECONDS = 0.25
IDLE_SECONDS = 30.0  # a peer that takes nothing for this long is hung up on
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"bytes=(\d+)-")


@dataclass(frozen=True, slots=True)
class Seed:
    """What a server gives and within which limits."""

    store: Store
    token_file: Path
    connections: int
    bucket: Bucket
    progress: Progress
    stop: Stop
    routes: Routes  # answered without a token


@contextmanager
def serving(address: str, seed: Seed) -> Iterator[str]:
    """Serve on ``HOST:PORT`` while the block runs; yields the address that was bound."""
    bearer(seed.token_file)  # a server nobody can talk to should not start
    with bound(address, _handler(seed, Catalogue(seed.store))) as name:
        yield name


class Catalogue:
    """Digests that are here, and those on their way with a mark that changes while they grow.

    Read from the disk at most every ``FRESH_SECONDS``, however many peers ask.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._raw, self._fresh_until = b"", 0.0

    def json(self) -> bytes:
        """The answer to ``GET /blobs``."""
        with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._raw = json.dumps(self._read()).encode()
                self._fresh_until = time.monotonic() + FRESH_SECONDS
            return self._raw

    def _read(self) -> dict[str, object]:
        blobs = (path.name for path in (self._store.root / "blobs" / "sha256").glob("??/*"))
        coming = {}
        for part in (self._store.root / "partial").glob("*.part"):
            try:
                if busy(self._store.lock(part.stem)):
                    coming[part.stem] = part.stat().st_mtime_ns
            except FileNotFoundError:  # published since it was listed
                continue
        return {"have": sorted(d for d in blobs if self._store.trusted(d)), "coming": coming}


def state(store: Store, digest: str) -> dict[str, object]:
    """How far this node is with one blob, as its store says at this moment."""
    word, mark = "absent", 0
    if store.trusted(digest):
        word = "have"
    elif busy(store.lock(digest)):
        try:
            word, mark = "fetching", store.part(digest).stat().st_mtime_ns
        except FileNotFoundError:
            word = "claimed" if store.claim(digest).exists() else "absent"
    return {"store": store.id, "state": word, "mark": mark}


def _handler(seed: Seed, catalogue: Catalogue) -> type[BaseHTTPRequestHandler]:
    slots = threading.BoundedSemaphore(seed.connections)

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS
        server_version = "moestage"
        sys_version = ""
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.close_connection = True
            path = self.path.partition("?")[0]
            if path in seed.routes:
                answer = seed.routes[path]()
                self._say(answer.status, answer.body, **{"Content-Type": answer.content_type})
            elif not self._knows_the_token():
                self._say(HTTPStatus.UNAUTHORIZED, b"", **{"WWW-Authenticate": "Bearer"})
            elif not slots.acquire(blocking=False):
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, b"", **{"Retry-After": "1"})
            else:
                try:
                    self._give(path)
                except (ConnectionError, TimeoutError, Stopped):
                    return  # the peer went away, or this server does
                finally:
                    slots.release()

        def _knows_the_token(self) -> bool:
            try:
                expected = bearer(seed.token_file)
            except StageError:
                return False
            return hmac.compare_digest(self.headers.get("Authorization", "").encode(), expected.encode())

        def _give(self, path: str) -> None:
            if path == CATALOGUE_PATH:
                self._say(HTTPStatus.OK, catalogue.json())
                return
            place, digest = path[:-64], path[-64:]
            if place not in (BLOB_PATH, STATE_PATH) or not _DIGEST.fullmatch(digest):
                self._say(HTTPStatus.NOT_FOUND, b"")
                return
            if place == STATE_PATH:
                self._say(HTTPStatus.OK, json.dumps(state(seed.store, digest)).encode())
                return
            try:
                blob = seed.store.blob(digest).open("rb", buffering=0)
            except FileNotFoundError:
                self._say(HTTPStatus.NOT_FOUND, b"")
                return
            with blob:
                self._blob(blob, digest)

        def _blob(self, blob: io.FileIO, digest: str) -> None:
            if not seed.store.trusted(digest):
                self._say(HTTPStatus.NOT_FOUND, b"")
                return
            size = os.fstat(blob.fileno()).st_size
            match = _RANGE.fullmatch(self.headers.get("Range", ""))
            start = int(match[1]) if match else 0
            if match and start >= size:
                self._say(
                    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", **{"Content-Range": f"bytes */{size}"}
                )
                return
            self.send_response(HTTPStatus.PARTIAL_CONTENT if match else HTTPStatus.OK)
            if match:
                self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(size - start))
            self.send_header("ETag", f'"{digest}"')
            self.send_header("Connection", "close")
            self.end_headers()
            while start < size:
                count = min(SEND_BYTES, size - start)
                seed.bucket.take(count, seed.stop)
                sent = self.connection.sendfile(blob, start, count)
                if not sent:  # the file was cut short under us
                    return
                start += sent
                seed.progress.serve(sent)

        def _say(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not news."""

    return Handler
