from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest
from moe_operator.runtime.kube import LEASE, ApiError, Obj
from moe_operator.runtime.lease import LeaderLease, LeaseLost, LeaseTimes
from moe_operator.sandbox.api import MemoryKube

from tests.runtime.virtual_time import VirtualTime
from tests.runtime.world import World

Make = Callable[[str], LeaderLease]


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def candidate(world: World, time: VirtualTime) -> Make:
    """Candidates whose wall clocks are years apart: only the pace of time is shared."""

    def make(identity: str) -> LeaderLease:
        year = datetime(2000 + ord(identity) % 50, 1, 1, tzinfo=UTC)
        return LeaderLease(
            world.kube,
            "default",
            identity,
            monotonic=time.time,
            wall=lambda: year + timedelta(seconds=time.now),
            sleep=time.sleep,
        )

    return make


@pytest.fixture
async def started() -> AsyncIterator[Callable[..., asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []

    def start(call: object) -> asyncio.Task[None]:
        task = asyncio.ensure_future(call)  # type: ignore[call-overload]
        tasks.append(task)
        return task  # type: ignore[no-any-return]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


Start = Callable[..., asyncio.Task[None]]


def spec(world: World) -> Obj:
    found: Obj = world.api.get(LEASE, "default", "moe-operator")["spec"]
    return found


async def test_the_first_candidate_gets_the_lease_at_once(world: World, candidate: Make) -> None:
    await candidate("a").acquire()
    assert spec(world) == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2047-01-01T00:16:40.000000Z",
        "renewTime": "2047-01-01T00:16:40.000000Z",
        "leaseTransitions": 0,
    }


async def test_a_holder_that_renews_is_never_replaced(
    world: World, candidate: Make, time: VirtualTime, started: Start
) -> None:
    first = candidate("a")
    await first.acquire()
    held, waiting = started(first.hold()), started(candidate("b").acquire())
    await time.advance(600)
    assert not held.done()
    assert not waiting.done()
    assert spec(world)["holderIdentity"] == "a"


async def test_a_standby_takes_over_after_the_holder_stood_still_for_its_duration(
    world: World, candidate: Make, time: VirtualTime, started: Start
) -> None:
    await candidate("a").acquire()  # and is killed
    waiting = started(candidate("b").acquire())
    await time.advance(15)
    assert not waiting.done()
    await time.advance(3)
    assert waiting.done()
    assert spec(world)["holderIdentity"] == "b"
    assert spec(world)["leaseTransitions"] == 1


async def test_a_released_lease_is_taken_at_the_next_look(
    world: World, candidate: Make, time: VirtualTime, started: Start
) -> None:
    first = candidate("a")
    await first.acquire()
    waiting = started(candidate("b").acquire())
    await time.advance(0)
    await first.release()
    await time.advance(2)
    assert waiting.done()
    assert spec(world)["holderIdentity"] == "b"


async def test_a_holder_that_cannot_renew_stops_before_the_standby_starts(
    world: World, candidate: Make, time: VirtualTime, started: Start
) -> None:
    first = candidate("a")
    await first.acquire()
    held = started(first.hold())
    await time.advance(4)
    world.faults["replace"] = ApiError(503, "ServiceUnavailable", "etcd is away")
    await time.advance(8)
    assert not held.done()
    await time.advance(4)
    with pytest.raises(LeaseLost, match="not renewed for 10 s"):
        await held
    del world.faults["replace"]
    waiting = started(candidate("b").acquire())
    await time.advance(14)
    assert not waiting.done()


async def test_one_failed_renewal_is_not_the_end(
    world: World, candidate: Make, time: VirtualTime, started: Start
) -> None:
    first = candidate("a")
    await first.acquire()
    held = started(first.hold())
    for _ in range(5):
        world.faults["replace"] = ApiError(0, "Unreachable", "connection refused")
        await time.advance(6)
        del world.faults["replace"]
        await time.advance(4)
    assert not held.done()


async def test_a_renewal_that_hangs_does_not_outlast_the_lease(world: World) -> None:
    class Hangs(MemoryKube):
        async def replace(self, obj: Obj) -> Obj:
            await asyncio.Event().wait()
            raise AssertionError

    first = LeaderLease(
        Hangs(world.api),
        "default",
        "a",
        monotonic=monotonic,
        wall=lambda: datetime.now(UTC),
        sleep=asyncio.sleep,
        times=LeaseTimes(duration=3, give_up=0.2, retry=0.01),
    )
    await first.acquire()
    with pytest.raises(LeaseLost, match=r"not renewed for 0\.2 s: no answer"):
        await asyncio.wait_for(first.hold(), 30)


async def test_a_lease_that_somebody_took_is_lost_at_the_next_look(
    world: World, candidate: Make, time: VirtualTime, started: Start
) -> None:
    first = candidate("a")
    await first.acquire()
    held = started(first.hold())
    taken = world.api.get(LEASE, "default", "moe-operator")
    taken["spec"]["holderIdentity"] = "b"
    world.api.replace(taken)
    await time.advance(2)
    with pytest.raises(LeaseLost, match="held by b"):
        await held


async def test_of_two_candidates_at_the_same_instant_one_wins(
    world: World, candidate: Make, time: VirtualTime, started: Start
) -> None:
    both = [started(candidate(name).acquire()) for name in "ab"]
    await time.advance(0)
    assert [task.done() for task in both] == [True, False]
    assert spec(world)["holderIdentity"] == "a"


async def test_of_two_standbys_that_see_the_holder_dead_one_wins(
    world: World, candidate: Make, time: VirtualTime, started: Start
) -> None:
    await candidate("a").acquire()
    won: list[str] = []

    async def campaign(identity: str) -> None:
        lease = candidate(identity)
        await lease.acquire()
        won.append(identity)
        await lease.hold()

    for name in "bc":
        started(campaign(name))
    await time.advance(600)
    assert won == [spec(world)["holderIdentity"]]


async def test_an_api_server_that_is_away_is_waited_for(
    world: World, candidate: Make, time: VirtualTime, started: Start
) -> None:
    world.faults["get"] = ApiError(0, "Unreachable", "connection refused")
    waiting = started(candidate("a").acquire())
    await time.advance(600)
    assert not waiting.done()
    del world.faults["get"]
    await time.advance(2)
    assert waiting.done()


async def test_releasing_without_an_api_server_raises_nothing(world: World, candidate: Make) -> None:
    first = candidate("a")
    await first.acquire()
    world.faults["get"] = ApiError(0, "Unreachable", "connection refused")
    await first.release()
    assert spec(world)["holderIdentity"] == "a"


async def test_a_lease_that_is_not_ours_is_not_released(world: World, candidate: Make) -> None:
    await candidate("a").acquire()
    await candidate("b").release()
    assert spec(world)["holderIdentity"] == "a"
