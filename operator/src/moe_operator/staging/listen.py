"""The stager's HTTP port: what the operator and Prometheus may ask while it runs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from moe_operator.api.manifest import StageExit
from moe_operator.staging.failure import StageError

JSON = "application/json"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SECONDS = 10  # a client that dawdles longer is hung up on
LAST_LOOK_SECONDS = 0.02  # how long the end of a run may wait for its port: an engine waits for its stager


@dataclass(frozen=True, slots=True)
class Answer:
    """One response."""

    body: bytes
    content_type: str = JSON
    status: HTTPStatus = HTTPStatus.OK


Routes = Mapping[str, Callable[[], Answer]]


@contextmanager
def listening(address: str, routes: Routes) -> Iterator[str]:
    """Serve ``routes`` on ``HOST:PORT`` while the block runs; yields the address that was bound."""
    with bound(address, _handler(routes)) as name:
        yield name


@contextmanager
def bound(address: str, handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer on ``HOST:PORT`` while the block runs; yields the address that was bound."""
    host, port = _parsed(address)
    try:
        server = _server_class(host)((host, port), handler)
    except OSError as fault:
        raise StageError(
            StageExit.NETWORK,
            f"cannot listen on {address}: {fault.strerror or fault}",
            hint="another process has the port, or the address is not this machine's",
        ) from fault
    looks = (LAST_LOOK_SECONDS,)
    thread = threading.Thread(target=server.serve_forever, args=looks, name="listen", daemon=True)
    thread.start()
    try:
        yield f"{server.server_address[0]!s}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise StageError(StageExit.BUG, f"--listen {address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _server_class(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

    return Server


def _handler(routes: Routes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version = "moestage"
        sys_version = ""

        def do_GET(self) -> None:
            route = routes.get(self.path.partition("?")[0])
            answer = (
                route()
                if route is not None
                else Answer(b'{"error":"no such path"}', status=HTTPStatus.NOT_FOUND)
            )
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not news."""

    return Handler
