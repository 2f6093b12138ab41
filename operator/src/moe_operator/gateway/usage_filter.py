"""The filter that reads from an answer how many tokens it took, and passes the numbers to the log."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from moe_operator.gateway.discovered import LUA

USAGE = "moe.usage"  # dynamic metadata: "prompt", "completion", "cached" = tokens; "events" of a stream
SCRIPT = files("moe_operator.gateway").joinpath("usage_filter.lua").read_text()

Json = dict[str, Any]


def usage_filter() -> Json:
    """The filter in the listener; it does not depend on any intent."""
    script = f"local USAGE = {json.dumps(USAGE)}\n{SCRIPT}"
    return {
        "name": "moe.usage",
        "typed_config": {
            "@type": LUA,
            "default_source_code": {"inline_string": script},
            "stat_prefix": "usage",
        },
    }
