"""Follow the one ConfigMap that holds the intent.

The watch is opened without a resourceVersion, so the server first sends the object as it is now: every
connection is a resync, nothing is remembered between two, and a version that has expired on the server
cannot trap us. While the API does not answer, the copy that the kubelet mounts is offered instead; the
receiver ignores what is older than what it has.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import httpx
from pydantic import BaseModel, ValidationError

from moe_operator.api.intent import INTENT_KEY

WATCH_SECONDS = (240, 300)  # the server ends a watch after a random time in this range
CONNECT_SECONDS = 5.0
SETTLED_SECONDS = 5.0  # a connection that lived this long starts the backoff afresh
BACKOFF_SECONDS = (0.2, 10.0)
# A peer that vanished without a word is noticed within half a minute.
KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]

FROM_API, FROM_MOUNT = "api", "mount"
Offer = Callable[[str, str], None]  # (text of an intent, FROM_API or FROM_MOUNT)
_log = logging.getLogger(__name__)


class WatchFailed(Exception):
    """The API server could not be reached or refused; the message says which."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API server is and who we are; the token is read anew for every connection."""

    url: str
    credentials: Path  # directory with ``token`` and ``ca.crt``, as the kubelet mounts it

    @classmethod
    def of_this_pod(cls, credentials: Path, environ: dict[str, str] | None = None) -> ApiServer:
        """``MOE_API_URL`` or what the kubelet put into the environment; WatchFailed when neither is set."""
        env = dict(os.environ) if environ is None else environ
        if url := env.get("MOE_API_URL"):
            return cls(url.rstrip("/"), credentials)
        host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise WatchFailed("neither MOE_API_URL nor KUBERNETES_SERVICE_HOST is set")
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", credentials)

    def client(self) -> httpx.AsyncClient:
        """A client for one connection."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers=self._authorization(),
            timeout=httpx.Timeout(CONNECT_SECONDS, read=max(WATCH_SECONDS) + 30),
            transport=httpx.AsyncHTTPTransport(verify=self._tls(), socket_options=KEEP_ALIVE),
            trust_env=False,
        )

    def _authorization(self) -> dict[str, str]:
        try:
            token = (self.credentials / "token").read_text().strip()
        except FileNotFoundError:  # the sandbox's API asks for none
            return {}
        return {"Authorization": f"Bearer {token}"}

    def _tls(self) -> ssl.SSLContext | bool:
        if not self.url.startswith("https:"):
            return False
        authority = self.credentials / "ca.crt"
        return ssl.create_default_context(cafile=str(authority) if authority.exists() else None)


@dataclass(slots=True)
class Backoff:
    """Exponential delays in seconds with full jitter."""

    first: float = BACKOFF_SECONDS[0]
    longest: float = BACKOFF_SECONDS[1]
    _attempts: int = 0

    def next(self) -> float:
        """How long to wait now."""
        ceiling = min(self.longest, self.first * 2**self._attempts)
        self._attempts = min(self._attempts + 1, 16)
        return random.uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        """Start afresh: the last attempt went well."""
        self._attempts = 0


@dataclass(slots=True)
class WatchState:
    """What the metrics tell about the connection to the API server."""

    connected: bool = False
    failures: int = 0


async def follow(api: ApiServer, config_map: str, mounted: Path, offer: Offer, state: WatchState) -> None:
    """Offer the mounted intent, then every version of ``NAMESPACE/NAME``, until cancelled."""
    _offer_mounted(mounted, offer)
    backoff = Backoff()
    while True:
        opened = monotonic()
        try:
            async with aclosing(watch(api, config_map, state)) as texts:
                async for text in texts:
                    offer(text, FROM_API)
        except WatchFailed as failure:
            state.failures += 1
            _log.warning("watch failed", extra={"fields": {"configMap": config_map, "error": str(failure)}})
            _offer_mounted(mounted, offer)
        if monotonic() - opened >= SETTLED_SECONDS:
            backoff.reset()
        await asyncio.sleep(backoff.next())


def _offer_mounted(mounted: Path, offer: Offer) -> None:
    try:
        offer(mounted.read_text(), FROM_MOUNT)
    except OSError as error:
        _log.warning("mounted intent is unreadable", extra={"fields": {"error": str(error)}})


async def watch(api: ApiServer, config_map: str, state: WatchState) -> AsyncGenerator[str]:
    """The intent's text now and after every change, until the server ends the watch."""
    namespace, _, name = config_map.partition("/")
    params: dict[str, str | int] = {
        "watch": "1",
        "fieldSelector": f"metadata.name={name}",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": random.randint(*WATCH_SECONDS),
    }
    with _named_failures():
        async with (
            api.client() as client,
            client.stream("GET", f"/api/v1/namespaces/{namespace}/configmaps", params=params) as response,
        ):
            await _must_be_ok(response)
            with _connected(state):
                async for line in response.aiter_lines():
                    if line and (text := _intent_text(_Event.model_validate_json(line))) is not None:
                        yield text


@contextmanager
def _named_failures() -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, ValidationError, OSError) as error:  # OSError: unreadable CA or token
        raise WatchFailed(repr(error)) from error


@contextmanager
def _connected(state: WatchState) -> Iterator[None]:
    state.connected = True
    try:
        yield
    finally:
        state.connected = False


async def _must_be_ok(response: httpx.Response) -> None:
    if response.status_code != 200:
        body = (await response.aread()).decode(errors="replace")
        raise WatchFailed(f"{response.status_code}: {body[:500]}")


class _Object(BaseModel):
    """A ConfigMap, or the Status that an ERROR event carries."""

    data: dict[str, str] | None = None
    code: int = 0
    message: str = ""


class _Event(BaseModel):
    type: str
    object: _Object


def _intent_text(event: _Event) -> str | None:
    """The intent in a watch event; None where there is none. A deleted ConfigMap changes nothing."""
    if event.type == "ERROR":  # 410 Expired and friends: open a new watch
        raise WatchFailed(f"{event.object.code}: {event.object.message}")
    if event.type not in {"ADDED", "MODIFIED"}:
        return None
    return (event.object.data or {}).get(INTENT_KEY)
