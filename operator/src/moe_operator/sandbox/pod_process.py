"""One process of the sandbox: its group, its log, its end.

Every process leads a group of its own, dies with the sandbox and is known to the reaper. When it ends,
whatever it started ends too, as a container's PID namespace does: the group is killed, and so is any
process that left the group but still carries the container's marker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from moe_operator.sandbox import launch
from moe_operator.sandbox.reaper import SWEEP_SECONDS, Reaper, kill_group, kill_marked

SANDBOX_MARKER = "MOE_SANDBOX_ID"
CONTAINER_MARKER = "MOE_SANDBOX_CONTAINER"
MAX_SWEEPS = 500  # ten seconds; what still lives then is stuck in the kernel


class CannotStart(Exception):
    """The command could not be executed; the text is the operating system's."""


class Process:
    """A running child."""

    def __init__(self, child: subprocess.Popen[bytes], marker: str, reaper: Reaper) -> None:
        self.pid = child.pid
        self._child = child
        self._marker = marker
        self._reaper = reaper
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._descriptor = os.pidfd_open(child.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._collect)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.done()

    async def wait(self) -> int:
        """Exit code as a container runtime reports it: 128 + n when signal n ended it."""
        return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        """Send a signal to the main process, as a runtime does to PID 1."""
        if self.running:
            self._child.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the whole group."""
        if self.running:
            kill_group(self.pid)

    async def stop(self, grace: float) -> int:
        """SIGTERM, then SIGKILL after ``grace`` seconds; the exit code."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                return await self.wait()
        self.kill()
        return await self.wait()

    def _collect(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._child.wait()
        kill_group(self.pid)
        self._sweep(MAX_SWEEPS)

    def _sweep(self, left: int) -> None:
        """Kill what carries the marker until a sweep finds none: it may have forked during the last."""
        if left and kill_marked(self._marker):
            asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep, left - 1)
            return
        self._reaper.discard(self.pid)
        code = self._child.returncode
        self._ended.set_result(code if code >= 0 else 128 - code)


async def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    reaper: Reaper,
    marker: str,
) -> Process:
    """Start ``argv`` with exactly ``env`` (and the markers); output is appended to ``log``.

    ``marker`` names the container whose processes end together. Raises CannotStart when there is no such
    command. Must be called on the sandbox's main thread: PDEATHSIG is tied to the thread that forks.
    """
    name, _, sandbox = reaper.marker.partition("=")
    marker = f"{sandbox}/{marker}"  # another sandbox has an operator and an "engine" too
    environment = {**env, name: sandbox, CONTAINER_MARKER: marker}
    heard, report = os.pipe()
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: ASYNC220 - returns at once, and asyncio's own needs a watcher thread
            [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), str(report), *argv],
            env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            process_group=0, pass_fds=(report,),
        )  # fmt: skip
    os.close(report)
    reaper.add(child.pid)
    process = Process(child, f"{CONTAINER_MARKER}={marker}", reaper)
    try:
        complaint = await _read_all(heard)
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if complaint:
        await process.wait()
        raise CannotStart(complaint)
    return process


async def _read_all(descriptor: int) -> str:
    """What is written to a pipe until its last writer is gone; the pipe is closed then."""
    loop = asyncio.get_running_loop()
    received, ended = bytearray(), loop.create_future()

    def read() -> None:
        part = os.read(descriptor, 4096)
        received.extend(part)
        if not part and not ended.done():
            ended.set_result(None)

    loop.add_reader(descriptor, read)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return received.decode(errors="replace")
