"""A Kubernetes API server that knows one ConfigMap and how to watch it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from moe_operator.api.intent import INTENT_KEY, Intent


@dataclass(eq=False)
class ApiDouble:
    """Sends the object as it is when a watch opens, then every change, as the real server does."""

    address: str
    port: int = 6443
    text: str | None = None  # intent.json; None = the ConfigMap does not exist
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    watching: asyncio.Event = field(default_factory=asyncio.Event)
    refuse_with: int | None = None  # HTTP status for the next watches
    _server: asyncio.Server | None = None
    _watches: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    async def start(self) -> ApiDouble:
        self._server = await asyncio.start_server(self._serve, self.address, self.port)
        return self

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self.cut()
        await self._server.wait_closed()
        self._server = None

    def cut(self) -> None:
        """Lose every open watch without a word."""
        for writer in tuple(self._watches):
            writer.transport.abort()
        self._watches.clear()
        self.watching.clear()

    def put(self, intent: Intent | str) -> None:
        """Change the ConfigMap."""
        self.text = intent if isinstance(intent, str) else intent.model_dump_json(by_alias=True)
        self.send("MODIFIED", _config_map(self.text))

    def send(self, kind: str, item: object) -> None:
        """Send one event to every open watch."""
        for writer in self._watches:
            _write_event(writer, kind, item)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self._note(head)
            if self.refuse_with:
                writer.write(f"HTTP/1.1 {self.refuse_with} No\r\ncontent-length: 2\r\n\r\nno".encode())
                return
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            if self.text is not None:
                _write_event(writer, "ADDED", _config_map(self.text))
            self._watches.add(writer)
            self.watching.set()
            await reader.read()  # until the agent leaves
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._watches.discard(writer)
            writer.close()

    def _note(self, head: str) -> None:
        self.queries.append(parse_qs(urlsplit(head.split(" ")[1]).query))
        lines = head.lower().split("\r\n")
        self.tokens += [line.partition(": ")[2] for line in lines if line.startswith("authorization:")]


def _config_map(text: str) -> object:
    return {"kind": "ConfigMap", "metadata": {"name": "kimi-gateway"}, "data": {INTENT_KEY: text}}


def _write_event(writer: asyncio.StreamWriter, kind: str, item: object) -> None:
    line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
    writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
