"""The smallest HTTP/1.1 server that kubelets, Prometheus and the operator need.

One request per connection, no bodies read, requests bounded in size and time. It exists because the
agent's image holds no server framework and four routes do not justify one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from moe_operator.gateway.address import Address
from moe_operator.gateway.connections import accepting

MAX_HEAD_BYTES = 16 << 10
READ_SECONDS = 10.0
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What a handler sees."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """What a handler answers."""

    body: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


Handler = Callable[[Request], Awaitable[Response]]


class BadRequest(Exception):
    """The client's fault; the message goes back to it."""


@asynccontextmanager
async def listening(address: Address, handler: Handler) -> AsyncIterator[None]:
    """Serve ``handler`` while entered; leaving cancels what waits. OSError when the address is taken."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            response = await _answer(reader, handler)
            writer.write(_encode(response))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the client left or never finished asking: nobody to answer

    start = partial(asyncio.start_server, host=address.host, port=address.port, limit=MAX_HEAD_BYTES)
    async with accepting(start, connection):
        yield


async def _answer(reader: asyncio.StreamReader, handler: Handler) -> Response:
    try:
        async with asyncio.timeout(READ_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        return await handler(parse(head))
    except asyncio.LimitOverrunError:
        return Response("request too large\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    except BadRequest as error:
        return Response(f"{error}\n", HTTPStatus.BAD_REQUEST)
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        raise
    except Exception:
        _log.exception("handler failed")
        return Response("internal error\n", HTTPStatus.INTERNAL_SERVER_ERROR)


def parse(head: bytes) -> Request:
    """The request line of ``head``; BadRequest when it is none."""
    line = head.split(b"\r\n", 1)[0].decode("latin-1")
    parts = line.split(" ")
    if len(parts) != 3 or not parts[1].startswith("/") or not parts[2].startswith("HTTP/1."):
        raise BadRequest("not an HTTP/1.1 request")
    target = urlsplit(parts[1])
    return Request(parts[0], target.path, dict(parse_qsl(target.query)))


def _encode(response: Response) -> bytes:
    body = response.body.encode()
    head = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
        f"content-type: {response.content_type}\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
