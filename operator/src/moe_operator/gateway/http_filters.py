"""The filters that a request meets, in this order; each says in its own module what it does.

A filter that refuses comes before those that cost more. Nothing here may depend on an intent: a filter's
settings that change at run time travel in the routes (``typed_per_filter_config``, metadata) or in a file of
their own (extension discovery), because a listener that changes is drained.
"""

from __future__ import annotations

from typing import Any

from moe_operator.gateway.discovered import FILTERS, placed
from moe_operator.gateway.request_limits import buffer_filter, limit_filter
from moe_operator.gateway.site import Site
from moe_operator.gateway.sources import source_filter
from moe_operator.gateway.usage_filter import usage_filter

READY_PATH = "/-/ready"  # answered by Envoy itself: 200, or 503 once it drains

Json = dict[str, Any]


def http_filters(site: Site) -> list[Json]:
    """Every HTTP filter of the listener."""
    return [
        _ready(),
        source_filter(),
        *(placed(file, site.xds) for file in FILTERS),  # who is asking, and may this key ask now
        buffer_filter(),
        limit_filter(),
        usage_filter(),
        _router(),
    ]


def _ready() -> Json:
    return {
        "name": "envoy.filters.http.health_check",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck",
            "pass_through_mode": False,
            "headers": [{"name": ":path", "string_match": {"exact": READY_PATH}}],
        },
    }


def _router() -> Json:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            "suppress_envoy_headers": True,
        },
    }
