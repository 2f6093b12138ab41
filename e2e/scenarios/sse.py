"""Server-sent events as OpenAI's API sends them, and whether a stream ended as it should."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

DONE = "[DONE]"


class Payloads:
    """Bytes in, as the network cuts them; the payload of every whole ``data:`` line out.

    Only line feeds end a line: JSON may hold other characters that Unicode calls line ends.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Payloads that ``data`` completed."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip().decode() for line in lines if line.startswith(b"data:")]


@dataclass(slots=True)
class Stream:
    """What has come of one streamed completion."""

    tokens: int = 0
    finish_reason: str = ""
    done: bool = False
    error: str = field(default="")

    def take(self, payload: str) -> None:
        """One more payload."""
        if payload == DONE:
            self.done = True
            return
        try:
            chunk = json.loads(payload)
        except ValueError:
            self.error = self.error or f"a chunk that is not JSON: {payload[:200]}"
            return
        if "error" in chunk:
            self.error = self.error or f"an error chunk: {payload[:200]}"
            return
        for choice in chunk.get("choices") or ():
            text = (choice.get("delta") or {}).get("content") or choice.get("text")
            self.tokens += bool(text)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    @property
    def broken(self) -> str:
        """Why the answer is not whole, once no more comes; "" when it is."""
        if self.error:
            return self.error
        if self.finish_reason == "abort":
            return "finish_reason is abort"
        if not self.done:
            return f"ended without {DONE} after {self.tokens} tokens"
        return "" if self.finish_reason else "no finish_reason"
