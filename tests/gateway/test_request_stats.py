from __future__ import annotations

from dataclasses import replace

import pytest
from moe_operator.gateway.access_log import ENDED, FIELDS, RUNNING
from moe_operator.gateway.request_record import RequestRecord, parse
from moe_operator.gateway.request_stats import MOST_KEYS, MOST_REVISIONS, OTHER, RUNNING_FOR, RequestStats
from prometheus_client.core import Metric

VALUES = {
    "kind": ENDED, "connection": "7", "started": "1796026454.824142", "key": "alice", "revision": "b",
    "status": "200", "refused": "-", "details": "via_upstream", "flags": "-", "received": "400",
    "prompt": "11", "completion": "20", "events": "21", "queue": "0", "ttft": "63", "duration": "64",
}  # fmt: skip
RECORD = RequestRecord(
    ended=True, connection=7, started=1796026454.824142, key_id="alice", revision="b", status=200, refused="",
    flags=frozenset(), received_bytes=400, prompt_tokens=11, completion_tokens=20, events=21,
    queue_seconds=0.0, ttft_seconds=0.063, duration_seconds=0.064,
)  # fmt: skip


def line(**changes: str) -> str:
    return "\t".join((VALUES | changes).values())


def test_a_line_of_envoy() -> None:
    assert list(VALUES) == list(FIELDS)
    assert parse(line()) == RECORD


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"status": "429", "details": "local_rate_limited", "flags": "RL"}, "requests_per_minute_exceeded"),
        ({"status": "429", "details": "reached_concurrency_limit"}, "too_many_concurrent_requests"),
        ({"status": "403", "details": "rbac_access_denied_matched_policy[none]"}, "source_not_allowed"),
        ({"status": "401", "details": "lua_response", "refused": "invalid_api_key"}, "invalid_api_key"),
    ],
)
def test_refusals_have_the_codes_that_clients_read(changes: dict[str, str], refused: str) -> None:
    record = parse(line(**changes))
    assert record.refused == refused
    assert not record.failed


@pytest.mark.parametrize("text", ["", "a\tb", line() + "\tmore", line(status="x"), line(connection="-")])
def test_other_lines_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({}, False),
        ({"status": "503", "flags": "UH"}, True),
        ({"status": "200", "flags": "UC"}, True),  # broke off in the middle
        ({"status": "200", "flags": "DC"}, False),  # the client went
        ({"status": "0", "flags": "DC"}, False),
        ({"status": "400"}, False),
    ],
)
def test_what_counts_as_a_failure(changes: dict[str, str], failed: bool) -> None:
    assert parse(line(**changes)).failed is failed


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 31),
        ({"prompt": "11", "completion": "-"}, 11),
        ({"prompt": "-", "completion": "-", "flags": "DC"}, 21 + 100),  # an estimate, not a gift
        ({"prompt": "-", "completion": "-", "events": "-", "flags": "DC"}, 100),
        ({"prompt": "-", "completion": "-", "events": "-"}, 0),
        ({"prompt": "-", "completion": "-", "events": "-", "revision": "-", "flags": "DC"}, 0),
    ],
)
def test_tokens(changes: dict[str, str], tokens: int) -> None:
    assert parse(line(**changes)).tokens(bytes_per_token=4) == tokens


def samples(stats: RequestStats, moment: float = 0.0) -> dict[str, Metric]:
    return {metric.name: metric for metric in stats.collect(moment)}


def test_a_running_request_is_in_flight_until_it_ends_or_is_heard_of_no_more() -> None:
    stats, running = RequestStats(), parse(line(kind=RUNNING))

    def in_flight(moment: float) -> list[float]:
        return [sample.value for sample in samples(stats, moment)["moe_gateway_in_flight"].samples]

    stats.take(running, 100.0)
    stats.take(replace(running, connection=8), 100.0)
    assert in_flight(101.0) == [2]
    stats.take(RECORD, 101.0)
    assert in_flight(101.0) == [1]
    assert in_flight(100.0 + RUNNING_FOR) == [0]


def test_series_are_bounded() -> None:
    stats = RequestStats()
    for number in range(2 * MOST_KEYS):
        stats.take(replace(RECORD, key_id=f"k{number}", revision=f"r{number // 8}"), 0.0)
    requests = samples(stats)["moe_gateway_client_requests"].samples
    assert {sample.labels["revision"] for sample in requests} == {
        f"r{number}" for number in range(2 * MOST_KEYS // 8 - MOST_REVISIONS, 2 * MOST_KEYS // 8)
    }
    assert {sample.labels["key"] for sample in requests} == {OTHER}


def test_histograms_are_cumulative_and_know_their_sum() -> None:
    stats = RequestStats()
    for seconds in (0.05, 0.3, 700.0):
        stats.take(replace(RECORD, ttft_seconds=seconds), 0.0)
    stats.take(replace(RECORD, ttft_seconds=None), 0.0)
    family = samples(stats)["moe_gateway_time_to_first_token_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in family if s.name.endswith("_bucket")}
    assert (buckets["0.05"], buckets["0.25"], buckets["0.5"], buckets["600.0"], buckets["+Inf"]) == (
        1,
        1,
        2,
        2,
        3,
    )
    assert [s.value for s in family if s.name.endswith("_sum")] == [pytest.approx(700.35)]
