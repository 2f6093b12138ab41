"""An engine's OpenAI face in small: chat with text, tools and streams, models, and errors."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

MODEL = "kimi"
WORDS = ("one ", "two ", "three")
CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


@dataclass(eq=False)
class ChatDouble:
    """One engine on ``address``; remembers every chat it was asked for."""

    address: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> ChatDouble:
        self._server = await asyncio.start_server(self._serve, self.address, 8000)
        return self

    async def stop(self) -> None:
        if self._server:
            self._server.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                lengths = [
                    int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")
                ]
                body = await reader.readexactly(lengths[0] if lengths else 0)
                writer.write(self._answer(head.split(" ")[1], json.loads(body or b"{}")))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, path: str, asked: dict[str, Any]) -> bytes:
        if path == "/health":
            return _plain(200, {})
        if path == "/v1/models":
            return _plain(
                200,
                {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "x"}]},
            )
        self.asked.append(asked)
        if asked["model"] != MODEL:
            error = {
                "message": f"The model `{asked['model']}` does not exist.",
                "type": "NotFoundError",
                "param": "model",
                "code": 404,
            }
            return _plain(404, {"error": error})
        if asked.get("stream"):
            return _events(list(_chunks()))
        return _plain(200, _completion("tools" in asked))


def _completion(with_tools: bool) -> dict[str, Any]:
    text = {"role": "assistant", "content": "".join(WORDS)}
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    message, reason = (call, "tool_calls") if with_tools else (text, "stop")
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
        "usage": USAGE,
    }


def _chunks() -> list[dict[str, Any]]:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    deltas = [{"index": 0, "delta": {"content": word}, "finish_reason": None} for word in WORDS]
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return [
        *({**base, "choices": [delta]} for delta in [*deltas, end]),
        {**base, "choices": [], "usage": USAGE},
    ]


def _plain(status: int, value: Any) -> bytes:
    body = json.dumps(value).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(body)}"
    return f"HTTP/1.1 {status} X\r\n{head}\r\n\r\n".encode() + body


def _events(chunks: list[dict[str, Any]]) -> bytes:
    events = [*(json.dumps(chunk) for chunk in chunks), "[DONE]"]
    body = b"".join(f"{len(event) + 8:x}\r\ndata: {event}\n\n\r\n".encode() for event in events)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + body
        + b"0\r\n\r\n"
    )
