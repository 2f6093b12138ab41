"""The engine proper: requests wait, run in a batch, get one token a step, and end.

States: it serves; it *stalls* (accepts and never answers, as with a lost peer); it is *dead* (everything
ends with an error); it *aborts* (running requests end at once with ``finish_reason: "abort"``). A request
notices within ``TICK`` seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from .faults import Faults
from .settings import Settings
from .tokens import GARBAGE, Answer, Sampling, Tokenizer, answer

TICK = 0.05


class EngineDead(Exception):
    """The engine cannot answer any more."""


@dataclass(frozen=True, slots=True)
class Step:
    """One token of one choice; ``finish_reason`` is set on the choice's last."""

    index: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | None = None


@dataclass(slots=True)
class Job:
    """One request on its way through the engine; times are of the monotonic clock, 0 until they happen."""

    id: str
    prompt: str
    prompt_tokens: int
    sampling: Sampling
    n: int
    gone: asyncio.Event
    engine: int = 0
    arrived: float = field(default_factory=time.monotonic)
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    generated: int = 0


class Observer:
    """What the engine tells its metrics; methods do nothing here."""

    def scheduled(self, job: Job) -> None:
        """The prompt is being computed."""

    def token(self, job: Job, now: float, previous: float) -> None:
        """One token was made at ``now``; ``previous`` is 0 for the first."""

    def finished(self, job: Job, reason: str) -> None:
        """The request ended."""


@dataclass(slots=True)
class Generator:
    """Runs jobs. ``identity`` is what answers depend on beside the prompt: model name and weights."""

    settings: Settings
    faults: Faults
    tokenizer: Tokenizer
    identity: str
    slots: int
    engines: int = 1
    observer: Observer = field(default_factory=Observer)
    on_submit: Callable[[], None] = lambda: None
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    stalled: bool = False
    dead: bool = False
    draining: bool = False
    aborting: bool = False
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self.waiting) + len(self.running)

    async def idle(self, limit: float | None) -> None:
        """Wait until no request is left, for at most ``limit`` seconds."""
        until = time.monotonic() + limit if limit is not None else inf
        while self.unfinished and time.monotonic() < until:
            await self._freed_or_tick()

    async def _freed_or_tick(self) -> None:
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK):  # wait_for of Python 3.11 may swallow a cancellation
                await self._freed.wait()

    def check_alive(self) -> None:
        """EngineDead when requests cannot be served."""
        if self.dead or self.faults.active("F36") is not None:
            raise EngineDead

    async def run(self, job: Job) -> AsyncIterator[Step]:
        """The tokens of ``job``, choices in turn; EngineDead, or an end with ``abort``."""
        self.check_alive()
        if self.draining:  # the engine core takes nothing new while it shuts down
            for index in range(job.n):
                yield Step(index, "", "abort")
            return
        self.faults.requests += 1
        self.on_submit()
        job.engine = self.faults.requests % self.engines
        answers = [self._answer(job, index) for index in range(job.n)]
        with self._listed(self.waiting, job):
            await self._free_slot(job)
        with self._listed(self.running, job):
            job.scheduled = time.monotonic()
            self.observer.scheduled(job)
            async for step in self._steps(job, answers):
                yield step

    async def _free_slot(self, job: Job) -> None:
        while len(self.running) >= self.slots * self.engines and not self._ended(job):
            await self._freed_or_tick()

    async def _steps(self, job: Job, answers: list[Answer]) -> AsyncIterator[Step]:
        slow = self.faults.active("F37") or {}
        first = float(slow.get("ttft_s", self.settings.ttft_ms / 1000))
        between = float(slow.get("itl_ms", self.settings.itl_ms)) / 1000
        open_choices = set(range(job.n))
        for position in range(max(len(one.pieces) for one in answers)):
            await self.pace(job, between if position else first)
            if self._ended(job):
                break
            for index in sorted(open_choices):
                pieces = answers[index].pieces
                last = position == len(pieces) - 1
                if last:
                    open_choices.discard(index)
                self._count(job)
                yield _step(answers[index], index, position, last=last)
        if not open_choices:
            self.observer.finished(job, answers[0].finish_reason)
            return
        self.observer.finished(job, "abort")
        for index in sorted(open_choices):
            yield Step(index, "", "abort")

    def _answer(self, job: Job, index: int) -> Answer:
        garbage = self.faults.active("F42")
        if garbage is not None:
            return Answer((GARBAGE[garbage.get("kind", "nan")],) * job.sampling.max_tokens, "length")
        question = f"{self.identity}\n{job.prompt}\n{index}"
        return answer(self.tokenizer.words, question, job.sampling)

    def _count(self, job: Job) -> None:
        now, previous = time.monotonic(), job.last_token
        job.generated += 1
        job.last_token = now
        job.first_token = job.first_token or now
        self.observer.token(job, now, previous)

    async def pace(self, job: Job, seconds: float) -> None:
        """Wait for the next step; longer while the engine hangs, not at all once the request has ended."""
        until = time.monotonic() + seconds
        while not self._ended(job):
            left = until - time.monotonic()
            if left > 0:
                await asyncio.sleep(min(left, TICK))
            elif self.hangs:
                await asyncio.sleep(TICK)
            else:
                break
        if self.dead:
            self.observer.finished(job, "error")
            raise EngineDead

    @property
    def hangs(self) -> bool:
        """Whether no step can be made now."""
        return self.stalled or self.faults.active("F30") is not None

    def _ended(self, job: Job) -> bool:
        return self.dead or self.aborting or job.gone.is_set()

    @contextmanager
    def _listed(self, jobs: list[Job], job: Job) -> Any:
        jobs.append(job)
        try:
            yield
        finally:
            jobs.remove(job)
            self._freed.set()


def _step(whole: Answer, index: int, position: int, *, last: bool) -> Step:
    if not last:
        return Step(index, whole.pieces[position])
    return Step(index, whole.pieces[position], whole.finish_reason, whole.stop_reason)
