"""``make demo``: DeepSeek-V3.1 on two of four H20 nodes, served and replaced under load.

Ends with 0 when nothing was lost, 1 when something was or went wrong, 130 when a signal stopped it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv4Network
from pathlib import Path

from moe_operator.runtime.kube import ApiError
from moe_operator.sandbox.loopback import DEFAULT_RANGE, NoAddressLeft
from moe_operator.sandbox.state_dir import StateUnusable
from moe_operator.sandbox.taken_port import PortTaken
from rich.console import Console

from e2e.checkpoints import build

from . import report
from .backend import Backend, Supplies
from .chat import NoAnswer
from .follow import NotReached
from .manifest import patched
from .replace_revision import Told, Wish, replace_revision
from .sandbox_backend import ROOT, sandbox_backend
from .screen import Screen

EXAMPLE = ROOT / "manifests/examples/deepseek-v3.1-2x8-h20.yaml"
PATCH = ROOT / "manifests/demo/deepseek-v3.1-2x8-h20.patch.yaml"
CHECKPOINT = "deepseek-v3.1"
NEXT_IMAGE = "moe-operator/engine-stub:0.33.1"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = 130
NEXT = (
    "make demo KEEP=1                        the same, and the cluster stays up to look around",
    ".venv/bin/moe-operator sandbox --help   your own MoEDeployments on this machine",
    "make test                               everything that is checked before a change goes in",
    "docs/getting-started.md                 what you have just seen, step by step",
)


def demo_wish(clients: int, requests: int) -> Wish:
    """The example with the stub and the synthetic checkpoint in it."""
    return Wish(patched(EXAMPLE, PATCH), NEXT_IMAGE, clients, requests)


def run(wish: Wish, console: Console, *, keep: bool) -> int:
    """Tell the story, then leave the cluster up until Ctrl-C when ``keep``; the exit code."""
    try:
        return asyncio.run(_run(wish, Screen(console), keep))
    except asyncio.CancelledError:
        console.print("\nStopped; nothing is left behind.")
        return STOPPED
    except (NoAddressLeft, PortTaken, StateUnusable) as error:
        console.print(f"Error: {error}", markup=False)
        return 1


async def _run(wish: Wish, screen: Screen, keep: bool) -> int:
    with _stop_signals():
        told = Told()
        async with demo_cluster(wish) as backend:
            told.stopwatch.part("cluster made")
            code = await tell(backend, screen, wish, told)
            if keep:
                await _stay(backend, screen)
            return code


@contextlib.asynccontextmanager
async def demo_cluster(wish: Wish, loopback: IPv4Network = DEFAULT_RANGE) -> AsyncIterator[Backend]:
    """A sandbox with what the wish needs."""
    images = (wish.deployment["spec"]["engine"]["image"], wish.next_image)
    with tempfile.TemporaryDirectory(prefix="moe-demo-") as directory:
        await asyncio.to_thread(build, CHECKPOINT, Path(directory, CHECKPOINT))
        async with sandbox_backend(Supplies(images, Path(directory)), loopback) as backend:
            yield backend


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
    screen.title("Next")
    for command in NEXT:
        screen.say(command)
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
