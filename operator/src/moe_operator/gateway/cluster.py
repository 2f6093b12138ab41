"""The clusters: how Envoy picks, checks, ejects and connects to engines.

``all`` and ``long`` are the same hosts under two circuit breakers, so that long prompts have a pool of their
own; ``preview`` is the revision that only chosen clients reach. A cluster that changes is replaced while its
connections run on, so limits may sit here; the counts of what runs start anew with it.
"""

from __future__ import annotations

from typing import Any

from moe_operator.api.intent import Intent
from moe_operator.gateway.endpoints import ALL, PREVIEW
from moe_operator.gateway.files import EDS, EDS_PREVIEW, file_source

LONG = "long"
CLUSTERS = (ALL, LONG, PREVIEW)
OFF = "0s"
ENGINE_KEEP_ALIVE_SECONDS = 5  # vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE
UPSTREAM_IDLE_SECONDS = ENGINE_KEEP_ALIVE_SECONDS - 1  # we close first, so no request meets a closing socket
HEALTH_INTERVAL_SECONDS = 1
HEALTH_TIMEOUT_SECONDS = 3
UNHEALTHY_AFTER = 3  # checks; an engine that is busy is not dead (sglang#22511)
MAX_CONNECTIONS = 16384  # per cluster; Envoy's own default of 1024 would queue streams
RETRIES_BESIDE_THE_ROOM = 100  # at once; every request that leaves the waiting room is a retry, too

Json = dict[str, Any]


def clusters(intent: Intent, xds: str) -> list[Json]:
    """Every cluster that a route may name; all of them always exist."""
    retries = intent.queue.max_waiting + RETRIES_BESIDE_THE_ROOM
    long = intent.long_context.max_concurrent if intent.long_context else MAX_CONNECTIONS
    engines, preview = file_source(xds, EDS), file_source(xds, EDS_PREVIEW)
    balanced = _balancing(intent.affinity_header)
    return [
        _cluster(ALL, ALL, engines, _threshold(MAX_CONNECTIONS, retries)) | balanced,
        _cluster(LONG, ALL, engines, _threshold(long, retries)) | balanced,
        _cluster(PREVIEW, PREVIEW, preview, _threshold(MAX_CONNECTIONS, RETRIES_BESIDE_THE_ROOM)) | balanced,
    ]


def _balancing(affinity_header: str) -> Json:
    """By load; or, with affinity, by a hash that moves only the sessions of a host that went away."""
    return {"lb_policy": "MAGLEV" if affinity_header else "LEAST_REQUEST"}


def _cluster(name: str, service: str, source: Json, threshold: Json) -> Json:
    return {
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"service_name": service, "eds_config": source},
        "connect_timeout": "1s",
        "common_lb_config": {
            "healthy_panic_threshold": {"value": 0},
            "locality_weighted_lb_config": {},
            "ignore_new_hosts_until_first_hc": True,
            # By default workers learn of a host's health up to a second after the admin interface says it.
            "update_merge_window": OFF,
        },
        # Without it a host that left but still passes its checks would be served forever.
        "ignore_health_on_host_removal": True,
        "health_checks": [_health_check()],
        "outlier_detection": _outlier_detection(),
        "circuit_breakers": {"thresholds": [threshold]},
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3}
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"idle_timeout": f"{UPSTREAM_IDLE_SECONDS}s"},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
    }


def _health_check() -> Json:
    interval = f"{HEALTH_INTERVAL_SECONDS}s"
    return {
        "timeout": f"{HEALTH_TIMEOUT_SECONDS}s",
        "interval": interval,
        "no_traffic_interval": interval,  # Envoy's own default is a minute
        "unhealthy_threshold": UNHEALTHY_AFTER,
        "healthy_threshold": 1,
        "http_health_check": {
            "path": "/health",
            # Otherwise one 5xx ejects at once, whatever the threshold says.
            "retriable_statuses": [{"start": 500, "end": 600}],
        },
    }


def _outlier_detection() -> Json:
    """Only what the proxy itself sees (connect, reset): no answer of an engine ejects it (sglang#25811)."""
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_success_rate": 0,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "interval": "1s",
        "base_ejection_time": "5s",
        "max_ejection_time": "30s",
        # all of them, if none can be connected to: a request then waits until the next good check
        "max_ejection_percent": 100,
    }


def _threshold(max_requests: int, retries: int) -> Json:
    return {
        "max_connections": MAX_CONNECTIONS,
        "max_pending_requests": MAX_CONNECTIONS,
        "max_requests": max_requests,
        "track_remaining": True,
        "retry_budget": {"budget_percent": {"value": 20}, "min_retry_concurrency": retries},
    }
