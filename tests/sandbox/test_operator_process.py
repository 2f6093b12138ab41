"""The operator as a child of the sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from moe_operator.sandbox.operator_process import OperatorProcess
from moe_operator.sandbox.reaper import Reaper

from tests.sandbox.waiting import until


async def test_an_operator_that_ends_is_said_and_started_again(tmp_path: Path) -> None:
    """The real command with an argument that it refuses ends by itself with code 2."""
    said: list[str] = []
    reaper = Reaper(f"MOE_SANDBOX_ID={tmp_path}")
    operator = OperatorProcess(
        ["--workers", "0"],
        cwd=tmp_path, log=tmp_path / "log", reaper=reaper, say=said.append,
    )  # fmt: skip
    with pytest.raises(LookupError):
        operator.kill()
    running = asyncio.create_task(operator.run())
    try:
        await until(lambda: len(said) == 2, "it ended twice")
    finally:
        running.cancel()
        await asyncio.wait({running})
        await operator.stop()
        reaper.close()
    assert said[0] == f"operator ended with code 2, starts again in 0.5s (log: {tmp_path / 'log'})"
    assert "starts again in 1s" in said[1]
    assert "Invalid value for '--workers'" in (tmp_path / "log").read_text()
