from __future__ import annotations

import pytest
from moe_operator.api.intent import Ack, Colour, Endpoint, HostState, Intent
from moe_operator.rollout.retire import Leave, healthy_everywhere, next_leave

LEADER = Endpoint(address="10.0.0.1", port=8000)
OTHER = Endpoint(address="10.0.0.2", port=8000)


def intent(weight: int | None = None, leaving: bool = False) -> Intent:
    """Generation 5; ``weight`` None = the leader is in no colour."""
    colours = [Colour(revision="new", weight=100, endpoints=[OTHER])]
    if weight is not None:
        mine = LEADER.model_copy(update={"leaving": leaving})
        colours.append(Colour(revision="old", weight=weight, endpoints=[mine]))
    return Intent(generation=5, model="m", colours=colours)


def ack(generation: int = 5, active: int = 0, healthy: bool = True, accepted: bool = True) -> Ack:
    hosts = [
        HostState(address=e.address, port=8000, revision="r", healthy=healthy, weight=0, active_requests=n)
        for e, n in ((LEADER, active), (OTHER, 3))
    ]
    return Ack(generation=generation, accepted=accepted, hosts=hosts)


NEW, OLD, BUSY = ack(), ack(4), ack(active=2)


@pytest.mark.parametrize(
    ("told", "acks", "overdue", "step"),
    [
        # no new requests first
        (intent(100), [NEW, NEW], False, Leave.STANDBY),
        (intent(0), [NEW, OLD], False, Leave.STANDBY),
        (intent(0), [NEW, BUSY], False, Leave.STANDBY),
        (intent(100, leaving=True), [NEW, BUSY], False, Leave.STANDBY),
        # out of the configuration once nothing runs on it any more, or its time is over
        (intent(0), [NEW, NEW], False, Leave.OUT),
        (intent(100, leaving=True), [NEW, NEW], False, Leave.OUT),
        (intent(0), [NEW, BUSY], True, Leave.OUT),
        (intent(100), [OLD, OLD], True, Leave.OUT),
        # deleted once every gateway has taken it out, or its time is over
        (intent(None), [NEW, OLD], False, Leave.OUT),
        (intent(None), [NEW, NEW], False, Leave.DELETE),
        (intent(None), [OLD, OLD], True, Leave.DELETE),
        (intent(None), [], False, Leave.DELETE),
    ],
)
def test_a_group_leaves_step_by_step(told: Intent, acks: list[Ack], overdue: bool, step: Leave) -> None:
    assert next_leave(LEADER, told, acks, overdue) is step


def test_streams_of_a_gateway_on_its_way_out_count_and_its_configuration_does_not() -> None:
    going = ack(generation=2, active=1)
    assert next_leave(LEADER, intent(0), [NEW], False, draining=[going]) is Leave.STANDBY
    assert next_leave(LEADER, intent(0), [NEW], False, draining=[ack(generation=2)]) is Leave.OUT
    assert next_leave(LEADER, intent(0), [NEW], True, draining=[going]) is Leave.OUT


def test_a_group_that_no_gateway_ever_knew_may_go_at_once() -> None:
    assert next_leave(None, intent(100), [OLD], False) is Leave.DELETE
    assert next_leave(LEADER, None, [], False) is Leave.DELETE


def test_the_same_port_at_another_address_is_another_endpoint() -> None:
    assert next_leave(Endpoint(address="10.0.0.9", port=8000), intent(100), [NEW], False) is Leave.DELETE


@pytest.mark.parametrize(
    ("acks", "expected"),
    [
        ([NEW, NEW], True),
        ([NEW, OLD], False),
        ([NEW, ack(healthy=False)], False),
        ([NEW, ack(accepted=False)], False),
        ([NEW, Ack(generation=5)], False),
        ([], False),
    ],
)
def test_a_revision_takes_over_when_every_gateway_runs_it_and_finds_it_healthy(
    acks: list[Ack], expected: bool
) -> None:
    assert healthy_everywhere([LEADER, OTHER], intent(100), acks) is expected
