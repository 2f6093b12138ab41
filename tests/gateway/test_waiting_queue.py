"""Order, bounds and time in the waiting room, without sockets."""

from __future__ import annotations

import asyncio

from moe_operator.gateway.waiting_queue import MAX_HELD_BYTES, Place, Rules, Verdict, WaitingQueue

RULES = Rules(max_waiting=3, hold_seconds=60)


def place(queue: WaitingQueue, received: float, size: int = 0) -> Place:
    entered = queue.enter(received, size, RULES, received)
    assert isinstance(entered, Place)
    return entered


async def test_whoever_came_first_is_called_first_even_on_a_second_visit() -> None:
    queue = WaitingQueue()
    second, third = place(queue, 2.0), place(queue, 3.0)
    first = place(queue, 1.0)  # was called before, and the engine was gone again
    called = []
    for waiting in (first, second, third):
        waiting.verdict.add_done_callback(lambda _, who=waiting: called.append(who))
    while queue.call_next():
        await asyncio.sleep(0)
    assert called == [first, second, third]
    assert (len(queue), queue.verdicts) == (0, {Verdict.CALLED: 3})


async def test_a_full_room_turns_away_and_a_place_that_is_left_is_free() -> None:
    queue = WaitingQueue()
    waiting = [place(queue, float(n)) for n in range(3)]
    assert queue.enter(4.0, 0, RULES, 4.0) is Verdict.FULL

    queue.leave(waiting[1], Verdict.LEFT)
    queue.leave(waiting[1], Verdict.EXPIRED)  # only the first verdict counts
    assert len(queue) == 2
    assert isinstance(queue.enter(5.0, 0, RULES, 5.0), Place)
    assert queue.verdicts == {Verdict.FULL: 1, Verdict.LEFT: 1}
    assert waiting[1].verdict.result() is Verdict.LEFT


async def test_bodies_are_bounded_together() -> None:
    queue = WaitingQueue()
    large = place(queue, 1.0, MAX_HELD_BYTES - 10)
    assert queue.enter(2.0, 11, RULES, 2.0) is Verdict.FULL
    queue.leave(large, Verdict.LEFT)
    assert isinstance(queue.enter(3.0, 11, RULES, 3.0), Place)


async def test_a_room_of_no_places_is_closed_and_not_full() -> None:
    assert WaitingQueue().enter(1.0, 0, Rules(max_waiting=0, hold_seconds=60), 1.0) is Verdict.EXPIRED


async def test_all_visits_together_are_bounded_in_time() -> None:
    queue = WaitingQueue()
    assert isinstance(queue.enter(100.0, 0, RULES, 159.9), Place)
    assert queue.enter(100.0, 0, RULES, 160.0) is Verdict.EXPIRED


async def test_those_who_left_are_forgotten_while_nobody_is_called() -> None:
    queue = WaitingQueue()
    for number in range(1000):
        queue.leave(place(queue, float(number)), Verdict.LEFT)
    assert len(queue) == 0
    assert len(queue._places) <= 66
