"""The stager as a process: real signals, real exit codes, without paying for its imports every time.

A small server imports the stager once and forks a child per run; the child is the process a pod would
have. Run as a script this file is that server: one JSON request per line in, one process id per line out,
and the child's exit code in its directory.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_operator.api.manifest import StageExit

DEADLINE = 180.0  # something hangs; how fast anything is is never judged by it
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
PRELOADED = (
    "cli", "session", "metrics", "pull", "resolve", "manifest_file", "web", "directory", "hub", "serve",
    "collect", "scrub", "slice", "object_store", "oci",
)  # fmt: skip


def until(holds: Callable[[], Any], what: str) -> Any:
    """Poll until ``holds()`` is true."""
    end = time.monotonic() + DEADLINE
    while not (value := holds()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.005)
    return value


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "moe_operator.staging", *map(str, arguments)]


@dataclass(frozen=True)
class Ended:
    code: int  # negative for the signal that killed it
    out: str
    err: str

    @property
    def word(self) -> dict[str, Any]:
        """The termination message, which also ends standard error."""
        last: dict[str, Any] = json.loads(self.err.strip().splitlines()[-1])
        return last

    @property
    def exit(self) -> StageExit:
        return StageExit(self.code)


@dataclass(frozen=True)
class Run:
    pid: int
    directory: Path

    def signal(self, number: int) -> int:
        """Send a signal and return the exit code."""
        os.kill(self.pid, number)
        return self.ended().code

    def ended(self) -> Ended:
        """Wait for its end."""
        code = until((self.directory / "code").exists, "the stager ends")
        code = int((self.directory / "code").read_text())
        return Ended(code, (self.directory / "out").read_text(), (self.directory / "err").read_text())

    @property
    def is_over(self) -> bool:
        return (self.directory / "code").exists()

    def address(self) -> str:
        """Where a run with ``--listen …:0`` answers."""

        def found() -> str:
            lines = (self.directory / "err").read_text().splitlines()
            events = [json.loads(line) for line in lines if line.endswith("}")]
            return next((str(e["address"]) for e in events if e.get("event") == "listening"), "")

        return str(until(found, "it listens"))


class Stager:
    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    @contextmanager
    def running(self, *arguments: object, **environment: str) -> Iterator[Run]:
        assert self._server.stdin is not None and self._server.stdout is not None
        with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
            for name in ("out", "err"):
                (Path(directory) / name).touch()
            request = {"arguments": list(map(str, arguments)), "environment": environment, "at": directory}
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            run = Run(int(self._server.stdout.readline()), Path(directory))
            try:
                yield run
            finally:
                if not (run.directory / "code").exists():
                    os.kill(run.pid, signal.SIGKILL)
                run.ended()

    def run(self, *arguments: object, **environment: str) -> Ended:
        with self.running(*arguments, **environment) as run:
            return run.ended()


@contextmanager
def stager() -> Iterator[Stager]:
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        yield Stager(server)


def serve() -> None:
    for module in PRELOADED:
        importlib.import_module(f"moe_operator.staging.{module}")
    children: dict[int, Path] = {}

    def reap(*_: object) -> None:
        with suppress(
            ChildProcessError
        ):  # none left; a second signal may have come in the middle of the first
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                finished = children.pop(ended[0]) / "code.new"
                with suppress(FileNotFoundError):  # its test gave up and cleared away
                    finished.write_text(str(os.waitstatus_to_exitcode(ended[1])))
                    finished.rename(finished.with_name("code"))

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if (pid := os.fork()) == 0:
            _child(request)
        children[pid] = Path(request["at"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(pid, flush=True)
    for pid in list(children):
        os.kill(pid, signal.SIGKILL)


def _child(request: dict[str, Any]) -> None:
    from moe_operator.staging import cli

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.environ.update(request["environment"])
    for descriptor, name in ((0, os.devnull), (1, f"{request['at']}/out"), (2, f"{request['at']}/err")):
        os.dup2(os.open(name, os.O_RDWR), descriptor)
    code = 70
    try:
        cli.main(request["arguments"], prog_name="moestage")
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
