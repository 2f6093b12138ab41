"""A web server that misbehaves on request.

Each path has a queue of faults; a request takes the first one, an empty queue means good behaviour. The
server counts the body bytes it hands out, which is what a resumed download is measured by.
"""

from __future__ import annotations

import ssl
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


@dataclass
class Request:
    path: str
    start: int
    authorization: str
    sent: int = 0
    ranged: bool = False
    open: bool = True


@dataclass
class Fault:
    """How one answer goes wrong."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    ignore_range: bool = False
    stated_length: int | None = None
    flip_at: int | None = None  # absolute offset of the byte to alter
    etag: str | None = None
    cut_after: int | None = None  # body bytes, then the connection ends
    hold_after: int | None = None  # body bytes, then silence until the server is closed
    chunked: bool = False
    piece: int = 1 << 16
    pause: float = 0.0  # seconds between pieces


class FaultServer:
    def __init__(self, host: str = "127.40.0.1", tls: tuple[Path, Path] | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.answers: dict[str, Callable[[], bytes]] = {}
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.usual = Fault()  # how an answer is given when no fault is queued
        self.requests: list[Request] = []
        self.held = threading.Semaphore(0)  # released each time a hold begins
        self.lock = threading.Lock()
        self.open_now = self.open_most = 0
        self.closing = threading.Event()
        self._http = ThreadingHTTPServer((host, 0), _handler(self))
        self._http.daemon_threads = True
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self.host, self.port = host, self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def sent(self) -> int:
        with self.lock:
            return sum(request.sent for request in self.requests)

    def requests_of(self, path: str) -> list[Request]:
        with self.lock:
            return [request for request in self.requests if request.path == path]

    def hang_up(self) -> None:
        """End every answer that is held; later ones may be held again."""
        self.closing.set()
        self.closing = threading.Event()

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextmanager
def fault_server(host: str = "127.40.0.1") -> Iterator[FaultServer]:
    server = FaultServer(host)
    try:
        yield server
    finally:
        server.close()


def _handler(server: FaultServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.close_connection = True
            path = unquote(self.path.lstrip("/"))
            span = self.headers.get("Range", "")
            start = int(span.removeprefix("bytes=").partition("-")[0] or 0) if span else 0
            request = Request(path, start, self.headers.get("Authorization", ""), ranged=bool(span))
            with server.lock:
                server.requests.append(request)
                fault = server.faults[path].popleft() if server.faults[path] else server.usual
                server.open_now += 1
                server.open_most = max(server.open_most, server.open_now)
            try:
                self._answer(path, request, fault)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client went away: that is what some tests do
            finally:
                self._ended(request)

        def _ended(self, request: Request) -> None:
            """Once, and before the last byte: whoever has that may ask again before we get any further."""
            with server.lock:
                server.open_now -= request.open
                request.open = False

        def _answer(self, path: str, request: Request, fault: Fault) -> None:
            if fault.status:
                self._empty(fault.status, fault.headers)
                return
            if path in server.answers:
                body = server.answers[path]()
            elif path.partition("?")[0] in server.files:
                body = server.files[path.partition("?")[0]]
            else:
                self._empty(404, {})
                return
            start = 0 if fault.ignore_range else request.start
            if request.ranged and start >= len(body):
                self._empty(416, {"Content-Range": f"bytes */{len(body)}"})
                return
            self._body(body, start, request, fault)

        def _body(self, body: bytes, start: int, request: Request, fault: Fault) -> None:
            if fault.flip_at is not None:
                body = body[: fault.flip_at] + bytes([body[fault.flip_at] ^ 1]) + body[fault.flip_at + 1 :]
            length = len(body) - start if fault.stated_length is None else fault.stated_length
            if request.ranged and not fault.ignore_range:
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            if fault.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(length))
            self.send_header("ETag", fault.etag or f'"{len(body)}"')
            self.end_headers()
            limits = [n for n in (fault.cut_after, fault.hold_after) if n is not None]
            end = start + min([len(body) - start, *limits])
            for at in range(start, end, fault.piece):
                piece = body[at : min(at + fault.piece, end)]
                if at + fault.piece >= end and fault.hold_after is None:
                    self._ended(request)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if fault.chunked else piece)
                with server.lock:
                    request.sent += len(piece)
                if fault.pause and server.closing.wait(fault.pause):
                    return
            if fault.chunked and end == len(body):
                self.wfile.write(b"0\r\n\r\n")
            if fault.hold_after is not None:
                self.wfile.flush()
                server.held.release()
                server.closing.wait()

        def _empty(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler
