"""However a sandbox ends, nothing of it is left; and two of them do not meet."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from moe_operator.runtime.kube import POD
from moe_operator.sandbox import state_dir
from moe_operator.sandbox.run import Sandbox, SandboxConfig
from moe_operator.sandbox.state_dir import StateUnusable, open_state_dir

from tests.sandbox.conftest import IMAGES, QUICK, RANGE
from tests.sandbox.objects import container, pod
from tests.sandbox.waiting import ready, until, until_up

FAMILY = "(setsid sleep 1000 &) ; (sleep 1000 &) ; env -i sleep 1000 & echo up; sleep 1000"
"""A process with a child that left its session, an orphan, and a child with an empty environment."""


def cmdlines(directory: Path) -> list[str]:
    """Command lines of all processes that work below a directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if directory in (entry / "cwd").resolve(strict=True).parents:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
        except OSError:
            continue
    return found


class Outside:
    """A sandbox in a process of its own, seen from outside."""

    def __init__(self, process: asyncio.subprocess.Process, state: Path) -> None:
        self.process = process
        self.state = state

    async def started(self) -> None:
        """Its pod's whole family runs."""
        await until(lambda: len(cmdlines(self.state)) >= 5, f"the family of {self.state} runs")

    async def vanished(self) -> None:
        """Nothing of it runs, and its state directory is free."""
        await until(lambda: cmdlines(self.state) == [], "its processes are gone")
        await until(lambda: _free(self.state), "its lock is free")


def _free(state: Path) -> bool:
    try:
        open_state_dir(state, temporary=False).close()
    except StateUnusable:
        return False
    return True


@asynccontextmanager
async def outside(tmp_path: Path, name: str) -> AsyncIterator[Outside]:
    """Start ``moe-operator sandbox`` with a pod that has a family."""
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(pod("family", container(script=FAMILY))))
    state = tmp_path / name
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from moe_operator.cli.operator import main; main()",
        "sandbox", "-f", str(file), "--image", "sh=sh", "--state-dir", str(state),
        "--loopback-range", str(RANGE),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield Outside(process, state)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 0), (signal.SIGTERM, 0)])
async def test_no_process_outlives_its_sandbox(tmp_path: Path, number: int, code: int) -> None:
    async with outside(tmp_path, "one") as sandbox:
        await sandbox.started()
        sandbox.process.send_signal(number)
        assert await sandbox.process.wait() == code
        await sandbox.vanished()


async def test_a_crash_of_everything_is_cleaned_up_at_the_next_start(tmp_path: Path) -> None:
    """Also the reaper is killed: what then still runs is found by the next sandbox in the directory."""
    state = tmp_path / "one"
    async with outside(tmp_path, "one") as sandbox:
        await sandbox.started()
        marker = json.loads((state / "sandbox.json").read_text())["marker"]
        (reaper,) = (p for p in children(sandbox.process.pid) if marker in _cmdline(p))
        os.kill(reaper, signal.SIGKILL)
        sandbox.process.kill()
        await sandbox.process.wait()
    await until(lambda: len(cmdlines(state)) < 5, "the children died with the sandbox")
    left = [line for line in cmdlines(state) if line]
    assert left, "the grandchildren had nobody to end them"
    opened = open_state_dir(state, temporary=False)
    try:
        assert not (state / "pods").exists()
        # Only what shed its environment cannot be told apart from a stranger.
        assert len(alive(state)) <= 1
    finally:
        opened.close()
        for pid in alive(state):
            os.kill(pid, signal.SIGKILL)


def alive(directory: Path) -> list[int]:
    """Processes that worked below a directory that is gone or not."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            where = str((entry / "cwd").readlink()).removesuffix(" (deleted)")
        except OSError:
            continue
        if where.startswith(f"{directory}/"):
            found.append(int(entry.name))
    return found


def children(parent: int) -> list[int]:
    """Direct children of a process."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in listed.split()]


