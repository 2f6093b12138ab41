"""Weights on their way through a gateway that nobody acknowledges."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from moe_operator.api.intent import Colour, Endpoint, Intent
from moe_operator.reconcile.external_route import Route, all_to_one, next_weights, wanted_weights

HERE = [Endpoint(address="10.0.0.1", port=8000, pod="a")]
GOING = [HERE[0].model_copy(update={"leaving": True})]


def route(weights: Mapping[str, int], settled_in: float = 0.0, refusal: str = "") -> Route:
    return Route("HTTPRoute", "a", weights, generation=1, since="", settled_in=settled_in, refusal=refusal)


@pytest.mark.parametrize(
    ("colours", "weights"),
    [
        ([Colour(revision="blue", weight=100, endpoints=HERE)], {"blue": 100}),
        ([], {"none": 0}),
        ([Colour(revision="blue", weight=0, endpoints=HERE)], {"blue": 100}),
        (
            [
                Colour(revision="blue", weight=0, endpoints=HERE),
                Colour(revision="green", weight=100, endpoints=HERE),
            ],
            {"blue": 0, "green": 100},
        ),
        (
            [
                Colour(revision="blue", weight=0, endpoints=HERE),
                Colour(revision="green", weight=100, endpoints=GOING),
            ],
            {"blue": 100},
        ),
    ],
    ids=["one", "none", "only what stands by", "both", "the other is leaving"],
)
def test_a_revision_without_leaders_gets_nothing_and_what_stands_by_steps_in(
    colours: list[Colour], weights: dict[str, int]
) -> None:
    assert wanted_weights(Intent(generation=1, model="m", colours=colours), "none") == weights


BLUE, BOTH, GREEN = {"blue": 100}, {"blue": 100, "green": 0}, {"blue": 0, "green": 100}


@pytest.mark.parametrize(
    ("wanted", "before", "after"),
    [
        (BLUE, None, BLUE),
        (GREEN, route(BLUE), BOTH),
        (GREEN, route(BOTH, settled_in=3.0), BOTH),
        (GREEN, route(BOTH, refusal="not resolved"), BOTH),
        (GREEN, route(BOTH), GREEN),
        (GREEN, route(GREEN, settled_in=30.0), GREEN),
        ({"green": 100}, route(GREEN), {"green": 100}),
        ({"green": 100}, route(BLUE, settled_in=30.0), {"green": 100}),
        ({"blue": 0}, route(BLUE, settled_in=30.0), {"blue": 0}),
        (BLUE, route({"blue": 0}, settled_in=30.0), BLUE),
    ],
    ids=[
        "the first", "made known", "not settled", "not accepted", "settled", "stays",
        "the old one goes", "the old one is dead: no waiting", "dead: at once", "back: at once",
    ],
)  # fmt: skip
def test_traffic_moves_to_what_is_known_and_leaves_what_is_dead_at_once(
    wanted: dict[str, int], before: Route | None, after: dict[str, int]
) -> None:
    assert next_weights(wanted, before) == after


@pytest.mark.parametrize(
    ("weights", "selected"),
    [
        (BLUE, BLUE),
        (GREEN, GREEN),
        ({"blue": 0}, BLUE),
        ({"blue": 100, "green": 100}, BOTH),
    ],
    ids=["one", "the other stands by", "nobody serves", "two old ones stand by"],
)
def test_a_pool_always_selects_one_revision(weights: dict[str, int], selected: dict[str, int]) -> None:
    assert all_to_one(weights) == selected
