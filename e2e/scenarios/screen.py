"""What people see: moving bars on a terminal, one plain line per step everywhere else."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from .view import Bar

STEP_PERCENT = 25  # plain lines tell of every such step


class Movement(Protocol):
    """Shows how far things are, as long as it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, bars: Iterable[Bar]) -> None:
        """Everything that moves, as it is now."""
        ...


class Screen:
    """Writes to a console; text is never read as markup."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def title(self, text: str) -> None:
        """What comes next."""
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def say(self, text: str, style: str = "") -> None:
        """A line."""
        self._console.print(Text(f"  {text}", style=style), soft_wrap=True)

    def piece(self, text: str) -> None:
        """A part of a line, shown at once."""
        self._console.print(Text(text), end="", soft_wrap=True)

    def put(self, what: RenderableType) -> None:
        """A table."""
        self._console.print(what)

    def movement(self) -> Movement:
        """Bars where they can move, else lines."""
        return MovingBars(self._console) if self._console.is_terminal else Lines(self)


class MovingBars:
    """One bar each, drawn in place."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("  {task.description:<22}"),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[amount]:>6}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            refresh_per_second=8,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, bars: Iterable[Bar]) -> None:
        """Move every bar to where it is."""
        for bar in bars:
            task = self._tasks.get(bar.label)
            if task is None:
                task = self._progress.add_task(bar.label, total=None, amount="", note="")
                self._tasks[bar.label] = task
            total = bar.total or None
            self._progress.update(task, total=total, completed=bar.done, amount=amount(bar), note=bar.note)


class Lines:
    """A line whenever a bar has moved a step or its note has changed."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._said: dict[str, tuple[int, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def show(self, bars: Iterable[Bar]) -> None:
        """Say what is new."""
        for bar in bars:
            now = (bar.percent // STEP_PERCENT, bar.note)
            if self._said.get(bar.label) != now:
                self._said[bar.label] = now
                self._screen.say(f"{bar.label}: {amount(bar)} {bar.note}".rstrip())


def amount(bar: Bar) -> str:
    """Small counts as they are, bytes in percent."""
    if not bar.total:
        return ""
    return f"{bar.done}/{bar.total}" if bar.total <= 64 else f"{bar.percent} %"
