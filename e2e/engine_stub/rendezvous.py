"""How the nodes of a group find each other: one TCP connection from every other node to node 0.

Node 0 listens only once it has started; the others try again until it does. A joining node says who it is
(``node``, ``nodes``, ``group``: a digest of everything all must agree on) and is refused when somebody
already has its place or when it means another group. Afterwards both sides send a heartbeat every second;
silence for ``SILENCE`` seconds, or the end of the connection, means that the other is lost. These two are
real seconds, whatever the time scale.

Messages are JSON objects, one a line: join → welcome | refused, start, loaded → serve, beat, shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BEAT = 1.0
SILENCE = 10.0
RETRY = 0.1


class Refused(Exception):
    """Node 0 does not want us; the reason is its own."""


class PeerLost(Exception):
    """The other side is gone."""


@dataclass(frozen=True, slots=True)
class Group:
    """What a node says of itself. ``digest`` must be the same on all nodes."""

    node: int
    nodes: int
    digest: str


class Link:
    """One connection: messages both ways, heartbeats, and one call when the peer is lost."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.lost = asyncio.Event()
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def keep_alive(self) -> None:
        """Start heartbeats and reading in the background."""
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._listen())]

    def send(self, kind: str, **fields: Any) -> None:
        """Queue one message; a lost peer is noticed by the reader."""
        if not self.writer.is_closing():
            self.writer.write(json.dumps({"kind": kind, **fields}).encode() + b"\n")

    async def read(self) -> dict[str, Any]:
        """The next message, heartbeats included; PeerLost at the end of the connection."""
        try:
            line = await asyncio.wait_for(self.reader.readline(), SILENCE)
            message: dict[str, Any] = json.loads(line)
        except (OSError, ValueError, TimeoutError) as error:
            raise PeerLost(str(error)) from None
        return message

    async def expect(self, kind: str) -> dict[str, Any]:
        """Wait for a message of one kind; PeerLost when the connection ends first."""
        lost = asyncio.create_task(self.lost.wait())
        try:
            while True:
                got = asyncio.create_task(self.inbox.get())
                await asyncio.wait((got, lost), return_when=asyncio.FIRST_COMPLETED)
                if not got.done():
                    got.cancel()
                    raise PeerLost(f"while waiting for {kind}")
                if (message := got.result())["kind"] == kind:
                    return message
        finally:
            lost.cancel()

    def close(self) -> None:
        """End the connection and its tasks."""
        for task in self._tasks:
            task.cancel()
        self.writer.close()

    async def _beat(self) -> None:
        while not self.lost.is_set():
            self.send("beat")
            await asyncio.sleep(BEAT)

    async def _listen(self) -> None:
        with contextlib.suppress(PeerLost):
            while True:
                message = await self.read()
                if message["kind"] != "beat":
                    self.inbox.put_nowait(message)
        self.lost.set()
        self.writer.close()


class Leader:
    """Node 0's side: who joined, and a call for each peer that is lost."""

    def __init__(self, group: Group, log: Callable[[str], None]) -> None:
        self.group = group
        self.log = log
        self.links: dict[int, Link] = {}
        self.lost: asyncio.Queue[int] = asyncio.Queue()
        self._complete = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def missing(self) -> int:
        """Nodes that have not joined yet."""
        return self.group.nodes - 1 - len(self.links)

    async def listen(self, host: str, port: int) -> None:
        """Open the rendezvous port; OSError when it cannot be bound."""
        self._server = await asyncio.start_server(self._greet, host, port)

    async def gather(self, timeout: float | None) -> None:
        """Wait until every node has joined; TimeoutError after ``timeout`` seconds."""
        await asyncio.wait_for(self._complete.wait(), timeout)

    def send(self, kind: str, **fields: Any) -> None:
        """The same message to every node."""
        for link in self.links.values():
            link.send(kind, **fields)

    async def collect(self, kind: str) -> list[dict[str, Any]]:
        """One message of ``kind`` from every node, in node order; PeerLost when one is lost."""
        return [await self.links[node].expect(kind) for node in sorted(self.links)]

    async def close(self) -> None:
        """Close the port and every connection."""
        for watcher in self._watchers:
            watcher.cancel()
        for link in self.links.values():
            link.close()
        if self._server:
            self._server.close()
            await self._server.wait_closed()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        try:
            hello = await link.read()
        except PeerLost:
            writer.close()
            return
        if reason := self._objection(hello):
            self.log(reason)
            link.send("refused", reason=reason)
            await writer.drain()
            writer.close()
            return
        node = int(hello["node"])
        self.links[node] = link
        link.send("welcome")
        link.keep_alive()
        self._watchers.append(asyncio.create_task(self._watch(node, link)))
        if not self.missing:
            self._complete.set()

    def _objection(self, hello: dict[str, Any]) -> str | None:
        node, nodes = hello.get("node"), hello.get("nodes")
        if not isinstance(node, int) or not 0 < node < self.group.nodes or nodes != self.group.nodes:
            return f"stub: rank {node} of {nodes} is not one of this group of {self.group.nodes}"
        if hello.get("digest") != self.group.digest:
            return f"stub: rank {node} revision {hello.get('digest')} != leader {self.group.digest}"
        return f"stub: rank {node} already registered" if node in self.links else None

    async def _watch(self, node: int, link: Link) -> None:
        await link.lost.wait()
        if self._complete.is_set():
            self.lost.put_nowait(node)
        else:
            del self.links[node]  # it may come back while the group is still forming


async def join(group: Group, host: str, port: int, log: Callable[[str], None]) -> Link:
    """Connect to node 0, trying for ever; Refused when it does not want us."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except socket.gaierror as error:
            log(
                f"[c10d] The IPv6 network addresses of ({host}, {port}) cannot be retrieved "
                f"(gai error: {error.errno} - {error.strerror})."
            )
        except OSError:
            pass  # nobody listens yet
        else:
            link = Link(reader, writer)
            link.send("join", node=group.node, nodes=group.nodes, digest=group.digest)
            try:
                answer = await link.read()
            except PeerLost:
                writer.close()
            else:
                if answer["kind"] == "refused":
                    writer.close()
                    raise Refused(answer["reason"])
                link.keep_alive()
                return link
        await asyncio.sleep(RETRY)
