"""Two records of every request: a line for people, and numbers for the agent.

The line is JSON on the container's standard output: who asked for what, who answered, how long it took; never
a body, a query or a credential. The kubelet rotates it. It can be switched off in the intent, which the
routes carry.

The numbers go to the agent over a Unix socket, which Envoy never waits for: while nobody reads, it keeps up
to :data:`HELD_BYTES` for each worker, and counts what it drops. A request that takes long is told every
:data:`PROGRESS_SECONDS`, so that streams are seen, and charged, while they run.
"""

from __future__ import annotations

from typing import Any

from moe_operator.api.intent import Intent
from moe_operator.api.names import digest
from moe_operator.gateway.endpoints import METADATA
from moe_operator.gateway.key_filter import CLIENT
from moe_operator.gateway.usage_filter import USAGE

AGENT_CLUSTER = "agent"
HELD_BYTES = 1 << 20
FLUSH_SECONDS = 0.1
PROGRESS_SECONDS = 1
MODEL_KEY = "model"  # in the virtual host's metadata
AUDIT_KEY = "audit"
OFF = "off"
TYPE = "type.googleapis.com/envoy.extensions.access_loggers"

ENDED = "DownstreamEnd"
RUNNING = "DownstreamPeriodic"

Json = dict[str, Any]

LINE: Json = {
    "time": "%START_TIME%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "traceparent": "%REQ(TRACEPARENT)%",
    "source": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "client_certificate": "%DOWNSTREAM_PEER_SUBJECT%",
    "key_id": f"%DYNAMIC_METADATA({CLIENT}:key)%",
    "model": f"%METADATA(VIRTUAL_HOST:{METADATA}:{MODEL_KEY})%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ:PATH)%",
    "status": "%RESPONSE_CODE%",
    "refused": f"%DYNAMIC_METADATA({CLIENT}:refused)%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "revision": f"%UPSTREAM_METADATA({METADATA}:revision)%",
    "pod": f"%UPSTREAM_METADATA({METADATA}:pod)%",
    "upstream": "%UPSTREAM_HOST%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "bytes_in": "%BYTES_RECEIVED%",
    "bytes_out": "%BYTES_SENT%",
    "prompt_tokens": f"%DYNAMIC_METADATA({USAGE}:prompt)%",
    "completion_tokens": f"%DYNAMIC_METADATA({USAGE}:completion)%",
    "cached_tokens": f"%DYNAMIC_METADATA({USAGE}:cached)%",
    "queue_ms": "%COMMON_DURATION(DS_RX_END:US_TX_BEG:ms)%",
    "ttft_ms": "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:ms)%",
    "duration_ms": "%DURATION%",
}

FIELDS: dict[str, str] = {
    "kind": "%ACCESS_LOG_TYPE%",
    "connection": "%CONNECTION_ID%",
    "started": "%START_TIME(%s.%6f)%",
    "key": f"%DYNAMIC_METADATA({CLIENT}:key)%",
    "revision": f"%UPSTREAM_METADATA({METADATA}:revision)%",
    "status": "%RESPONSE_CODE%",
    "refused": f"%DYNAMIC_METADATA({CLIENT}:refused)%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "received": "%BYTES_RECEIVED%",
    "prompt": f"%DYNAMIC_METADATA({USAGE}:prompt)%",
    "completion": f"%DYNAMIC_METADATA({USAGE}:completion)%",
    "events": f"%DYNAMIC_METADATA({USAGE}:events)%",
    "queue": "%COMMON_DURATION(DS_RX_END:US_TX_BEG:ms)%",
    "ttft": "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:ms)%",
    "duration": "%DURATION%",
}
"""What the agent gets to know, in this order, parted by tabs; ``-`` = not known."""


def for_the_log(intent: Intent) -> dict[str, str]:
    """Metadata of the virtual host that the log reads."""
    return {MODEL_KEY: intent.model, AUDIT_KEY: "on" if intent.audit else OFF}


def access_logs() -> list[Json]:
    """The logs of the connection manager."""
    return [
        {
            "name": "envoy.access_loggers.stdout",
            "filter": _all(_not_health_check(), _of_kind(ENDED), _audited()),
            "typed_config": {
                "@type": f"{TYPE}.stream.v3.StdoutAccessLog",
                "log_format": {"json_format": LINE},
            },
        },
        {
            "name": "envoy.access_loggers.fluentd",
            "filter": _all(_not_health_check(), _of_kind(ENDED, RUNNING)),
            "typed_config": {
                "@type": f"{TYPE}.fluentd.v3.FluentdAccessLogConfig",
                "cluster": AGENT_CLUSTER,
                "tag": "requests",
                "stat_prefix": AGENT_CLUSTER,
                "buffer_flush_interval": f"{FLUSH_SECONDS}s",
                "buffer_size_bytes": HELD_BYTES,
                "retry_options": {"backoff_options": {"base_interval": "0.1s", "max_interval": "1s"}},
                "record": {"line": "\t".join(FIELDS.values())},
            },
        },
    ]


def access_log_options() -> Json:
    """Of the connection manager: when else than at its end a request is told."""
    return {"access_log_flush_interval": f"{PROGRESS_SECONDS}s"}


def agent_socket(xds: str) -> str:
    """The abstract name of the socket: no permissions, no clean-up, no path that could be too long."""
    return f"moe-gateway-{digest(xds, 16)}"


def agent_cluster(xds: str) -> Json:
    """Where the numbers go; part of the bootstrap."""
    address = {"pipe": {"path": f"@{agent_socket(xds)}"}}
    return {
        "name": AGENT_CLUSTER,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": AGENT_CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def _all(*filters: Json) -> Json:
    return {"and_filter": {"filters": list(filters)}}


def _not_health_check() -> Json:
    return {"not_health_check_filter": {}}


def _of_kind(*kinds: str) -> Json:
    return {"log_type_filter": {"types": list(kinds)}}


def _audited() -> Json:
    cel = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    host = "xds.virtual_host_metadata"  # there is none for what is no request
    return {
        "extension_filter": {
            "name": "envoy.access_loggers.extension_filters.cel",
            "typed_config": {
                "@type": f"type.googleapis.com/{cel}",
                "expression": f"!has({host}) || "
                f"{host}.filter_metadata['{METADATA}']['{AUDIT_KEY}'] != '{OFF}'",
            },
        }
    }
