"""A small keep-alive HTTP/1.1 client: cheap enough to send thousands of requests from one test."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
DEADLINE = 120.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def complete(self) -> bool:
        """Whether a streamed answer came to its end."""
        return self.status == 200 and self.body.endswith(b"data: [DONE]\n\n")


@dataclass
class Client:
    """One connection at a time; opened when needed, reopened when the server asked to close."""

    host: str
    port: int = 8080
    tls: ssl.SSLContext | None = None
    name: str | None = None  # of the server, in its certificate
    peer: str = ""  # whose certificate the server showed
    _pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self._ask("GET", path, b"", headers)

    async def delete(self, path: str) -> Answer:
        return await self._ask("DELETE", path, b"", {})

    async def post(self, path: str) -> Answer:
        return await self._ask("POST", path, b"", {})

    async def chat(self, prompt: str = "", *, stream: bool = False, **headers: str) -> Answer:
        messages = [{"role": "user", "content": prompt}] if prompt else []
        body = json.dumps({"model": "kimi", "messages": messages, "stream": stream}).encode()
        return await self._ask("POST", CHAT, body, {"content-type": "application/json", **headers})

    async def send(self, path: str, body: bytes, **headers: str) -> Answer:
        return await self._ask("POST", path, body, {"content-type": "application/json", **headers})

    def close(self) -> None:
        if self._pair:
            self._pair[1].close()
            self._pair = None

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        if self._pair is None:
            self._pair = await asyncio.open_connection(
                self.host, self.port, ssl=self.tls, server_hostname=self.name
            )
            self.peer = _subject(self._pair[1])
        reader, writer = self._pair
        lines = [f"{method} {path} HTTP/1.1", f"host: {self.host}", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            async with asyncio.timeout(DEADLINE):
                answer = await _read(reader)
        except BaseException:
            self.close()
            raise
        if answer.headers.get("connection") == "close":
            self.close()
        return answer


def _subject(writer: asyncio.StreamWriter) -> str:
    certificate = writer.get_extra_info("peercert") or {}
    return "".join(value for name in certificate.get("subject", ()) for _, value in name)


async def _read(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    if headers.get("transfer-encoding") == "chunked":
        body = await _chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Answer(int(head[0].split(" ")[1]), headers, body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body
