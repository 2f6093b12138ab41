from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_operator.runtime.queue import SPACING_SECONDS, WorkQueue, backoff_seconds

from tests.runtime.virtual_time import VirtualTime, settle


@dataclass
class Seen:
    depths: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    retries: int = 0

    def depth(self, queued: int) -> None:
        self.depths.append(queued)

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def retried(self) -> None:
        self.retries += 1


@dataclass
class Bench:
    time: VirtualTime = field(default_factory=VirtualTime)
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        self.queue: WorkQueue[str] = WorkQueue(self.time, random.Random(7), self.seen)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_key_added_many_times_is_handed_out_once(bench: Bench) -> None:
    for _ in range(5):
        bench.queue.add("a")
    assert await bench.queue.take() == "a"
    assert len(bench.queue) == 0


async def test_keys_come_in_the_order_they_fell_due(bench: Bench) -> None:
    for key in "bca":
        bench.queue.add(key)
    assert [await bench.queue.take() for _ in range(3)] == ["b", "c", "a"]


async def test_a_key_added_during_its_pass_is_handed_out_again_only_after_it(bench: Bench) -> None:
    bench.queue.add("a")
    await bench.queue.take()
    bench.queue.add("a")
    assert len(bench.queue) == 0
    bench.queue.done("a")
    assert await bench.queue.take() == "a"


async def test_news_in_a_burst_is_taken_together(bench: Bench) -> None:
    bench.queue.add_soon("a")
    assert await bench.queue.take() == "a", "the first is taken at once"
    bench.queue.done("a")
    await bench.time.advance(0.05)
    for _ in range(10):
        bench.queue.add_soon("a")
    bench.queue.add_soon("b")
    assert await bench.queue.take() == "b", "others do not wait for it"
    bench.queue.done("b")
    await bench.time.advance(SPACING_SECONDS - 0.06)
    assert len(bench.queue) == 0
    await bench.time.advance(0.02)
    assert await bench.queue.take() == "a"


async def test_news_in_a_pass_is_taken_when_that_is_over_and_long_enough_ago(bench: Bench) -> None:
    bench.queue.add("a")
    await bench.queue.take()
    bench.queue.add_soon("a")
    await bench.time.advance(SPACING_SECONDS + 0.01)
    assert len(bench.queue) == 0
    bench.queue.done("a")
    assert await bench.queue.take() == "a"


async def test_what_cannot_wait_does_not(bench: Bench) -> None:
    bench.queue.add("a")
    await bench.queue.take()
    bench.queue.done("a")
    bench.queue.add_soon("a")
    assert len(bench.queue) == 0
    bench.queue.add("a")
    assert await bench.queue.take() == "a"
    assert bench.time.pending == []


async def test_only_the_pass_in_flight_is_overtaken(bench: Bench) -> None:
    bench.queue.overtake("a")  # nobody to tell: an add like any other
    await bench.queue.take()
    told = asyncio.create_task(bench.queue.overtaken("a"))
    bench.queue.add("a")
    await settle()
    assert not told.done()
    bench.queue.overtake("a")
    await told
    bench.queue.done("a")
    assert await bench.queue.take() == "a"
    again = asyncio.create_task(bench.queue.overtaken("a"))
    await settle()
    assert not again.done(), "the next pass has seen what overtook the one before"
    again.cancel()


async def test_the_earlier_delayed_add_wins(bench: Bench) -> None:
    bench.queue.add_after("a", 10)
    bench.queue.add_after("a", 3)
    bench.queue.add_after("a", 7)
    assert bench.time.pending == [3]
    await bench.time.advance(2.9)
    assert len(bench.queue) == 0
    await bench.time.advance(0.1)
    assert await bench.queue.take() == "a"


async def test_a_pass_supersedes_the_delayed_add_that_was_pending_when_it_began(bench: Bench) -> None:
    bench.queue.add_after("a", 10)
    bench.queue.add("a")
    await bench.queue.take()
    assert bench.time.pending == []
    bench.queue.add_after("a", 4)  # asked for during the pass: kept
    bench.queue.done("a")
    await bench.time.advance(4)
    assert await bench.queue.take() == "a"


async def test_a_delayed_add_that_ripens_during_the_pass_waits_for_its_end(bench: Bench) -> None:
    bench.queue.add("a")
    await bench.queue.take()
    bench.queue.add_after("a", 1)
    await bench.time.advance(2)
    assert len(bench.queue) == 0
    bench.queue.done("a")
    assert len(bench.queue) == 1


