"""What kopf asks of the process it runs in."""

from __future__ import annotations

import asyncio
import gc
import getpass
import random
from pathlib import Path
from typing import NoReturn

import pytest
from moe_operator.runtime import kopf_app
from moe_operator.runtime.kopf_app import Watches
from moe_operator.runtime.metrics import OperatorMetrics
from moe_operator.runtime.queue import WorkQueue
from moe_operator.runtime.wakeups import Key, WakeUps
from moe_operator.sandbox.rest import RestServer

from tests.runtime.world import memory_api


def _nameless() -> NoReturn:
    raise OSError("No username set in the environment")


async def test_watches_start_for_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's user is a number that no passwd file knows."""
    monkeypatch.setattr(getpass, "getuser", _nameless)
    stop, started = asyncio.Event(), asyncio.Event()
    stop.set()
    metrics, rng = OperatorMetrics("test"), random.Random(1)
    queue: WorkQueue[Key] = WorkQueue(asyncio.get_running_loop(), rng, metrics)
    watches = Watches(WakeUps(queue, rng), metrics, kubeconfig="/nonexistent")
    async with asyncio.timeout(30):
        await watches.run(stop, after_start=started.set)
    assert started.is_set()


def test_a_request_is_tried_again_for_as_long_as_we_watch_and_no_longer() -> None:
    stop = asyncio.Event()
    waits = iter(kopf_app._Backoffs(stop))
    assert [next(waits) for _ in range(100)][-1] == 30
    stop.set()
    with pytest.raises(asyncio.CancelledError):
        next(waits)


@pytest.mark.filterwarnings("ignore:Unclosed client session:ResourceWarning")  # nobody is left to close it
@pytest.mark.filterwarnings("ignore:Unclosed connector:ResourceWarning")
async def test_a_watch_that_hides_its_cancellation_ends_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where all tasks are cancelled at once, kopf takes that of a request for a pause of its watch."""
    stop, started = asyncio.Event(), asyncio.Event()
    metrics, rng = OperatorMetrics("test"), random.Random(1)
    queue: WorkQueue[Key] = WorkQueue(asyncio.get_running_loop(), rng, metrics)
    others = asyncio.all_tasks()
    async with asyncio.timeout(30), RestServer(memory_api(), admin_token="ours") as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        watches = Watches(WakeUps(queue, rng), metrics, kubeconfig=str(tmp_path / "kubeconfig"))
        running = asyncio.create_task(watches.run(stop, after_start=started.set))
        while not any("pause-waiter" in task.get_name() for task in asyncio.all_tasks()):
            await asyncio.sleep(0.01)
        await server.close()
        while "will retry" not in caplog.text:
            await asyncio.sleep(0.01)
        left = asyncio.all_tasks() - others
        assert running in left
        for task in left:
            task.cancel()
        _, hanging = await asyncio.wait(left, timeout=5)
    assert hanging == set()
    gc.collect()
