"""HTTP filters whose whole configuration is a file of its own: it may change while streams run.

The listener only says where the file is. A request that meets a filter whose file Envoy has not read yet
is answered with 500: without its filters the gateway is closed, not open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from moe_operator.api.names import digest
from moe_operator.gateway.files import file_source

KEYS = "keys.json"  # who is asking
RATE = "rate.json"  # requests per minute
CONCURRENCY = "concurrency.json"  # requests in flight
QUOTA = "quota.json"  # keys that have used up their tokens
V3 = "type.googleapis.com/envoy.extensions.filters.http"
LUA = f"{V3}.lua.v3.Lua"
NOTHING = f"{V3}.header_mutation.v3.HeaderMutation"
RATE_LIMIT = f"{V3}.local_ratelimit.v3.LocalRateLimit"
MATCHER = "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher"

FILTERS: Mapping[str, str] = {KEYS: LUA, QUOTA: LUA, RATE: RATE_LIMIT, CONCURRENCY: MATCHER}
"""File → what it configures, in the order in which a request meets them."""
OF_AN_INTENT = (KEYS, RATE, CONCURRENCY)  # must be in force before its routes count as applied

Json = dict[str, Any]

PASS: Json = {"@type": NOTHING, "mutations": {}}
"""A filter that does nothing."""


def name_of(file: str) -> str:
    """The filter's name, in the listener and in Envoy's statistics."""
    return f"moe.{file.removesuffix('.json')}"


def placed(file: str, xds: str) -> Json:
    """The filter's place in the listener."""
    return {
        "name": name_of(file),
        "config_discovery": {
            "config_source": file_source(xds, file),
            "type_urls": [FILTERS[file], NOTHING],
        },
    }


def delivered(file: str, config: Json) -> str:
    """The text of the file; its version says nothing of an intent: what does not change is not written."""
    resource = {
        "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        "name": name_of(file),
        "typed_config": config,
    }
    body = json.dumps(resource)  # on one line: with 10,000 keys that is twenty times as fast
    return f'{{"version_info": "{digest(body, 12)}", "resources": [{body}]}}\n'


def lua(file: str, *source: str) -> Json:
    """A filter that runs the script made of ``source``."""
    script = "\n".join(source)
    return {
        "@type": LUA,
        "default_source_code": {"inline_string": script},
        "stat_prefix": file.removesuffix(".json"),
    }
