"""How large a request may be and how much it may ask for, judged in the proxy.

The body is buffered whole (it has to be, to be sent again), then a small Lua script reads the members of the
one JSON object at its top level, skipping what is nested, and compares ``max_tokens``, ``n`` and their like
with the route's numbers. The prompt is estimated as bytes of the body, without images in ``data:`` URLs,
divided by ``bytes_per_token``; a tokenizer would cost more than the whole gateway. The script is part of the
listener, its numbers are metadata of the route. Where an intent sets none of the limits that need the body,
the body is not looked at, and where it sets no limit at all the script does not run.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from moe_operator.api.intent import Intent
from moe_operator.gateway.cluster import LONG
from moe_operator.gateway.request_headers import LANE

BUFFER = "envoy.filters.http.buffer"
LUA = "envoy.filters.http.lua"
V3 = "type.googleapis.com/envoy.extensions.filters.http"
LARGEST_BODY_BYTES = 1 << 30  # of any intent
LARGEST_HEADER_BYTES = 64 << 10  # of any intent; the listener itself refuses more
SCRIPT = files("moe_operator.gateway").joinpath("request_limits.lua").read_text()

ANSWER_MEMBER = {"/v1/chat/completions": "max_completion_tokens", "/v1/responses": "max_output_tokens"}
"""Paths where an answer without a limit may fill the whole context → the member that limits it."""

Json = dict[str, Any]


def buffer_filter() -> Json:
    """Collects the body; 413 for a longer one than the route allows."""
    return {
        "name": BUFFER,
        "typed_config": {"@type": f"{V3}.buffer.v3.Buffer", "max_request_bytes": LARGEST_BODY_BYTES},
    }


def limit_filter() -> Json:
    """Runs the script."""
    return {
        "name": LUA,
        "typed_config": {
            "@type": f"{V3}.lua.v3.Lua",
            "default_source_code": {"inline_string": SCRIPT},
            "stat_prefix": "request_limits",
        },
    }


def settings(intent: Intent) -> Json:
    """``typed_per_filter_config`` of the virtual host."""
    size = {"max_request_bytes": intent.limits.max_request_bytes}
    buffer = {BUFFER: {"@type": f"{V3}.buffer.v3.BufferPerRoute", "buffer": size}}
    if _numbers(intent):
        return buffer
    return buffer | {LUA: {"@type": f"{V3}.lua.v3.LuaPerRoute", "disabled": True}}


def unread() -> Json:
    """``typed_per_filter_config`` of a route that answers by itself: its answer waits for no body."""
    return {BUFFER: {"@type": f"{V3}.buffer.v3.BufferPerRoute", "disabled": True}}


def metadata(intent: Intent, path: str) -> Json:
    """What the script reads on the route of ``path``; a limit that is not set is left out."""
    numbers = _numbers(intent)
    if "max_output_tokens" in numbers and path in ANSWER_MEMBER:
        numbers["answer_member"] = ANSWER_MEMBER[path]
    return {LUA: numbers} if numbers else {}


def _numbers(intent: Intent) -> Json:
    limits, long = intent.limits, intent.long_context
    small = limits.max_header_bytes < LARGEST_HEADER_BYTES
    headers: Json = {"max_header_bytes": limits.max_header_bytes} if small else {}
    looked_for = {
        "max_output_tokens": limits.max_output_tokens,
        "max_context_tokens": limits.max_context_tokens,
        "max_choices": limits.max_choices,
        "long_tokens": long.threshold_tokens if long else None,
    }
    inside = {name: value for name, value in looked_for.items() if value is not None}
    if not inside:
        return headers
    return {**headers, **inside, "bytes_per_token": limits.bytes_per_token, "lane": LONG, "lane_header": LANE}
