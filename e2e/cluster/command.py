"""Other programs: run them, and say well what went wrong when they fail."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NICE = ("nice", "-n", "19")  # a long build must leave the machine usable
# A long job must not outlive us: kind, for one, removes the cluster of that name when it fails at last.
NOT_AFTER_US = ("setpriv", "--pdeathsig", "TERM")
_TAIL_LINES = 20


class CommandFailed(Exception):
    """A program ended with an error, or could not be started."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.code == 0


def run(
    *argv: str | Path,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
) -> str:
    """Run to the end and return standard output; raises CommandFailed with the last lines of the error."""
    outcome = attempt(*argv, stdin=stdin, env=env, cwd=cwd, timeout=timeout)
    if not outcome.ok:
        raise CommandFailed(_failure(argv, outcome.code, outcome.err or outcome.out))
    return outcome.out


def attempt(
    *argv: str | Path,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
) -> Outcome:
    """Run to the end whatever the exit code; a program that is absent or too slow is an outcome too."""
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            env=_env(env),
            cwd=cwd,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        return Outcome(127, "", f"{argv[0]}: not found")
    except subprocess.TimeoutExpired:
        return Outcome(124, "", f"{argv[0]}: no answer within {timeout:.0f} s")
    return Outcome(done.returncode, done.stdout, done.stderr)


def run_logged(
    *argv: str | Path, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> None:
    """Run a long job nicely with its output in a file; raises CommandFailed with the file's last lines."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as sink:
        code = subprocess.run(
            [*NOT_AFTER_US, *NICE, *argv], stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=_env(env), cwd=cwd, check=False,
        ).returncode  # fmt: skip
    if code:
        raise CommandFailed(_failure(argv, code, log.read_text(errors="replace")) + f"\n(all of it: {log})")


def pipe(first: tuple[str | Path, ...], second: tuple[str | Path, ...]) -> str:
    """``first | second``; returns what second printed, raises CommandFailed when either fails."""
    with (
        subprocess.Popen(first, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as source,
        subprocess.Popen(
            second, stdin=source.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as sink,
    ):
        assert source.stdout and source.stderr
        source.stdout.close()  # so that the source sees it when the sink ends early
        out, err = sink.communicate()
        source_err = source.stderr.read().decode(errors="replace")
    for argv, code, message in ((second, sink.returncode, err), (first, source.returncode, source_err)):
        if code:
            raise CommandFailed(_failure(argv, code, message))
    return out


def _env(extra: Mapping[str, str] | None) -> dict[str, str] | None:
    return {**os.environ, **extra} if extra else None


def _failure(argv: tuple[str | Path, ...], code: int, output: str) -> str:
    tail = "\n".join(output.strip().splitlines()[-_TAIL_LINES:])
    return f"{' '.join(str(part) for part in argv)[:300]} ended with {code}:\n{tail}"
