"""What an intent becomes: golden files, Envoy's own judgement of them, and what may never differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_operator.api.intent import Colour, Endpoint, Intent, Timeouts
from moe_operator.gateway import validate
from moe_operator.gateway.cluster import UPSTREAM_IDLE_SECONDS
from moe_operator.gateway.render import (
    BOOTSTRAP,
    CDS,
    DYNAMIC_FILES,
    EDS,
    LDS,
    RDS,
    Address,
    Site,
    generation_of,
    render,
    render_intent,
    version_of,
)

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
    allowed_paths=["/v1/chat/completions", "/v1/models", "/v1/files/*"],
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
)


def resource(files: dict[str, str], name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(files[name])["resources"][0]
    return value


@pytest.mark.parametrize("name", [BOOTSTRAP, LDS, EDS, CDS, RDS])
def test_golden(name: str) -> None:
    assert render(SHIFTING, SITE)[name] == (GOLDEN / name).read_text()


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
    files = render_intent(intent, "/xds")
    assert tuple(files) == DYNAMIC_FILES
    assert {generation_of(version_of(text)) for text in files.values()} == {intent.generation}
    assert files == render_intent(Intent.model_validate_json(intent.model_dump_json(by_alias=True)), "/xds")


@settings(max_examples=50, deadline=None)
@given(intents)
def test_standby_leaves_the_weight_out_and_no_weight_is_zero(intent: Intent) -> None:
    localities = resource(render(intent, SITE), EDS)["endpoints"]
    shown = [(loc["locality"]["zone"], loc.get("load_balancing_weight")) for loc in localities]
    assert shown == [(c.revision, c.weight or None) for c in intent.colours if c.endpoints]


@settings(max_examples=50, deadline=None)
@given(intents)
def test_a_path_that_is_not_listed_meets_the_refusal(intent: Intent) -> None:
    routes = resource(render(intent, SITE), RDS)["virtual_hosts"][0]["routes"]
    assert len(routes) == len(intent.allowed_paths) + 1
    assert routes[-1] == {"match": {"prefix": "/"}, "direct_response": {"status": 404}}
    for route in routes[:-1]:
        assert route["route"]["timeout"] == "0s"  # a total limit would cut streams
        idle = int(route["route"]["idle_timeout"].removesuffix("s"))
        assert idle == max(intent.timeouts.first_byte_seconds, intent.timeouts.idle_seconds)


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
