"""One GET: judged, redirected by hand, answered as a stream that starts where it says it does.

Rules: every hop is judged by :class:`HostPolicy`; credentials go to the first origin only; a redirect
never leads from TLS to plain text unless the admin named the host. Bodies are read with ``http.client``
(a third of httpx's CPU time per byte); they end silently when the peer closes early, so callers compare
lengths.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from email.utils import parsedate_to_datetime
from typing import Protocol
from urllib.parse import urljoin

from moe_operator.api.manifest import StageExit
from moe_operator.staging.failure import RangeRefused, StageError, Transient, Unauthorized
from moe_operator.staging.hosts import HostPolicy, Target, shown
from moe_operator.staging.stop import Stop

REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_HOPS = 5
CONNECT_SECONDS = 10.0
RETRY_AFTER_MAX = 300.0
_RETRIED = frozenset({408, 425, 429})
_THROTTLES = frozenset({429, 503})


class Stream(Protocol):
    """A file's bytes from ``start`` on."""

    start: int
    total: int | None  # length of the whole file, when known
    tag: str  # changes when the file does; "" when the source has no such thing

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of ``buffer``; 0 at the end. Transient when the source breaks off."""
        ...

    def close(self) -> None:
        """Let go of the source."""
        ...


class HttpStream:
    """The body of a 200 or 206."""

    def __init__(self, url: str, response: http.client.HTTPResponse, resources: ExitStack) -> None:
        self._url = url
        self._response = response
        self._resources = resources
        self._left = response.length
        self._begun = False
        self.start, self.total = _extent(response)
        self.tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        self.sha256 = _stored_sha256(response)

    def readinto(self, buffer: memoryview) -> int:
        """Take what the socket has; to wait for a full buffer would be to lose it to a stall."""
        try:
            if self._response.chunked:
                data = self._response.read1(len(buffer))
                buffer[: len(data)] = data
                return len(data)
            buffer = buffer[: self._left]
            if buffer and not self._begun:  # readinto1 keeps what came with the headers until more has come
                self._begun = True
                buffer = buffer[: len(self._response.fp.peek())]
            # Past http.client, straight into the buffer: its read1 copies every byte twice.
            count = self._response.fp.readinto1(buffer)
        except TimeoutError as fault:
            raise Transient("timeout", f"{self._url} sent nothing for too long") from fault
        except (OSError, http.client.HTTPException, ValueError) as fault:
            raise Transient("cut", f"{self._url} broke off: {fault!r}") from fault
        if self._left is not None:
            self._left -= count
        return count

    def close(self) -> None:
        """Close the connection; what was not read is not read."""
        self._resources.close()


class Transport:
    """GETs under one policy. Thread-safe: nothing is shared but the TLS context."""

    def __init__(self, policy: HostPolicy, stop: Stop, *, stall_seconds: float) -> None:
        self.policy = policy
        self._stop = stop
        self._stall_seconds = stall_seconds
        self._tls: ssl.SSLContext | None = None

    def open(
        self,
        url: str,
        *,
        offset: int = 0,
        authorization: str = "",
        accept: str = "*/*",
        hops: int = MAX_HOPS,
    ) -> HttpStream:
        """GET ``url`` from ``offset`` on, following at most ``hops`` redirects.

        Raises Transient for what may pass, AUTH, NOT_FOUND or NETWORK for what will not.
        """
        target = self.policy.target(url)
        origin = target.origin
        for _hop in range(hops + 1):
            at_home = target.origin == origin
            headers = _headers(target, offset, authorization if at_home else "", accept)
            response, resources = self._get(target, headers)
            if response.status in (200, 206):
                return _checked(target, response, resources, offset)
            location = response.headers.get("Location", "")
            resources.close()
            if response.status not in REDIRECTS or not location:
                raise _status_fault(target, response, at_home=at_home)
            target = self.policy.target(
                urljoin(f"{target.scheme}://{target.authority}{target.path}", location)
            )
        raise StageError(StageExit.NETWORK, f"{shown(url)} redirects more than {hops} times")

    def read(
        self, url: str, limit: int, *, authorization: str = "", accept: str = "*/*", hops: int = MAX_HOPS
    ) -> bytes:
        """A small document as a whole; BAD_MANIFEST beyond ``limit`` bytes."""
        with closing(self.open(url, authorization=authorization, accept=accept, hops=hops)) as stream:
            body, buffer = bytearray(), memoryview(bytearray(1 << 16))
            while count := stream.readinto(buffer):
                body += buffer[:count]
                if len(body) > limit:
                    raise StageError(StageExit.BAD_MANIFEST, f"{shown(url)} is longer than {limit} bytes")
            if stream.total is not None and len(body) < stream.total:
                raise Transient("cut", f"{shown(url)} broke off")
            return bytes(body)

    def _get(self, target: Target, headers: Mapping[str, str]) -> tuple[http.client.HTTPResponse, ExitStack]:
        with ExitStack() as resources:
            connection = http.client.HTTPConnection(target.host, target.port)
            resources.callback(connection.close)
            try:
                connection.sock = self._connect(target, resources)
                connection.request("GET", target.path, headers=headers)
                response = connection.getresponse()
            except TimeoutError as fault:
                raise Transient("timeout", f"{target} did not answer in time") from fault
            except ssl.SSLCertVerificationError as fault:
                raise StageError(
                    StageExit.NETWORK,
                    f"{target.host}: {fault.verify_message}",
                    hint="for a private CA set SSL_CERT_FILE in the stager's environment",
                ) from fault
            except (OSError, http.client.HTTPException) as fault:
                raise Transient("connect", f"{target} cannot be asked: {fault!r}") from fault
            resources.callback(response.close)
            return response, resources.pop_all()

    def _connect(self, target: Target, resources: ExitStack) -> socket.socket:
        raw = resources.enter_context(_first_that_connects(self.policy.addresses(target)))
        resources.enter_context(self._stop.waking(lambda: _hang_up(raw)))
        if target.scheme == "http":
            raw.settimeout(self._stall_seconds)
            return raw
        if self._tls is None:
            self._tls = ssl.create_default_context()
        wrapped = resources.enter_context(self._tls.wrap_socket(raw, server_hostname=target.host))
        # wrap_socket took the descriptor over: hang up on the socket that owns it now.
        resources.enter_context(self._stop.waking(lambda: _hang_up(wrapped)))
        wrapped.settimeout(self._stall_seconds)
        return wrapped


def _first_that_connects(
    addresses: list[tuple[socket.AddressFamily, tuple[object, ...]]],
) -> socket.socket:
    fault: OSError = OSError("no address")
    for family, address in addresses:
        candidate = socket.socket(family, socket.SOCK_STREAM)
        candidate.settimeout(CONNECT_SECONDS)
        try:
            candidate.connect(address)
        except OSError as refused:
            candidate.close()
            fault = refused
        else:
            return candidate
    raise fault


def _hang_up(connection: socket.socket) -> None:
    """Wake a thread that is blocked on the socket; harmless when it is closed already."""
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return


def _headers(target: Target, offset: int, authorization: str, accept: str) -> Mapping[str, str]:
    headers = {
        "Host": target.authority,
        "User-Agent": "moestage",
        "Accept": accept,
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    if offset:
        headers["Range"] = f"bytes={offset}-"
    if authorization:
        headers["Authorization"] = authorization
    return headers


def _checked(
    target: Target, response: http.client.HTTPResponse, resources: ExitStack, offset: int
) -> HttpStream:
    stream = HttpStream(str(target), response, resources)
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity" or stream.start not in (0, offset):
        stream.close()
        raise Transient("protocol", f"{target} answered bytes nobody asked for ({encoding}, {stream.start})")
    return stream


def _stored_sha256(response: http.client.HTTPResponse) -> str | None:
    """The SHA-256 of the whole object that S3 keeps; one of parts ends with their number and is useless."""
    text = response.headers.get("x-amz-checksum-sha256", "")
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    whole = response.headers.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT"
    return digest.hex() if len(digest) == 32 and whole and response.status == 200 else None


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """(first byte, whole length) of an answer."""
    if response.status == 206:
        span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        first = span.partition("-")[0]
        return (int(first) if first.isdigit() else -1), (int(total) if total.isdigit() else None)
    length = response.headers.get("Content-Length", "")
    return 0, (int(length) if length.isdigit() else None)


def _status_fault(target: Target, response: http.client.HTTPResponse, *, at_home: bool) -> StageError:
    status, said = response.status, f"{target} answered {response.status} {response.reason}".rstrip()
    detail = response.headers.get("X-Error-Message") or response.headers.get("X-Error-Code") or ""
    said = f"{said} ({detail[:200]})" if detail else said
    if status == 416:
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
        return RangeRefused(said, int(total) if total.isdigit() else None)
    if status in (401, 403) and at_home:
        return Unauthorized(
            said,
            challenge=response.headers.get("WWW-Authenticate", ""),
            hint="check credentialsRef: the token may be absent, expired, or without access to a gated model",
        )
    if status in (401, 403):  # a signed URL of a redirect has run out: ask the origin for a new one
        return Transient(str(status), said, exit=StageExit.AUTH)
    if status in (404, 410):
        return StageError(StageExit.NOT_FOUND, said, hint="check the source's name and revision")
    if status in _RETRIED or status >= 500:
        exit = StageExit.THROTTLED if status in _THROTTLES else StageExit.NETWORK
        return Transient(str(status), said, exit=exit, retry_after=_retry_after(response))
    return StageError(StageExit.NETWORK, said)


def _retry_after(response: http.client.HTTPResponse) -> float | None:
    text = response.headers.get("Retry-After", "").strip()
    if text.isdigit():
        return min(float(text), RETRY_AFTER_MAX)
    try:
        seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except ValueError:
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_MAX)
