"""A small HTTP/1.1 server: keep-alive, chunked streaming, and it notices a client that went away.

Handlers get a :class:`Request` and return a :class:`Response`, whose body is bytes or an async iterator.
An iterator that raises :class:`Cut` ends the connection without the closing chunk, as a crash would.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from time import gmtime, strftime
from typing import Any

HEADER_LIMIT = 65_536
BODY_LIMIT = 64 * 1024 * 1024


class Cut(Exception):
    """Close the connection here and now."""


@dataclass(slots=True)
class Request:
    """One request; ``gone`` is set when the client has closed its side."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    peer: str
    gone: asyncio.Event


@dataclass(slots=True)
class Response:
    """What to answer; header names are written as given."""

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]
AccessLog = Callable[[Request, int], None]


def json_response(value: Any, status: int = 200) -> Response:
    """``value`` as compact JSON, non-ASCII characters as they are."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(status, body, {"content-type": "application/json"})


class Server:
    """Listens on a socket that was bound before; one task per request."""

    def __init__(self, handler: Handler, access_log: AccessLog, name: str = "uvicorn") -> None:
        self.handler = handler
        self.access_log = access_log
        self.name = name
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, sock: Any) -> None:
        """Start to accept connections on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=sock)

    async def close(self) -> None:
        """Stop accepting, let answers that are being written finish, close idle connections."""
        if self._server:
            self._server.close()
        answers = [one.task for one in self.connections if one.task and not one.gone.is_set()]
        if answers:
            await asyncio.wait(answers)
        for connection in tuple(self.connections):
            connection.close()
        if self._server:
            await self._server.wait_closed()


class _Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = bytearray()
        self.task: asyncio.Task[None] | None = None
        self.gone = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = f"{host}:{port}"
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.writable.set()
        self.server.connections.discard(self)

    def eof_received(self) -> bool:
        return False  # clients of an engine do not half-close: take it as gone

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def close(self) -> None:
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._next_request()

    def _next_request(self) -> None:
        if self.task is not None or self.gone.is_set():
            return
        try:
            request = self._parse()
        except ValueError:
            self.transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.close()
            return
        if request:
            self.task = asyncio.ensure_future(self._answer(request))

    def _parse(self) -> Request | None:
        """The next whole request in the buffer; ValueError when it is malformed."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self.buffer) > HEADER_LIMIT:
                raise ValueError("headers too long")
            return None
        first, *lines = self.buffer[:end].decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if "transfer-encoding" in headers:
            body_end, body = _chunked(self.buffer, end + 4)
        else:
            length = int(headers.get("content-length", 0))
            if not 0 <= length <= BODY_LIMIT:
                raise ValueError("body too long")
            body_end = end + 4 + length
            body = bytes(self.buffer[end + 4 : body_end])
        if body_end < 0 or len(self.buffer) < body_end:
            return None
        del self.buffer[:body_end]
        return Request(method, target.split("?", 1)[0], headers, body, self.peer, self.gone)

    async def _answer(self, request: Request) -> None:
        keep = request.headers.get("connection", "").lower() != "close"
        try:
            response = await self.server.handler(request)
            self.server.access_log(request, response.status)
            await self._write(request, response, keep)
        except Cut:
            keep = False
        finally:
            self.task = None
            if not keep:
                self.close()
        self._next_request()

    async def _write(self, request: Request, response: Response, keep: bool) -> None:
        headers = {"date": strftime("%a, %d %b %Y %H:%M:%S GMT", gmtime()), "server": self.server.name}
        if isinstance(response.body, bytes):
            headers["content-length"] = str(len(response.body))
        headers |= response.headers
        if not isinstance(response.body, bytes):
            headers["transfer-encoding"] = "chunked"
        if not keep:
            headers["connection"] = "close"
        phrase = HTTPStatus(response.status).phrase
        lines = [f"HTTP/1.1 {response.status} {phrase}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        head = "\r\n".join(lines).encode("latin-1")
        if isinstance(response.body, bytes):
            self.transport.write(head + (b"" if request.method == "HEAD" else response.body))
            return
        self.transport.write(head)
        async for part in response.body:
            if self.gone.is_set():
                break
            await self.writable.wait()
            self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        if not self.gone.is_set():
            self.transport.write(b"0\r\n\r\n")


def _chunked(buffer: bytearray, at: int) -> tuple[int, bytes]:
    """End of a chunked body and its content; end is -1 while it is incomplete."""
    parts: list[bytes] = []
    while (line_end := buffer.find(b"\r\n", at)) >= 0:
        size = int(buffer[at:line_end].split(b";")[0], 16)
        start, at = line_end + 2, line_end + 2 + size + 2
        if len(buffer) < at:
            break
        if size == 0:
            return at, b"".join(parts)
        parts.append(bytes(buffer[start : start + size]))
    return -1, b""
