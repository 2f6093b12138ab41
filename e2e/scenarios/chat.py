"""One question through the gateway, asked with OpenAI's own client."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk


class NoAnswer(Exception):
    """The client got an error instead of an answer."""


@dataclass(slots=True)
class Reply:
    """What has come back; ``first_token`` is in seconds since the question."""

    pieces: list[str] = field(default_factory=list)
    first_token: float = 0.0
    finish_reason: str = ""
    fingerprint: str = ""

    def take(self, chunk: ChatCompletionChunk, after: float) -> list[str]:
        """Pieces of text in a chunk that came ``after`` seconds."""
        texts = [choice.delta.content for choice in chunk.choices if choice.delta.content]
        if texts and not self.pieces:
            self.first_token = after
        self.pieces += texts
        self.finish_reason = next(
            (c.finish_reason for c in chunk.choices if c.finish_reason), self.finish_reason
        )
        self.fingerprint = chunk.system_fingerprint or self.fingerprint
        return texts


async def ask(url: str, model: str, question: str, *, max_tokens: int, hear: Callable[[str], None]) -> Reply:
    """Stream one answer; ``hear`` gets every piece as it comes. Raises NoAnswer."""
    from openai import AsyncOpenAI, OpenAIError  # two seconds of importing, which nothing else here needs

    began = time.monotonic()
    reply = Reply()
    try:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none-is-asked-for", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": question}],
                max_tokens=max_tokens,
                stream=True,
            )
            async for chunk in stream:
                for piece in reply.take(chunk, time.monotonic() - began):
                    hear(piece)
    except OpenAIError as error:
        raise NoAnswer(f"{type(error).__name__}: {error}") from error
    return reply
