"""A client that goes on asking while a group is lost and comes back, and what became of its questions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Self

from e2e.scenarios import chat

PAUSE_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
TOKENS = 4
WHOLE = ("length", "stop")  # an engine that is told to stop ends its streams with "abort"


@dataclass(frozen=True, slots=True)
class Question:
    """``ended``: moment of the answer or of the error, by the monotonic clock; ``error``: "" = answered."""

    ended: float
    error: str


def longest_silence(questions: Sequence[Question]) -> float:
    """Most seconds between one answer and the next."""
    answers = [question.ended for question in questions if not question.error]
    return max((later - earlier for earlier, later in pairwise(answers)), default=0.0)


class Asking:
    """Asks one question after the other as long as it is entered."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.questions: list[Question] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._ask_on())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def answer_after(self, moment: float, seconds: float) -> float:
        """Moment of the first answer after ``moment``. Raises TimeoutError."""
        async with asyncio.timeout(seconds), self._changed:
            while True:
                for question in self.questions:
                    if question.ended > moment and not question.error:
                        return question.ended
                await self._changed.wait()

    async def _ask_on(self) -> None:
        while True:
            error = await self._ask()
            async with self._changed:
                self.questions.append(Question(time.monotonic(), error))
                self._changed.notify_all()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reply = await chat.ask(
                    self._url, self._model, "Are you there?", max_tokens=TOKENS, hear=lambda _: None
                )
        except (chat.NoAnswer, TimeoutError) as error:
            return str(error) or type(error).__name__
        return "" if reply.finish_reason in WHOLE else f"finish_reason {reply.finish_reason!r}"
