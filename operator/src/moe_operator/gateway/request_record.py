"""What Envoy told about one request, as a value, and the tokens it stands for."""

from __future__ import annotations

from dataclasses import dataclass

from moe_operator.gateway.access_log import ENDED, FIELDS

UNKNOWN = "-"
CLIENT_LEFT = "DC"
ENGINE_FLAGS = frozenset({"UF", "UC", "UR", "UT", "UPE", "URX", "UH", "NC", "NR", "LR", "SI"})
REFUSALS = {
    "local_rate_limited": "requests_per_minute_exceeded",
    "reached_concurrency_limit": "too_many_concurrent_requests",
    "rbac_access_denied": "source_not_allowed",
    "request_payload_too_large": "request_too_large",
    "request_headers_too_large": "headers_too_large",
    "no_healthy_upstream": "no_engine_available",
    "overflow": "too_many_requests",
    "upstream_reset_before_response_started": "engine_unreachable",
    "http1.codec_error": "malformed_request",
}
"""How the reason begins in Envoy's words → the code of the error that the client reads."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, ended or still running; None and "" = not known."""

    ended: bool
    connection: int  # carries one request at a time
    started: float  # Unix seconds
    key_id: str
    revision: str
    status: int  # 0 = no answer
    refused: str  # code of the error that the gateway itself gave
    flags: frozenset[str]
    received_bytes: int
    prompt_tokens: int | None
    completion_tokens: int | None
    events: int  # of a stream, so far
    queue_seconds: float | None
    ttft_seconds: float | None
    duration_seconds: float

    @property
    def failed(self) -> bool:
        """Whether the client did not get what an engine owed it."""
        broken = bool(self.flags & ENGINE_FLAGS)
        return self.status >= 500 or (broken and not self.refused) or (self.status == 0 and not self.left)

    @property
    def left(self) -> bool:
        """Whether the client went before the end."""
        return CLIENT_LEFT in self.flags

    def tokens(self, bytes_per_token: int) -> int:
        """What the request took: as the engine says, or else estimated from what went over the wire.

        Without an estimate a client could read a whole stream, leave before its last event and pay nothing.
        """
        if self.prompt_tokens is not None or self.completion_tokens is not None:
            return (self.prompt_tokens or 0) + (self.completion_tokens or 0)
        if self.revision and (self.events or self.left):
            return self.events + self.received_bytes // bytes_per_token
        return 0


def parse(line: str) -> RequestRecord:
    """The record in one line of Envoy's; ValueError when it is none."""
    values = line.split("\t")
    if len(values) != len(FIELDS):
        raise ValueError(f"{len(values)} fields, not {len(FIELDS)}")
    field = dict(zip(FIELDS, ("" if value == UNKNOWN else value for value in values), strict=True))
    return RequestRecord(
        ended=field["kind"] == ENDED,
        connection=int(field["connection"]),
        started=float(field["started"]),
        key_id=field["key"],
        revision=field["revision"],
        status=int(field["status"] or 0),
        refused=field["refused"] or _refusal(field["details"]),
        flags=frozenset(filter(None, field["flags"].split(","))),
        received_bytes=int(field["received"] or 0),
        prompt_tokens=_count(field["prompt"]),
        completion_tokens=_count(field["completion"]),
        events=_count(field["events"]) or 0,
        queue_seconds=_seconds(field["queue"]),
        ttft_seconds=_seconds(field["ttft"]),
        duration_seconds=_seconds(field["duration"]) or 0.0,
    )


def _refusal(details: str) -> str:
    return next((code for start, code in REFUSALS.items() if details.startswith(start)), "")


def _count(text: str) -> int | None:
    return int(float(text)) if text else None


def _seconds(milliseconds: str) -> float | None:
    return int(milliseconds) / 1000 if milliseconds else None
