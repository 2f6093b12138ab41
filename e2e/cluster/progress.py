"""Says what is being done and for how long, so that a long build never looks stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

STILL_RUNNING_SECONDS = 30.0


def elapsed(seconds: float) -> str:
    """ "4.2 s" below a minute, "3 m 31 s" from there."""
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)} m {int(rest):02d} s" if minutes else f"{rest:.1f} s"


class Progress:
    """Lines for people; ``write`` and ``clock`` are given so that tests can watch."""

    def __init__(
        self,
        write: Callable[[str], None] = click.echo,
        clock: Callable[[], float] = time.monotonic,
        still_running: float = STILL_RUNNING_SECONDS,
    ) -> None:
        self._write = write
        self._clock = clock
        self._still_running = still_running
        self._open: list[str] = []

    def say(self, text: str) -> None:
        """One line."""
        self._write(text)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what is done inside; a line now and then while it is the innermost step, one when it ends."""
        started = self._clock()
        self._open.append(name)
        done = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(name, started, done), daemon=True)
        ticker.start()
        outcome = "failed after"
        try:
            yield
            outcome = "done in"
        finally:
            done.set()
            ticker.join()
            self._open.pop()
            self._write(f"  {name}: {outcome} {elapsed(self._clock() - started)}")

    def _tick(self, name: str, started: float, done: threading.Event) -> None:
        while not done.wait(self._still_running):
            if self._open[-1] == name:
                self._write(f"  {name}: {elapsed(self._clock() - started)} so far")
