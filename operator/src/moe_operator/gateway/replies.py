"""What clients read when the gateway itself answers, in the shape OpenAI's clients parse.

The doctrine of the field: 429 = contended, 503 = nothing serves, both with ``Retry-After``. Two kinds of
answers: Envoy's own words, which rules of the listener put into shape (they never change at run time; the
one number that does, how long to wait, travels in the metadata of the route), and ours, which routes, the
request filter and the waiting room write in full and the listener passes on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

RETRY_AFTER_KEY = "retry_after"  # in the route's filter_metadata, namespace "moe"
_RETRY_AFTER = f"%METADATA(ROUTE:moe:{RETRY_AFTER_KEY})%"
_SOON = "1"
INVALID = "invalid_request_error"
UNAVAILABLE = "service_unavailable"
BUSY = "rate_limit_exceeded"

Json = dict[str, Any]


def error_body(message: str, kind: str, code: str) -> str:
    """The JSON text of one error."""
    return json.dumps({"error": error(message, kind, code)})


def error(message: str, kind: str, code: str) -> Json:
    """One error as OpenAI's API writes it."""
    return {"message": message, "type": kind, "param": None, "code": code}


@dataclass(frozen=True, slots=True)
class OwnReply:
    """An answer that a route gives."""

    status: int
    type: str
    code: str
    message: str

    @property
    def body(self) -> str:
        """JSON text."""
        return error_body(self.message, self.type, self.code)


PATH_NOT_ALLOWED = OwnReply(404, INVALID, "path_not_allowed", "This gateway does not serve that path.")
METHOD_NOT_ALLOWED = OwnReply(405, INVALID, "method_not_allowed", "This path is not served with that method.")
PREVIEW_REFUSED = OwnReply(
    403, INVALID, "preview_refused", "No revision of that name is on preview for this client."
)


@dataclass(frozen=True, slots=True)
class Reply:
    """One rule: which of Envoy's own answers, and what the client reads."""

    match: Json  # access-log filter
    status: int
    type: str
    code: str
    message: str
    retry_after: str = ""


def _flagged(*flags: str) -> Json:
    return {"response_flag_filter": {"flags": list(flags)}}


def _status(code: int, op: str = "EQ") -> Json:
    comparison = {"op": op, "value": {"default_value": code, "runtime_key": f"gateway.reply.{op}.{code}"}}
    return {"status_code_filter": {"comparison": comparison}}


def _said_by(*details: str) -> Json:
    """Answers whose response code details begin so: that is how Envoy names the author."""
    cel = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    expression = " || ".join(f"response.code_details.startsWith('{prefix}')" for prefix in details)
    return {
        "extension_filter": {
            "name": "envoy.access_loggers.extension_filters.cel",
            "typed_config": {"@type": f"type.googleapis.com/{cel}", "expression": expression},
        }
    }


REPLIES = (
    Reply(
        _status(400), 400, INVALID, "malformed_request",
        "This is not a request that the gateway can read.",
    ),
    Reply(
        _said_by("rbac_access_denied"), 403, INVALID, "source_not_allowed",
        "Clients of this network may not connect.",
    ),
    Reply(_status(403), 403, INVALID, "upgrade_refused", "This gateway does not switch protocols."),
    Reply(
        _status(408), 408, "timeout", "request_too_slow",
        "The request did not arrive within the time limit of the gateway.",
    ),
    Reply(
        _status(413), 413, INVALID, "request_too_large", "The request body is larger than this gateway takes."
    ),
    Reply(
        _status(431), 431, INVALID, "headers_too_large",
        "The request headers are larger than this gateway takes.",
    ),
    Reply(
        _flagged("OM"), 503, UNAVAILABLE, "gateway_overloaded",
        "The gateway has no memory for more.", _SOON,
    ),
    Reply(
        _flagged("UH", "NC"), 503, UNAVAILABLE, "no_engine_available",
        "No engine of this model serves right now.", _RETRY_AFTER,
    ),
    Reply(
        _said_by("local_rate_limited"), 429, BUSY, "requests_per_minute_exceeded",
        "This API key has used up its requests per minute.",
    ),
    Reply(
        _said_by("reached_concurrency_limit"), 429, BUSY, "too_many_concurrent_requests",
        "This API key has as many requests in flight as it may have.", _SOON,
    ),
    Reply(
        _flagged("UO"), 429, BUSY, "too_many_requests",
        "The engines of this model are busy and the queue is full.", _SOON,
    ),
    Reply(_flagged("UF"), 503, UNAVAILABLE, "engine_unreachable", "The engine could not be reached.", _SOON),
    Reply(
        _flagged("UC", "UR"), 502, "server_error", "engine_failed",
        "The engine ended the connection before it answered.",
    ),
    Reply(
        _flagged("SI", "UT"), 504, "timeout", "engine_silent",
        "The engine sent nothing within the idle limit of the gateway.",
    ),
)  # fmt: skip
"""First match wins; what matches nothing keeps its status and Envoy's own words."""

_OURS: Json = {"filter": _said_by("direct_response", "lua_response")}
_READY: Json = {
    "filter": _status(200),  # the only 200 that Envoy gives itself is its own readiness
    "body_format_override": {"json_format": {"status": "ready"}, "content_type": "application/json"},
}


def _mapper(reply: Reply) -> Json:
    mapper: Json = {
        "filter": reply.match,
        "status_code": reply.status,
        "body_format_override": _format(reply.message, reply.type, reply.code),
    }
    if reply.retry_after:
        header = {"key": "retry-after", "value": reply.retry_after}
        mapper["headers_to_add"] = [{"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]
    return mapper


def _format(message: str, kind: str, code: str) -> Json:
    return {"json_format": {"error": error(message, kind, code)}, "content_type": "application/json"}


_ANYTHING_ELSE: Json = {
    "filter": _status(0, "GE"),
    "body_format_override": _format("%LOCAL_REPLY_BODY%", "gateway_error", "%RESPONSE_CODE_DETAILS%"),
}

LOCAL_REPLY_CONFIG: Json = {
    "mappers": [_OURS, _READY, *(_mapper(reply) for reply in REPLIES), _ANYTHING_ELSE],
    "body_format": {
        "text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"},
        "content_type": "application/json",
    },
}
