"""The demo: DeepSeek-V3.1 on two of four H20 nodes, served and replaced under load, on any cluster.

Ends with 0 when nothing was lost, 1 when something was or went wrong, 130 when a signal stopped it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from moe_operator.runtime.kube import ApiError
from moe_operator.sandbox.loopback import NoAddressLeft
from moe_operator.sandbox.state_dir import StateUnusable
from moe_operator.sandbox.taken_port import PortTaken
from rich.console import Console

from . import report
from .backend import Backend
from .chat import NoAnswer
from .follow import NotReached
from .manifest import patched
from .replace_revision import Told, Wish, replace_revision
from .screen import Screen

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "manifests/examples/deepseek-v3.1-2x8-h20.yaml"
PATCH = ROOT / "manifests/demo/deepseek-v3.1-2x8-h20.patch.yaml"
CHECKPOINT = "deepseek-v3.1"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = 130


@dataclass(frozen=True, slots=True)
class Demo:
    """A wish, the cluster it is told to, and commands worth trying after it."""

    wish: Wish
    cluster: Callable[[Wish], AbstractAsyncContextManager[Backend]]
    next_steps: Callable[[Backend], Sequence[str]]


def demo_object(*patches: Path) -> dict[str, object]:
    """The example with the stub and the synthetic checkpoint in it, and further patches over that."""
    return patched(EXAMPLE, PATCH, *patches)


def run(demo: Demo, console: Console, *, keep: bool) -> int:
    """Tell the story, then leave the cluster up until Ctrl-C when ``keep``; the exit code."""
    try:
        return asyncio.run(_run(demo, Screen(console), keep))
    except asyncio.CancelledError:
        console.print("\nStopped.")
        return STOPPED
    except (NoAddressLeft, PortTaken, StateUnusable) as error:
        console.print(f"Error: {error}", markup=False)
        return 1


async def _run(demo: Demo, screen: Screen, keep: bool) -> int:
    with _stop_signals():
        told = Told()
        async with demo.cluster(demo.wish) as backend:
            told.stopwatch.part("cluster made")
            code = await tell(backend, screen, demo.wish, told)
            screen.title("Next")
            for command in demo.next_steps(backend):
                screen.say(command)
            if keep:
                await _stay(backend, screen)
            return code


async def tell(backend: Backend, screen: Screen, wish: Wish, told: Told) -> int:
    """The story, its tables and its verdict; the exit code."""
    screen.say(backend.describe())
    # Two seconds of importing, done while the first processes start.
    importing = asyncio.create_task(asyncio.to_thread(importlib.import_module, "openai"))
    story = asyncio.create_task(replace_revision(backend, screen, wish, told))
    dying = asyncio.create_task(backend.death())
    try:
        await asyncio.wait({story, dying}, return_when=asyncio.FIRST_COMPLETED)
        await (story if story.done() else dying)
    except (NotReached, NoAnswer, ApiError) as error:
        screen.say(await backend.evidence(), "dim")
        screen.say(f"✗ {type(error).__name__}: {error}", "red")
        return 1
    finally:
        story.cancel()
        dying.cancel()
        await asyncio.gather(story, dying, importing, return_exceptions=True)
    return _verdict(screen, told)


def _verdict(screen: Screen, told: Told) -> int:
    screen.title("What it was")
    screen.put(report.time_table(told.stopwatch))
    screen.put(report.traffic_table(told.tally, told.switched))
    screen.put(report.pod_table(told.pods, told.last.status.active_revision if told.last else ""))
    findings = told.findings()
    for finding in findings:
        screen.say(f"✗ {finding}", "red")
    if not findings:
        screen.say("✔ no request failed, no stream broke, every rank is where it was promised", "green")
    return 1 if findings else 0


async def _stay(backend: Backend, screen: Screen) -> None:
    """Until a signal, which is how this is meant to end."""
    screen.title("It stays up; Ctrl-C ends it. In another terminal:")
    for command in backend.look_around():
        screen.say(command)
    with contextlib.suppress(asyncio.CancelledError):
        await backend.death()


@contextlib.contextmanager
def _stop_signals() -> Iterator[None]:
    """The first stop signal cancels the story, a second one ends the process the hard way."""
    loop, story = asyncio.get_running_loop(), asyncio.current_task()

    def remove() -> None:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)

    def stop() -> None:
        remove()
        if story:
            story.cancel()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        remove()
