"""What kopf asks of the process it runs in."""

from __future__ import annotations

import asyncio
import getpass
import random
from typing import NoReturn

import pytest
from moe_operator.runtime import kopf_app
from moe_operator.runtime.kopf_app import Watches
from moe_operator.runtime.metrics import OperatorMetrics
from moe_operator.runtime.queue import WorkQueue
from moe_operator.runtime.wakeups import Key, WakeUps


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
    """One that hides its cancellation kept a process from ending."""
    stop = asyncio.Event()
    waits = iter(kopf_app._Backoffs(stop))
    assert [next(waits) for _ in range(100)][-1] == 30
    stop.set()
    assert list(waits) == []
