"""What clients read when Envoy itself answers, in the shape OpenAI's clients parse.

The doctrine of the field: 429 = contended, 503 = nothing serves, both with ``Retry-After``. The rules are
part of the listener and so never change at run time; the one number that does change, how long to wait,
travels in the metadata of the route.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RETRY_AFTER_KEY = "retry_after"  # in the route's filter_metadata, namespace "moe"
_RETRY_AFTER = f"%METADATA(ROUTE:moe:{RETRY_AFTER_KEY})%"
_SOON = "1"

Json = dict[str, Any]


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


def _status(code: int) -> Json:
    comparison = {"op": "EQ", "value": {"default_value": code, "runtime_key": f"gateway.reply.{code}"}}
    return {"status_code_filter": {"comparison": comparison}}


REPLIES = (
    Reply(
        _flagged("UH", "NC"), 503, "service_unavailable", "no_engine_available",
        "No engine of this model serves right now.", _RETRY_AFTER,
    ),
    Reply(
        _flagged("UO"), 429, "rate_limit_exceeded", "too_many_requests",
        "The engines of this model are busy and the queue is full.", _SOON,
    ),
    Reply(
        _flagged("UF"), 503, "service_unavailable", "engine_unreachable",
        "The engine could not be reached.", _SOON,
    ),
    Reply(
        _flagged("UC", "UR"), 502, "server_error", "engine_failed",
        "The engine ended the connection before it answered.",
    ),
    Reply(
        _flagged("SI", "UT"), 504, "timeout", "engine_silent",
        "The engine sent nothing within the idle limit of the gateway.",
    ),
    Reply(
        _status(404), 404, "invalid_request_error", "path_not_allowed",
        "This gateway does not serve that path.",
    ),
)  # fmt: skip
"""First match wins; what matches nothing keeps its status and Envoy's own words."""


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
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"json_format": {"error": error}, "content_type": "application/json"}


_READY: Json = {
    "filter": _status(200),  # the only 200 that Envoy gives itself is its own readiness
    "body_format_override": {"json_format": {"status": "ready"}, "content_type": "application/json"},
}

LOCAL_REPLY_CONFIG: Json = {
    "mappers": [_READY, *(_mapper(reply) for reply in REPLIES)],
    "body_format": _format("%LOCAL_REPLY_BODY%", "gateway_error", "%RESPONSE_CODE_DETAILS%"),
}
