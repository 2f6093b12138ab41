from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moe_operator.gateway.quota import Account, Allowances, Quotas

LIMITED = Quotas(Allowances(common=600, own={"big": 6000}))


def test_a_key_may_ask_until_it_has_used_more_than_it_has() -> None:
    quotas = LIMITED.charged({"a": 600}, 1000.0)
    assert quotas.waiting(1000.0) == {}
    assert quotas.charged({"a": 100}, 1000.0).waiting(1000.0) == {"a": 1010.0}


def test_one_huge_answer_is_paid_for_by_waiting_longer() -> None:
    quotas = LIMITED.charged({"a": 6600}, 1000.0)
    assert quotas.waiting(1000.0) == {"a": 1600.0}
    assert quotas.waiting(1599.0) == {"a": 1600.0}
    assert quotas.waiting(1600.0) == {}


def test_keys_do_not_pay_for_each_other_and_may_have_limits_of_their_own() -> None:
    quotas = LIMITED.charged({"a": 700, "b": 10, "big": 6600}, 0.0)
    assert quotas.waiting(0.0) == {"a": 10.0, "big": 6.0}


def test_an_estimate_that_was_too_high_comes_back_but_nothing_more() -> None:
    quotas = LIMITED.charged({"a": 700}, 0.0).charged({"a": -650}, 0.0)
    assert quotas.waiting(0.0) == {}
    assert quotas.charged({"a": -9999}, 0.0).accounts["a"].tokens == 600


def test_without_a_limit_nothing_is_kept() -> None:
    assert Quotas().charged({"a": 10**9}, 0.0).accounts == {}
    assert LIMITED.charged({"a": 10}, 0.0).settled(2.0).accounts == {}


def test_a_clock_that_goes_back_fills_nothing() -> None:
    assert Account(5, at=100.0).now(60, 50.0) == Account(5, at=50.0)


@given(st.lists(st.tuples(st.floats(0, 600), st.integers(0, 5000)), max_size=20))
def test_over_any_time_a_key_gets_no_more_than_its_share_a_minute_and_one_answer(
    requests: list[tuple[float, int]],
) -> None:
    """A client that asks whenever it may: what it took before its last answer fits its allowance."""
    quotas, moment, taken, last = LIMITED, 0.0, 0, 0
    for pause, tokens in requests:
        moment += pause
        if quotas.waiting(moment):
            continue
        quotas = quotas.charged({"a": tokens}, moment)
        taken, last = taken + tokens, tokens
        assert taken - last <= 600 + 600 * moment / 60 + 1e-6