async def test_no_delay_means_now(bench: Bench) -> None:
    bench.queue.add_after("a", 0)
    assert await bench.queue.take() == "a"


@given(failures=st.integers(0, 10_000), seed=st.integers(0, 2**32))
def test_backoff_stays_between_a_second_and_five_minutes(failures: int, seed: int) -> None:
    assert 1.0 <= backoff_seconds(failures, random.Random(seed)) <= 300.0


async def test_a_retry_may_have_a_lower_cap(bench: Bench) -> None:
    assert max(bench.queue.retry("a", cap=15) for _ in range(12)) <= 15


def test_backoff_doubles_and_is_jittered() -> None:
    rng = random.Random(1)
    spread = {backoff_seconds(0, rng) for _ in range(50)}
    assert len(spread) == 50
    assert min(backoff_seconds(3, rng) for _ in range(200)) >= 8.0
    assert max(backoff_seconds(3, rng) for _ in range(200)) <= 16.0


async def test_retries_back_off_until_forgiven(bench: Bench) -> None:
    first, second, third = (bench.queue.retry("a") for _ in range(3))
    assert first < 2 <= second < 4 <= third
    bench.queue.forgive("a")
    assert bench.queue.retry("a") < 2
    assert bench.seen.retries == 4


async def test_an_event_does_not_wait_for_the_backoff(bench: Bench) -> None:
    bench.queue.retry("a")
    bench.queue.add("a")
    assert await bench.queue.take() == "a"


async def test_depth_and_waiting_time_are_reported(bench: Bench) -> None:
    bench.queue.add("a")
    bench.queue.add("b")
    await bench.time.advance(2.5)
    await bench.queue.take()
    assert bench.seen.depths == [1, 2, 1]
    assert bench.seen.waits == [2.5]


async def test_closing_ends_idle_workers_and_lets_busy_ones_finish(bench: Bench) -> None:
    started, release, finished = asyncio.Event(), asyncio.Event(), []

    async def handle(key: str) -> None:
        started.set()
        await release.wait()
        finished.append(key)

    workers = asyncio.create_task(bench.queue.work(3, handle))
    bench.queue.add("a")
    await started.wait()
    bench.queue.add("a")
    bench.queue.add_after("b", 5)
    bench.queue.close()
    await settle()
    assert not workers.done()
    release.set()
    await asyncio.wait_for(workers, 5)
    assert finished == ["a"]
    assert bench.time.pending == []
    bench.queue.add("c")
    assert await bench.queue.take() is None


async def test_a_cancelled_worker_does_not_swallow_a_key(bench: Bench) -> None:
    first = asyncio.create_task(bench.queue.take())
    second = asyncio.create_task(bench.queue.take())
    await settle()
    bench.queue.add("a")  # wakes the first …
    first.cancel()  # … which never gets to take it
    assert await asyncio.wait_for(second, 5) == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_handler_that_raises_is_a_bug_and_ends_the_workers(bench: Bench) -> None:
    async def handle(key: str) -> None:
        raise KeyError(key)

    bench.queue.add("a")
    with pytest.raises(ExceptionGroup) as caught:
        await bench.queue.work(2, handle)
    assert isinstance(caught.value.exceptions[0], KeyError)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    adds=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 5)), max_size=40),
)
def test_no_key_is_processed_twice_at_once_and_no_add_is_lost(
    seed: int, adds: list[tuple[str, float]]
) -> None:
    asyncio.run(_random_run(random.Random(seed), adds))


async def _random_run(rng: random.Random, adds: list[tuple[str, float]]) -> None:
    time = VirtualTime()
    queue: WorkQueue[str] = WorkQueue(time, rng, Seen())
    running: set[str] = set()
    last_begin: dict[str, float] = {}

    async def handle(key: str) -> None:
        assert key not in running
        running.add(key)
        last_begin[key] = time.time()
        await time.sleep(rng.uniform(0, 2))
        running.discard(key)

    workers = asyncio.create_task(queue.work(2, handle))
    asked: dict[str, float] = {}
    for key, gap in adds:
        if rng.random() < 0.5:
            queue.add(key)
            asked[key] = time.time()
        else:
            queue.add_after(key, gap)
        await time.advance(gap)
    await time.advance(100)
    for key, when in asked.items():
        assert last_begin[key] >= when
    queue.close()
    await workers
