"""An upstream that answers like an engine's HTTP face: health, models and (streamed) completions."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

CHUNKS = 4


@dataclass(eq=False)
class EngineDouble:
    """One engine on ``address``; every answer names it, so a test can see who served."""

    name: str
    address: str
    port: int = 8000
    healthy: bool = True
    chunk_seconds: float = 0.0
    hold: asyncio.Event | None = None  # streams wait for it before their last chunk
    usage: dict[str, int] | None = None  # what every answer says it took
    heads: list[str] = field(default_factory=list)  # of the requests, in lower case
    requests: int = 0
    active: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a client gave up a held stream
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> EngineDouble:
        self._server = await asyncio.start_server(self._serve, self.address, self.port)
        return self

    async def kill(self) -> None:
        """As SIGKILL: nothing listens, every connection is reset."""
        if self._server is None:
            return
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        path = head.split(" ")[1]
        length = next((int(li[15:]) for li in head.split("\r\n") if li.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if path == "/health":
            _answer(writer, 200 if self.healthy else 503, {})
            await writer.drain()
            return True
        self.heads.append(head)
        try:
            asked = json.loads(body or b"{}")
        except ValueError:
            _answer(writer, 400, {"error": {"message": "not JSON", "type": "x", "param": None, "code": 400}})
            await writer.drain()
            return True
        self.requests += 1
        self.active += 1
        try:
            if asked.get("stream"):
                await self._stream(reader, writer)
            else:
                usage = {"usage": self.usage} if self.usage else {}
                answer = {"model": self.name, "object": "list", "data": [{"id": self.name}], **usage}
                _answer(writer, 200, answer)
                await writer.drain()
        finally:
            self.active -= 1
        return True

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for number in range(CHUNKS):
            if number == CHUNKS - 1 and self.hold is not None:
                await self._held(self.hold, reader)
            chunk = {"model": self.name, "choices": [{"index": 0, "delta": {"content": f"{number} "}}]}
            await self._event(writer, json.dumps(chunk))
        if self.usage:
            await self._event(writer, json.dumps({"model": self.name, "choices": [], "usage": self.usage}))
        await self._event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _held(self, hold: asyncio.Event, reader: asyncio.StreamReader) -> None:
        released, gone = asyncio.create_task(hold.wait()), asyncio.create_task(reader.read(1))
        _, pending = await asyncio.wait({released, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if released in pending:
            self.left.set()
            raise ConnectionResetError

    async def _event(self, writer: asyncio.StreamWriter, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        await writer.drain()
        if self.chunk_seconds:
            await asyncio.sleep(self.chunk_seconds)


def _answer(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
