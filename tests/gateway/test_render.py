"""What an intent becomes: golden files, Envoy's own judgement of them, and what may never differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_operator.api.intent import (
    Colour,
    Endpoint,
    Intent,
    Limits,
    LongContext,
    Preview,
    Queue,
    Timeouts,
)
from moe_operator.gateway import validate
from moe_operator.gateway.address import Address
from moe_operator.gateway.cluster import UPSTREAM_IDLE_SECONDS
from moe_operator.gateway.files import (
    BOOTSTRAP,
    CDS,
    DYNAMIC_FILES,
    EDS,
    LDS,
    RDS,
    generation_of,
    version_of,
)
from moe_operator.gateway.render import render, render_intent
from moe_operator.gateway.site import Site

from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden"
SITE = Site("/xds", Address("0.0.0.0", 8080), Address("127.0.0.1", 9901))
SHIFTING = Intent(
    generation=57,
    model="kimi-k3",
    colours=[
        Colour(
            revision="5c9f1e77",
            weight=90,
            endpoints=[
                Endpoint(address="10.0.1.7", port=8000, pod="kimi-k3-5c9f1e77-0-0"),
                Endpoint(address="10.0.2.7", port=8000, pod="kimi-k3-5c9f1e77-1-0"),
            ],
        ),
        Colour(
            revision="a01b2c3d",
            weight=10,
            endpoints=[Endpoint(address="fd00::3:7", port=8000, pod="kimi-k3-a01b2c3d-0-0")],
        ),
        Colour(revision="00c0ffee", weight=0, endpoints=[Endpoint(address="10.0.4.7", port=8000)]),
    ],
    allowed_paths=["/v1/chat/completions", "/v1/models"],
    preview=Preview(
        revision="b2c3d4e5", endpoints=[Endpoint(address="10.0.5.7", port=8000)], allowed_key_ids=["ci"]
    ),
    limits=Limits(max_output_tokens=4096, max_choices=4, max_context_tokens=131072),
    long_context=LongContext(threshold_tokens=65536, max_concurrent=8),
    affinity_header="x-session-id",
    allowed_sources=["10.0.0.0/8"],
    retry_after_seconds=90,
)

endpoints = st.builds(
    Endpoint, address=st.ip_addresses().map(str), port=st.integers(1, 65535), pod=st.text(max_size=8)
)
colours = st.builds(
    Colour,
    revision=st.text("0123456789abcdef", min_size=8, max_size=8),
    weight=st.integers(0, 100),
    endpoints=st.lists(endpoints, max_size=3),
)
intents = st.builds(
    Intent,
    generation=st.integers(0, 10**9),
    model=st.text(max_size=8),
    colours=st.lists(colours, max_size=3),
    allowed_paths=st.lists(st.text(max_size=8).map("/".__add__), max_size=4),
    timeouts=st.builds(Timeouts, first_byte_seconds=st.integers(1, 9999), idle_seconds=st.integers(1, 9999)),
    retry_after_seconds=st.integers(0, 999),
    preview=st.none()
    | st.builds(
        Preview,
        revision=st.text("0123456789abcdef", min_size=8, max_size=8),
        endpoints=st.lists(endpoints, max_size=2),
        allowed_key_ids=st.lists(st.sampled_from(["*", "ci", "a.b"]), max_size=2),
    ),
    limits=st.builds(
        Limits,
        max_request_bytes=st.integers(1, 1 << 30),
        max_output_tokens=st.none() | st.integers(1, 10**6),
        max_choices=st.none() | st.integers(1, 9),
    ),
    queue=st.builds(Queue, max_waiting=st.integers(0, 10**5), hold_seconds=st.integers(0, 3600)),
    long_context=st.none()
    | st.builds(LongContext, threshold_tokens=st.integers(1, 10**6), max_concurrent=st.integers(1, 99)),
    affinity_header=st.sampled_from(["", "x-session-id"]),
    allowed_sources=st.lists(st.sampled_from(["10.0.0.0/8", "fd00::/8"]), max_size=2),
)
WAITING_ROOM = ("waiting-room", 1)


def resource(files: dict[str, str], name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(files[name])["resources"][0]
    return value


@pytest.mark.parametrize("name", [BOOTSTRAP, LDS, *DYNAMIC_FILES])
def test_golden(name: str) -> None:
    assert_golden(GOLDEN / name.replace(".json", ".yaml"), json.loads(render(SHIFTING, SITE)[name]))


@pytest.mark.parametrize(
    "intent", [SHIFTING, None, Intent(generation=0, model="")], ids=["shifting", "none", "empty"]
)
async def test_envoy_has_nothing_against_it(intent: Intent | None, tmp_path: Path) -> None:
    envoy = validate.find_envoy()
    assert envoy is not None
    assert await validate.refusal(render(intent, SITE), envoy, tmp_path) == ""


@settings(max_examples=50, deadline=None)
@given(intents)
def test_no_intent_touches_bootstrap_or_listener(intent: Intent) -> None:
    files, none = render(intent, SITE), render(None, SITE)
    assert (files[BOOTSTRAP], files[LDS]) == (none[BOOTSTRAP], none[LDS])


@settings(max_examples=50, deadline=None)
@given(intents)
def test_every_version_leads_back_to_its_generation_and_equal_intents_to_equal_bytes(intent: Intent) -> None:
    again = Intent.model_validate_json(intent.model_dump_json(by_alias=True))
    files = render_intent(intent, "/xds", SITE.room)
    assert tuple(files) == DYNAMIC_FILES
    assert {generation_of(version_of(text)) for text in files.values()} == {intent.generation}
    assert files == render_intent(again, "/xds", SITE.room)


@settings(max_examples=50, deadline=None)
@given(intents)
def test_standby_leaves_the_weight_out_and_no_weight_is_zero(intent: Intent) -> None:
    localities = resource(render(intent, SITE), EDS)["endpoints"]
    shown = [(loc["locality"]["zone"], loc.get("load_balancing_weight")) for loc in localities]
    assert shown == [(c.revision, c.weight or None) for c in intent.colours if c.endpoints] + [WAITING_ROOM]


@settings(max_examples=50, deadline=None)
@given(intents)
def test_only_listed_paths_lead_to_an_engine_and_none_has_a_total_time_limit(intent: Intent) -> None:
    routes = resource(render(intent, SITE), RDS)["virtual_hosts"][0]["routes"]
    forwarding = [route for route in routes if "route" in route]
    assert {route["match"]["path"] for route in forwarding} == set(intent.allowed_paths)
    assert routes[-1]["match"] == {"prefix": "/"}
    assert routes[-1]["direct_response"]["status"] == 404
    for route in forwarding:
        assert route["route"]["timeout"] == "0s"  # it would cut streams
        idle = int(route["route"]["idle_timeout"].removesuffix("s"))
        timeouts = intent.timeouts
        waiting_and_prefill = intent.queue.hold_seconds + timeouts.first_byte_seconds
        assert idle == max(waiting_and_prefill, timeouts.idle_seconds)


@settings(max_examples=50, deadline=None)
@given(intents)
def test_a_preview_is_in_no_pool_that_others_reach(intent: Intent) -> None:
    files = render(intent, SITE)
    names = [cluster["name"] for cluster in json.loads(files[CDS])["resources"]]
    services = [
        cluster["eds_cluster_config"]["service_name"] for cluster in json.loads(files[CDS])["resources"]
    ]
    assert list(zip(names, services, strict=True)) == [
        ("all", "all"), ("long", "all"), ("preview", "preview")
    ]  # fmt: skip
    routes = resource(files, RDS)["virtual_hosts"][0]["routes"]
    for route in routes:
        if route.get("route", {}).get("cluster") == "preview":
            headers = {header["name"] for header in route["match"]["headers"]}
            keys = intent.preview.allowed_key_ids if intent.preview else []
            assert headers >= {"x-moe-revision-preview"}
            assert "*" in keys or "x-moe-key-id" in headers


def test_upstream_connections_are_closed_before_the_engine_closes_them() -> None:
    options = resource(render(SHIFTING, SITE), CDS)["typed_extension_protocol_options"]
    (protocol,) = options.values()
    assert protocol["common_http_protocol_options"]["idle_timeout"] == f"{UPSTREAM_IDLE_SECONDS}s"
    assert UPSTREAM_IDLE_SECONDS < 5  # vLLM's keep-alive


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:8080", Address("0.0.0.0", 8080)),
        ("[::]:80", Address("::", 80)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "8080", ":8080", "host:", "host:x", "host:65536", "host:-1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Address.parse(text)
