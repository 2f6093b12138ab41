"""Run one function over many items in threads; the first failure stops the rest.

Invariant: when this returns or raises, no thread is left running and every interrupted one has
written down what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from moe_operator.staging.failure import Stopped
from moe_operator.staging.stop import Stop

T = TypeVar("T")


def for_each(items: Iterable[T], act: Callable[[T], None], threads: int, stop: Stop) -> None:
    """``act`` on every item, at most ``threads`` at once. Raises what the first failing item raised."""
    with ThreadPoolExecutor(threads, thread_name_prefix="stage") as pool:
        futures = [pool.submit(act, item) for item in items]
        done, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        failed = [fault for future in done if (fault := future.exception()) is not None]
        if failed:
            for future in waiting:
                future.cancel()
            stop.trip()
    causes = [fault for fault in failed if not isinstance(fault, Stopped)]
    if failed:
        raise causes[0] if causes else failed[0]
