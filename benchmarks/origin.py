"""The origin of the staging benchmark: a process that gives files with sendfile, as fast or slow as asked.

It answers plain paths, ranges, HEAD, an S3 bucket in path style and the few routes of a hub, so that every
client is measured against the same bytes from the same process. ``GET /sent`` says how many body bytes went
out.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

PIECE = 1 << 20
COMMIT = "c" * 40
REPOSITORY = "bench/model"
_HUB = re.compile(rf"{REPOSITORY}/resolve/[^/]+/(.+)")


class Pace:
    """Bytes per second over all connections; 0 = unlimited."""

    def __init__(self, rate: int) -> None:
        self.rate, self.sent = rate, 0
        self._free_at, self._lock = time.monotonic(), threading.Lock()

    def take(self, count: int) -> None:
        with self._lock:
            self.sent += count
            if not self.rate:
                return
            start = max(self._free_at, time.monotonic())
            self._free_at = start + count / self.rate
        time.sleep(max(0.0, start - time.monotonic()))


def serve(root: Path, address: str, rate: int) -> None:
    pace = Pace(rate)
    etags = {p.name: hashlib.sha256(p.name.encode()).hexdigest() for p in root.iterdir()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            path = unquote(self.path.partition("?")[0]).lstrip("/")
            if path == "sent":
                self.document({"sent": pace.sent}, body)
            elif path.startswith(f"api/models/{REPOSITORY}/tree/"):
                tree = [
                    {"type": "file", "path": name, "oid": etag[:40], "size": (root / name).stat().st_size}
                    for name, etag in sorted(etags.items())
                ]
                self.document(tree, body)
            elif path.startswith("api/models/"):
                siblings = [{"rfilename": name} for name in sorted(etags)]
                self.document({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}, body)
            elif match := _HUB.fullmatch(path):
                self.file(match[1], body, {"X-Repo-Commit": COMMIT})
            else:
                self.file(path.removeprefix("bucket/"), body, {})

        def document(self, content: object, body: bool) -> None:
            raw = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            if body:
                self.wfile.write(raw)

        def file(self, name: str, body: bool, headers: dict[str, str]) -> None:
            if name not in etags:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            size = (root / name).stat().st_size
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            first = int(span[1]) if span else 0
            last = min(int(span[2]), size - 1) if span and span[2] else size - 1
            self.send_response(206 if span else 200)
            if span:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            for key, value in {"ETag": f'"{etags[name]}"', "Accept-Ranges": "bytes", **headers}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.wfile.flush()
            if body:
                self.send(root / name, first, last + 1)

        def send(self, path: Path, at: int, end: int) -> None:
            with path.open("rb", buffering=0) as file:
                try:
                    while at < end:
                        count = min(PIECE, end - at)
                        pace.take(count)
                        at += self.connection.sendfile(file, at, count)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

    host, _, port = address.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