def _cmdline(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


async def test_two_sandboxes_run_side_by_side(tmp_path: Path) -> None:
    def config(name: str) -> SandboxConfig:
        return SandboxConfig(
            nodes="h20-1x8", images=IMAGES, timing=QUICK, operator=False, loopback=RANGE,
            state_dir=tmp_path / name,
        )  # fmt: skip

    async with Sandbox(config("one")) as one, Sandbox(config("two")) as two:
        assert one.host != two.host
        for sandbox in (one, two):
            await sandbox.kube.create(pod("same", container(script="sleep 1000"), gpus=8))
        await until(lambda: one.running() and two.running(), "both pods run")
        assert one.pid("same", "main") != two.pid("same", "main")
        await until_ready(one)
        one.kill("same", "main")
        await until(lambda: not one.running(), "the first pod ended")
        await until_ready(two)


async def until_ready(sandbox: Sandbox) -> None:
    async with asyncio.timeout(20):
        while not ready(await sandbox.kube.get(POD, "default", "same")):
            await asyncio.sleep(0.02)


async def test_a_state_directory_in_use_or_not_ours_is_refused(tmp_path: Path) -> None:
    held = open_state_dir(tmp_path / "state", temporary=False)
    try:
        with pytest.raises(StateUnusable, match=rf"in use by the sandbox of process {os.getpid()}"):
            open_state_dir(tmp_path / "state", temporary=False)
    finally:
        held.close()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    with pytest.raises(StateUnusable, match="no sandbox made"):
        open_state_dir(foreign, temporary=False)
    assert [p.name for p in foreign.iterdir()] == ["thesis.tex"]


def test_what_is_left_of_a_removal_that_was_cut_off_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_state_dir(tmp_path / "state", temporary=True)
    (opened.path / "nodes").mkdir()

    def cut_off(path: Path) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(state_dir.shutil, "rmtree", cut_off)
        with pytest.raises(OSError, match="not empty"):
            opened.close()
    again = open_state_dir(tmp_path / "state", temporary=True)
    again.close()
    assert not again.path.exists()


async def test_a_temporary_state_directory_goes_and_a_named_one_keeps_the_weights(tmp_path: Path) -> None:
    def config(state: Path | None) -> SandboxConfig:
        return SandboxConfig(nodes="h20-1x8", operator=False, loopback=RANGE, state_dir=state)

    async with Sandbox(config(None)) as sandbox:
        temporary = sandbox.state.path
        assert (temporary / "kubeconfig.yaml").exists()
    assert not temporary.exists()
    named = tmp_path / "named"
    store = named / "nodes/h20-0/var/lib/moe-operator/store"
    async with Sandbox(config(named)):
        first = (store / "STORE_ID").read_text()
        (store / "weights").touch()
    async with Sandbox(config(named)):
        assert (store / "STORE_ID").read_text() == first
        assert (store / "weights").exists()


async def test_a_taken_api_port_is_a_clear_error(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from moe_operator.cli.operator import main; main()",
        "sandbox", "--api-port", str(port), "--loopback-range", str(RANGE),
        "--state-dir", str(tmp_path / "s"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    server.close()
    await server.wait_closed()
    assert process.returncode == 1
    assert f"(pid {os.getpid()}), listening on 0.0.0.0:{port}" in output.decode()
    assert "Traceback" not in output.decode()


async def test_the_api_answers_to_the_kubeconfig_and_to_nobody_else(sandbox: Sandbox) -> None:
    assert sandbox.kubeconfig.stat().st_mode & 0o077 == 0
    server = yaml.safe_load(sandbox.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    async with httpx.AsyncClient() as client:
        assert len((await client.get(f"{server}/api/v1/nodes")).json()["items"]) == 4
        assert (await client.get(f"{sandbox.api_url}/api/v1/nodes")).status_code == 401


async def test_logs_are_served_by_the_api(sandbox: Sandbox) -> None:
    await sandbox.kube.create(pod("speaker", container(script="echo one; echo two; sleep 1000")))
    await until_up(sandbox, "speaker", said="one\ntwo\n")
    headers = {"Authorization": f"Bearer {sandbox.tokens.admin}"}
    path = "/api/v1/namespaces/default/pods/speaker/log"
    async with httpx.AsyncClient(base_url=sandbox.api_url, headers=headers) as client:
        assert (await client.get(path)).text == "one\ntwo\n"
        assert (await client.get(path, params={"tailLines": "1"})).text == "two\n"
        async with client.stream("GET", path, params={"follow": "true"}) as followed:
            received = ""
            async for text in followed.aiter_text():
                received += text
                if received == "one\ntwo\n":
                    sandbox.kill("speaker", "main")
            assert received == "one\ntwo\n"
