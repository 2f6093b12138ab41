import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from e2e.cluster.command import CommandFailed, attempt, pipe, run
from e2e.cluster.progress import Progress, elapsed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 m 00 s"), (211.9, "3 m 31 s"), (3600, "60 m 00 s")],
)
def test_elapsed_time_reads_well(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text


def test_a_long_step_says_that_it_still_runs_and_how_long_it_took() -> None:
    lines: list[str] = []
    ticked = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        ticked.set()

    seconds = itertools.count(0, 40)
    with Progress(write, lambda: float(next(seconds)), still_running=0.001).step("building kubelet"):
        assert ticked.wait(10)
    assert lines[0] == "  building kubelet: 40.0 s so far"
    assert lines[-1].startswith("  building kubelet: done in ")


def test_only_the_innermost_step_says_that_it_still_runs() -> None:
    lines: list[str] = []
    inner_ticked = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        if line.startswith("  inner:"):
            inner_ticked.set()

    progress = Progress(write, still_running=0.001)
    with progress.step("outer"), progress.step("inner"):
        for _ in range(2):  # the outer step may have been about to speak when the inner one began
            inner_ticked.clear()
            lines.clear()
            assert inner_ticked.wait(10)
        assert {line.split(":")[0] for line in lines} == {"  inner"}


def test_a_failed_step_says_so_and_lets_the_failure_through() -> None:
    lines: list[str] = []
    with pytest.raises(CommandFailed, match="no luck"), Progress(lines.append).step("pulling"):
        raise CommandFailed("no luck")
    assert [line.rpartition(" after ")[0] for line in lines] == ["  pulling: failed"]


def test_a_failing_program_is_quoted() -> None:
    with pytest.raises(CommandFailed, match=r"(?s)sh -c .* ended with 3:\nthe reason"):
        run("sh", "-c", "echo the reason >&2; exit 3")


def test_an_absent_or_slow_program_is_an_outcome() -> None:
    assert attempt("no-such-program-here").code == 127
    assert attempt("sleep", "30", timeout=0.05).code == 124


def test_a_pipe_passes_bytes_and_fails_with_either_side() -> None:
    assert pipe(("printf", "abc"), ("wc", "-c")).strip() == "3"
    with pytest.raises(CommandFailed, match="first broke"):
        pipe(("sh", "-c", "echo first broke >&2; exit 1"), ("cat",))
    with pytest.raises(CommandFailed, match="second broke"):
        pipe(("printf", "abc"), ("sh", "-c", "echo second broke >&2; exit 1"))


def test_a_long_job_ends_with_the_program_that_ran_it(tmp_path: Path) -> None:
    """Killed with -9, so that nothing of ours can clean up."""
    log = tmp_path / "job.log"
    code = (
        "import pathlib, sys; from e2e.cluster.command import run_logged; "
        "run_logged('sh', '-c', 'echo $$; exec sleep 600', log=pathlib.Path(sys.argv[1]))"
    )
    repository = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code, log], cwd=repository) as runner:
        job = int(wait_for_text(log))
        runner.kill()
    deadline = time.monotonic() + 20
    while is_alive(job) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(job)


def wait_for_text(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, "the job never started"
        time.sleep(0.02)
    return path.read_text()


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
