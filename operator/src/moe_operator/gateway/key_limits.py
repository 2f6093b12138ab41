"""What one key may ask for: requests per minute and requests in flight, both counted in the proxy.

Numbers are those of one gateway pod: its keys are not known to the other pods, so the operator divides what
the deployment allows by the number of pods.

Requests per minute are a bucket per key that holds a minute's worth and fills evenly. Requests in flight are
counters that Envoy keeps exactly: its filter for adaptive concurrency, held at a fixed limit, one for each
slot (see :mod:`slots`) and one for each key with a limit of its own. A counter falls when its request ends in
whatever way. Envoy starts the counters anew when a limit changes or when the number of slots doubles;
requests that run at that moment are no longer counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from moe_operator.api.intent import Intent
from moe_operator.gateway.discovered import MATCHER, PASS, RATE_LIMIT, V3
from moe_operator.gateway.request_headers import KEY_ID, SLOT

MINUTE = 60
KEYS_AT_ONCE = 32_768  # buckets that Envoy keeps; the one unused for longest is forgotten first
UNLIMITED = 1_000_000_000
DAY = "86400s"  # between two computations of a limit that cannot change

Json = dict[str, Any]


def rate_filter(intent: Intent) -> Json:
    """Requests per minute; a key without a limit passes."""
    own = {key.key_id: key.requests_per_minute for key in intent.key_limits if key.requests_per_minute}
    common = intent.limits.requests_per_minute_per_key
    if not intent.keys or not (own or common):
        return PASS
    buckets = [_bucket(limit, key_id) for key_id, limit in own.items()]
    if common:
        buckets.append(_bucket(common))
    slowest = min((*own.values(), *([common] if common else ())))
    everybody = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    action = {"request_headers": {"header_name": KEY_ID, "descriptor_key": KEY_ID}}
    return {
        "@type": RATE_LIMIT,
        "stat_prefix": "keys",
        "token_bucket": _tokens(UNLIMITED),
        "filter_enabled": {"runtime_key": "gateway.rate.enabled", **everybody},
        "filter_enforced": {"runtime_key": "gateway.rate.enforced", **everybody},
        "rate_limits": [{"actions": [action]}],
        "descriptors": buckets,
        "always_consume_default_token_bucket": False,
        "max_dynamic_descriptors": KEYS_AT_ONCE,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "response_headers_to_add": [
            {"header": {"key": "retry-after", "value": str(math.ceil(MINUTE / slowest))}}
        ],
    }


def _bucket(per_minute: int, key_id: str = "") -> Json:
    value = {"value": key_id} if key_id else {}  # without a value: a bucket of its own for every other key
    return {"entries": [{"key": KEY_ID, **value}], "token_bucket": _tokens(per_minute)}


def _tokens(per_minute: int) -> Json:
    return {"max_tokens": per_minute, "tokens_per_fill": per_minute, "fill_interval": f"{MINUTE}s"}


def counts(intent: Intent) -> bool:
    """Whether keys have a limit of requests in flight that slots are needed for."""
    return bool(intent.keys and intent.limits.concurrent_per_key)


def concurrency_filter(intent: Intent, slots: int) -> Json:
    """Requests in flight; ``slots`` = how many counters the keys without a limit of their own need."""
    if not intent.keys:
        return PASS
    own = {key.key_id: _counted(key.concurrent) for key in intent.key_limits if key.concurrent}
    common = intent.limits.concurrent_per_key
    shared = dict.fromkeys(map(str, range(slots)), _counted(common)) if common else {}
    matcher = _first_of(_tree(KEY_ID, own), _tree(SLOT, shared))
    if matcher is None:
        return PASS
    return {
        "@type": MATCHER,
        "extension_config": {
            "name": "envoy.filters.http.composite",
            "typed_config": {"@type": f"{V3}.composite.v3.Composite"},
        },
        "xds_matcher": matcher,
    }


def _first_of(first: Json | None, second: Json | None) -> Json | None:
    if first is None or second is None:
        return first or second
    return {**first, "on_no_match": {"matcher": second}}


def _tree(header: str, counted: Mapping[str, Json]) -> Json | None:
    if not counted:
        return None
    kind = "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
    return {
        "matcher_tree": {
            "input": {"name": header, "typed_config": {"@type": kind, "header_name": header}},
            "exact_match_map": {"map": dict(counted)},
        }
    }


def _counted(limit: int) -> Json:
    filter_config = {"name": "counter", "typed_config": _counter(limit)}
    execute = {"@type": f"{V3}.composite.v3.ExecuteFilterAction", "typed_config": filter_config}
    return {"action": {"name": "count", "typed_config": execute}}


def _counter(limit: int) -> Json:
    """Lets ``limit`` requests run at once; lowest and highest limit are the same, so it never adapts."""
    return {
        "@type": f"{V3}.adaptive_concurrency.v3.AdaptiveConcurrency",
        "gradient_controller_config": {
            "concurrency_limit_params": {"max_concurrency_limit": limit, "concurrency_update_interval": DAY},
            "min_rtt_calc_params": {"fixed_value": "1s", "min_concurrency": limit},
        },
        "concurrency_limit_exceeded_status": {"code": "TooManyRequests"},
    }
