"""The operator as a process of its own: started again whenever it ends, as its Deployment would do."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from moe_operator.sandbox.images import bin_directory
from moe_operator.sandbox.pod_process import Process, spawn
from moe_operator.sandbox.reaper import Reaper

RESTART_SECONDS = 0.5
RESTART_MAX_SECONDS = 10.0
STEADY_SECONDS = 30.0  # a run this long makes the next restart prompt again
STOP_GRACE_SECONDS = 5.0


class OperatorProcess:
    """``moe-operator run`` against the sandbox's API; ``say`` gets a line when it ended."""

    def __init__(
        self, arguments: Sequence[str], *, cwd: Path, log: Path, reaper: Reaper, say: Callable[[str], None]
    ) -> None:
        self._argv = [str(bin_directory() / "moe-operator"), "run", *arguments]
        self._cwd = cwd
        self._log = log
        self._reaper = reaper
        self._say = say
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        """Its process; LookupError while it does not run."""
        if self._process is None or not self._process.running:
            raise LookupError("the operator does not run")
        return self._process.pid

    def kill(self) -> int:
        """``kill -9``; who it was."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        return pid

    async def run(self) -> None:
        """Keep it running; never returns."""
        delay = RESTART_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            self._process = await spawn(
                self._argv,
                env=dict(os.environ),
                cwd=self._cwd,
                log=self._log,
                reaper=self._reaper,
                marker="operator",
            )
            code = await self._process.wait()
            if loop.time() - begun >= STEADY_SECONDS:
                delay = RESTART_SECONDS
            self._say(f"operator ended with code {code}, starts again in {delay:g}s (log: {self._log})")
            await asyncio.sleep(delay)
            delay = min(delay * 2, RESTART_MAX_SECONDS)

    async def stop(self) -> None:
        """End it; :meth:`run` must have been cancelled before."""
        if self._process is not None:
            await self._process.stop(STOP_GRACE_SECONDS)
