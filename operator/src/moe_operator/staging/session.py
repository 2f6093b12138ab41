"""One run of a stager, from its first signal handler to its exit code.

Invariant: whatever happens, the run ends with a code of :class:`StageExit` (or 128 + signal), the
termination log says why, and the port is closed.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from moe_operator.api.manifest import StageExit
from moe_operator.staging.failure import StageError, Stopped, termination_message
from moe_operator.staging.listen import TEXT, Answer, Routes, listening
from moe_operator.staging.pace import Backoff, Bucket, Gate
from moe_operator.staging.progress import Progress
from moe_operator.staging.report import log, reported
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store
from moe_operator.staging.transfer import CHUNK, Link

MIN_CHUNK = 4 << 10


@dataclass(frozen=True, slots=True)
class Session:
    """What one run shares. ``listen`` and ``termination_log`` None = neither; ``shown`` = report progress."""

    listen: str | None = None
    termination_log: Path | None = None
    shown: bool = True
    scheme: str = ""
    store: Store | None = None
    routes: Routes = field(default_factory=dict)
    stop: Stop = field(default_factory=Stop)
    progress: Progress = field(default_factory=Progress)

    def link(self, threads: int, *, bandwidth: int, retries: int, retry_delay: float, journal: int) -> Link:
        """What the transfers of this run share. Chunks stay small against every interval they must obey."""
        chunk = min(CHUNK, journal // 4, bandwidth // 8 or CHUNK)
        return Link(
            self.stop,
            self.progress,
            Gate(threads),
            Bucket(bandwidth),
            Backoff(first=retry_delay),
            retries,
            chunk=max(chunk, MIN_CHUNK),
        )

    def run(self, act: Callable[[], None]) -> int:
        """Run ``act`` and return the exit code."""
        self.stop.on_signals()
        error: StageError | None = None
        with ExitStack() as around:
            try:
                self._open_port(around)
                if self.shown:
                    around.enter_context(reported(self.progress))
                act()
            except Stopped:
                number = self.stop.signal or signal.SIGTERM
                log("stopped", signal=signal.Signals(number).name)
                return 128 + number
            except StageError as fault:
                error = fault
            except Exception as fault:  # whatever it is, the operator must hear of it
                traceback.print_exc(file=sys.stderr)
                error = StageError(
                    StageExit.BUG,
                    f"{type(fault).__name__}: {fault}",
                    hint="a defect of moestage: report it with the container's log",
                )
            if error is not None:
                self.progress.fail(error.exit.name, error.message)
        self._leave_word(error)
        return int(StageExit.OK if error is None else error.exit)

    def port_routes(self) -> Routes:
        """What every port of a stager answers."""
        return {
            "/healthz": lambda: Answer(b'{"status":"ok"}'),
            "/progress": lambda: Answer(self.progress.snapshot().model_dump_json(by_alias=True).encode()),
            "/metrics": self._metrics,
            **self.routes,
        }

    def _metrics(self) -> Answer:
        # Imported when somebody asks: every engine waits for its stager, and most stagers have nothing to do.
        from moe_operator.staging.metrics import StageCollector, exposition

        return Answer(exposition(StageCollector(self.progress, self.scheme, self.store)), TEXT)

    def say_listening(self, address: str) -> None:
        """Tell where the port is: with port 0 nobody else knows."""
        log("listening", address=address)

    def _open_port(self, around: ExitStack) -> None:
        if self.listen is not None:
            self.say_listening(around.enter_context(listening(self.listen, self.port_routes())))

    def _leave_word(self, error: StageError | None) -> None:
        word = termination_message(error, self.progress.snapshot())
        if error is not None:
            print(word.decode(), file=sys.stderr, flush=True)
        if self.termination_log is None:
            return
        try:
            self.termination_log.write_bytes(word)
        except OSError as fault:
            log("termination-log", path=self.termination_log, problem=fault.strerror)
