"""The filter that says who is asking: a keyring as a table in a Lua script.

Envoy's own filter for API keys holds them in plain text, and an external one would be in the path of every
request; so the proxy hashes what the client sent and looks the hash up. The script leaves the key's id in a
header (for routes, limits and the engine) and in dynamic metadata (for the log).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from moe_operator.gateway.discovered import KEYS, lua
from moe_operator.gateway.keys import Keyring
from moe_operator.gateway.replies import UNAVAILABLE, OwnReply
from moe_operator.gateway.request_headers import KEY_ID, SLOT

CLIENT = "moe.client"  # dynamic metadata: "key" = id, "refused" = code of the error that a filter gave
SHA256 = files("moe_operator.gateway").joinpath("sha256.lua").read_text()
SCRIPT = files("moe_operator.gateway").joinpath("key_filter.lua").read_text()
UNKNOWN = OwnReply(
    503, UNAVAILABLE, "no_engine_available", "This gateway has just started and knows no engine yet."
)

Json = dict[str, Any]


def key_filter(keys: Keyring, slots: Mapping[str, int] | None, *, forward: bool = False) -> Json:
    """The filter's configuration; ``slots`` None = nobody is counted."""
    width, table = _table(keys, slots or {})
    return lua(
        KEYS,
        names(),
        f"local WIDTH, SLOTS, FORWARD = {width}, {_boolean(slots is not None)}, {_boolean(forward)}",
        f"local TABLE = [[{table}]]",
        SHA256,
        SCRIPT,
    )


def closed() -> Json:
    """The filter while nobody knows whether keys are asked for: no request passes, and none is blamed."""
    headers = {":status": str(UNKNOWN.status), "content-type": "application/json", "retry-after": "1"}
    table = ", ".join(f'["{name}"] = "{value}"' for name, value in headers.items())
    return lua(KEYS, f"function envoy_on_request(handle) handle:respond({{{table}}}, [[{UNKNOWN.body}]]) end")


def names() -> str:
    """The names that our scripts share, as Lua."""
    values = {"CLIENT": CLIENT, "KEY_ID": KEY_ID, "SLOT": SLOT}
    return f"local {', '.join(values)} = {', '.join(json.dumps(value) for value in values.values())}"


def _table(keys: Keyring, slots: Mapping[str, int]) -> tuple[int, str]:
    longest = max((len(key.key_id) for key in keys.hashes), default=1)
    rows = [
        f"{key.sha256} {key.expires:<11} {slots.get(key.key_id, 0):<6} {key.key_id:<{longest}}"
        for key in keys.hashes
    ]
    return len(rows[0]) if rows else 1, "".join(rows)


def _boolean(value: bool) -> str:
    return "true" if value else "false"
