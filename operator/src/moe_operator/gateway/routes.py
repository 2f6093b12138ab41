"""Which requests pass, and to which pool.

A path passes when it equals an allowed one byte for byte: nothing is decoded, merged or folded before it is
compared, so ``//``, ``%2e``, ``;``, ``\\`` and other spellings name no path at all. What passes is sent on
as it was compared, so an engine cannot see another path than the one that was allowed.

Everything here may change at any time: limits and allowed sources travel as settings of the routes, and the
filters in the listener only carry them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from moe_operator.api.intent import Intent, Preview
from moe_operator.gateway import request_limits, sources
from moe_operator.gateway.access_log import for_the_log
from moe_operator.gateway.cluster import LONG, OFF
from moe_operator.gateway.endpoints import ALL, METADATA, PREVIEW
from moe_operator.gateway.replies import (
    METHOD_NOT_ALLOWED,
    PATH_NOT_ALLOWED,
    PREVIEW_REFUSED,
    RETRY_AFTER_KEY,
    OwnReply,
)
from moe_operator.gateway.request_headers import KEY_ID, LANE, OURS, RECEIVED, REVISION_PREVIEW
from moe_operator.gateway.retries import FINAL, POLICY

ROUTES = "gateway"
VIRTUAL_HOST = "clients"
METHODS = ("GET", "HEAD", "POST", "OPTIONS")
ANY_KEY = "*"
REVISION_HEADER = "x-moe-revision"

Json = dict[str, Any]


def routes(intent: Intent | None) -> Json:
    """The route table; without an intent every path is let through to a cluster that has no engine."""
    matched = _unknown() if intent is None else list(_routes(intent))
    wanted = intent or Intent(generation=0, model="")
    return {
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "name": ROUTES,
        "virtual_hosts": [
            {
                "name": VIRTUAL_HOST,
                "domains": ["*"],
                "metadata": {"filter_metadata": {METADATA: for_the_log(wanted)}},
                # what may be sent may be sent again: a body is kept until an engine has answered
                "request_body_buffer_limit": wanted.limits.max_request_bytes,
                "retry_policy": POLICY,
                "typed_per_filter_config": {
                    **sources.settings(wanted.allowed_sources),
                    **request_limits.settings(wanted),
                },
                "request_headers_to_add": [_set(RECEIVED, "%START_TIME(%s%3f)%")],
                "request_headers_to_remove": [name for name in OURS if name != RECEIVED],
                "response_headers_to_add": [
                    _set(REVISION_HEADER, f"%UPSTREAM_METADATA({METADATA}:revision)%")
                ],
                "response_headers_to_remove": [FINAL],
                "routes": matched,
            }
        ],
    }


def _set(name: str, value: str) -> Json:
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _unknown() -> list[Json]:
    return [{"match": {"prefix": "/"}, "route": {"cluster": ALL, "timeout": OFF}}]


def _routes(intent: Intent) -> Iterator[Json]:
    """The first that matches counts."""
    yield _answer({"connect_matcher": {}}, METHOD_NOT_ALLOWED)
    if intent.preview:
        keys = _key_matchers(intent.preview)
        for path in intent.allowed_paths if keys is not None else ():
            named = _header(REVISION_PREVIEW, {"exact": intent.preview.revision})
            yield _to(intent, PREVIEW, _match(path, named, *keys or ()))
    yield _answer({"prefix": "/", "headers": [_present(REVISION_PREVIEW)]}, PREVIEW_REFUSED)
    for path in intent.allowed_paths:
        yield _to(intent, LONG, _match(path, _header(LANE, {"exact": LONG})))
        yield _to(intent, ALL, _match(path))
        yield _answer({"path": path}, METHOD_NOT_ALLOWED)
    yield _answer({"prefix": "/"}, PATH_NOT_ALLOWED)


def _key_matchers(preview: Preview) -> list[Json] | None:
    """What else a request for a preview must show; None when nobody may look."""
    ids = preview.allowed_key_ids
    if ANY_KEY in ids:
        return []
    if not ids:
        return None
    return [_header(KEY_ID, {"safe_regex": {"regex": "|".join(map(re.escape, ids))}})]


def _match(path: str, *headers: Json) -> Json:
    method = _header(":method", {"safe_regex": {"regex": "|".join(METHODS)}})
    return {"path": path, "headers": [method, *headers]}


def _header(name: str, matcher: Json) -> Json:
    return {"name": name, "string_match": matcher}


def _present(name: str) -> Json:
    return {"name": name, "present_match": True}


def _to(intent: Intent, cluster: str, match: Json) -> Json:
    affinity = intent.affinity_header
    hashed = {"hash_policy": [{"header": {"header_name": affinity}}]} if affinity else {}
    return {
        "match": match,
        "metadata": {
            "filter_metadata": {
                METADATA: {RETRY_AFTER_KEY: str(intent.retry_after_seconds)},
                **request_limits.metadata(intent, match["path"]),
            }
        },
        "route": {
            "cluster": cluster,
            "timeout": OFF,
            "idle_timeout": f"{idle_seconds(intent)}s",
            **hashed,
        },
    }


def idle_seconds(intent: Intent) -> int:
    """Envoy has one idle clock per stream: it outlasts waiting, then the first byte; or a gap in a stream."""
    timeouts = intent.timeouts
    return max(intent.queue.hold_seconds + timeouts.first_byte_seconds, timeouts.idle_seconds)


def _answer(match: Json, reply: OwnReply) -> Json:
    return {
        "match": match,
        "typed_per_filter_config": request_limits.unread(),
        "direct_response": {"status": reply.status, "body": {"inline_string": reply.body}},
    }
