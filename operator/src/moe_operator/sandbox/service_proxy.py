"""Every ClusterIP Service as a TCP listener on its own address, passing bytes to a ready pod.

Which pod is decided when a connection comes: the next ready one in turn, and the one after it when that
refuses. Bytes are passed as they arrive, in both directions; one side may finish before the other. A
Service nobody answers for resets its clients, as kube-proxy's reject rule does.

Ports below 1024 need a privilege; where the process lacks it, the Service listens 8,000 higher and the
annotation :data:`ANNOTATION_PORT` says so.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moe_operator.runtime.kube import POD, SERVICE, ApiError, Kube, Obj
from moe_operator.sandbox.controllers import changed_or_tick, notice
from moe_operator.sandbox.objects import Key, deleting, key_of, moved_on
from moe_operator.sandbox.services import Endpoint, cluster_ip, endpoints
from moe_operator.sandbox.taken_port import PortTaken, holder_of

logger = logging.getLogger(__name__)

MANAGER = "moe-sandbox"
ANNOTATION_PORT = "sandbox.moe-operator.io/ports"
"""JSON object on a Service: its port → the port it listens on in this sandbox, where they differ."""
SHIFT = 8000
CHUNK_BYTES = 64 * 1024
RESYNC_SECONDS = 5.0  # a port that was taken is tried again


@dataclass(slots=True)
class Listener:
    """One port of one Service."""

    service: Key
    address: str
    port: int
    bound: int
    server: asyncio.Server
    turn: int = 0
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    async def close(self) -> None:
        """Stop listening and end what passes through."""
        self.server.close()
        for task in self.connections:
            task.cancel()
        await asyncio.gather(*self.connections, return_exceptions=True)
        await self.server.wait_closed()


class ServiceProxy:
    """All Services of a sandbox; ``say`` gets a line for people when something is not as asked."""

    def __init__(self, kube: Kube, say: Callable[[str], None]) -> None:
        self._kube = kube
        self._say = say
        self._said: set[str] = set()
        self._listeners: dict[tuple[Key, str, int], Listener] = {}
        self._behind: dict[Key, tuple[Endpoint, ...]] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow Services and pods; never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(notice(self._kube, (SERVICE, POD), self._changed))
            while True:
                await self.sync()
                await changed_or_tick(self._changed, RESYNC_SECONDS)

    async def close(self) -> None:
        """Stop listening everywhere."""
        await asyncio.gather(*(listener.close() for listener in self._listeners.values()))
        self._listeners.clear()

    def address(self, service: Key, port: int) -> tuple[str, int]:
        """Where a Service's port is reached; LookupError while it is not."""
        for listener in self._listeners.values():
            if (listener.service, listener.port) == (service, port):
                return listener.address, listener.bound
        raise LookupError(f"nothing listens for port {port} of Service {service}")

    async def sync(self) -> None:
        """Listen for exactly the Services that there are."""
        services = [s for s in (await self._kube.list(SERVICE)).items if not deleting(s)]
        pods = (await self._kube.list(POD)).items
        self._behind = {key_of(s): endpoints(s, pods) for s in services}
        wanted = {
            (key_of(s), cluster_ip(s), int(entry["port"])): s
            for s in services
            for entry in s["spec"].get("ports") or ()
            if cluster_ip(s) and entry.get("protocol", "TCP") == "TCP"
        }
        for gone in self._listeners.keys() - wanted.keys():
            await self._listeners.pop(gone).close()
        for key, service in wanted.items():
            if key not in self._listeners:
                await self._listen(key, service)

    async def _listen(self, key: tuple[Key, str, int], service: Obj) -> None:
        name, address, port = key
        try:
            bound, listening = _bind(address, port)
        except PortTaken as error:
            self._say_once(f"Service {name} cannot be reached: {error}")
            return
        server = await asyncio.start_server(
            lambda reader, writer: self._accept(self._listeners[key], reader, writer),
            sock=listening,
            limit=CHUNK_BYTES,
        )
        self._listeners[key] = Listener(name, address, port, bound, server)
        if bound != port:
            self._say_once(f"Service {name}: port {port} needs a privilege, it is {address}:{bound} here")
            await self._annotate(service)

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    async def _annotate(self, service: Obj) -> None:
        name = key_of(service)
        moved = {
            str(listener.port): listener.bound
            for listener in self._listeners.values()
            if listener.service == name and listener.bound != listener.port
        }
        annotated = {
            "apiVersion": SERVICE.api_version,
            "kind": SERVICE.kind,
            "metadata": {
                "name": name.name,
                "namespace": name.namespace,
                "uid": service["metadata"]["uid"],
                "annotations": {ANNOTATION_PORT: json.dumps(moved, sort_keys=True)},
            },
        }
        try:
            await self._kube.apply(annotated, manager=MANAGER)
        except ApiError as error:
            if not moved_on(error):
                raise

    async def _accept(
        self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        listener.connections.add(task)
        try:
            await self._serve(listener, reader, writer)
        finally:
            listener.connections.discard(task)
            writer.transport.abort()

    async def _serve(
        self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        behind = self._behind.get(listener.service, ())
        listener.turn += 1
        upstream = await _connect(_from_turn(behind, listener.turn), listener.port)
        if upstream is None:
            return
        there, back = upstream[1], upstream[0]
        try:
            await _both(asyncio.create_task(_pass(reader, there)), asyncio.create_task(_pass(back, writer)))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except OSError as error:  # ENOTCONN of a shutdown() is no ConnectionError
            logger.debug("connection through %s broke: %s", listener.service, error)
        finally:
            there.transport.abort()


def _bind(address: str, port: int) -> tuple[int, socket.socket]:
    """A listening socket for a Service's port, shifted where the real one is not allowed."""
    try:
        return port, listen_on(address, port)
    except PermissionError:
        return port + SHIFT, listen_on(address, port + SHIFT)


def listen_on(address: str, port: int) -> socket.socket:
    """A listening socket; PortTaken names who is in the way."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setblocking(False)
    try:
        listening.bind((address, port))
        listening.listen(socket.SOMAXCONN)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(address, port, holder_of(address, port)) from error
        raise
    return listening


def _from_turn(behind: Sequence[Endpoint], turn: int) -> list[Endpoint]:
    """All endpoints, beginning with the one whose turn it is."""
    start = turn % len(behind) if behind else 0
    return [*behind[start:], *behind[:start]]


async def _connect(
    candidates: Sequence[Endpoint], port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """A connection to the first endpoint that takes one."""
    for endpoint in candidates:
        if port not in endpoint.ports:
            continue
        try:
            return await asyncio.open_connection(endpoint.address, endpoint.ports[port], limit=CHUNK_BYTES)
        except OSError as error:
            logger.debug("%s does not take connections: %s", endpoint.pod, error)
    return None


async def _both(one: asyncio.Task[None], other: asyncio.Task[None]) -> None:
    """Until both directions are done; the first failure ends the other direction too."""
    try:
        await asyncio.gather(one, other)
    finally:
        one.cancel()
        other.cancel()
        await asyncio.gather(one, other, return_exceptions=True)


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK_BYTES):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
