"""Progress for people: a bar on a terminal, JSON lines elsewhere. Everything goes to standard error."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from moe_operator.staging.progress import Progress

BAR_SECONDS = 0.2
LINE_SECONDS = 5.0


def log(event: str, **fields: object) -> None:
    """One JSON line."""
    # One write, so that lines of different threads do not mix.
    sys.stderr.write(json.dumps({"event": event, **fields}, default=str) + "\n")
    sys.stderr.flush()


@contextmanager
def reported(progress: Progress) -> Iterator[None]:
    """Show progress while the block runs, and once more at its end."""
    if sys.stderr.isatty():
        with _bar(progress):
            yield
    else:
        with _every(LINE_SECONDS, lambda: _line(progress)):
            yield


def _line(progress: Progress) -> None:
    log("progress", **progress.snapshot().model_dump(by_alias=True))


@contextmanager
def _every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def loop() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=loop, name="report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        act()


@contextmanager
def _bar(progress: Progress) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
        TransferSpeedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[message]}", style="dim"),
    )  # fmt: skip
    with RichProgress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("Pending", total=None, message="")

        def draw() -> None:
            now = progress.snapshot()
            shown.update(
                task,
                description=now.phase,
                total=now.bytes_total or None,
                completed=now.bytes_done,
                message=now.message,
            )

        with _every(BAR_SECONDS, draw):
            yield
