"""The one cluster of all engines: how Envoy picks, checks, ejects and connects to them."""

from __future__ import annotations

from typing import Any

CLUSTER = "all"
OFF = "0s"
ENGINE_KEEP_ALIVE_SECONDS = 5  # vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE
UPSTREAM_IDLE_SECONDS = ENGINE_KEEP_ALIVE_SECONDS - 1  # we close first, so no request meets a closing socket
HEALTH_INTERVAL_SECONDS = 1
HEALTH_TIMEOUT_SECONDS = 3
UNHEALTHY_AFTER = 3  # checks; an engine that is busy is not dead (sglang#22511)
MAX_CONNECTIONS = 16384  # per cluster; Envoy's own default of 1024 would queue streams

Json = dict[str, Any]


def cluster(eds_source: Json) -> Json:
    """The cluster whose endpoints come from ``eds_source``; nothing in it depends on an intent."""
    return {
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": CLUSTER,
        "type": "EDS",
        "eds_cluster_config": {"service_name": CLUSTER, "eds_config": eds_source},
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
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
        "circuit_breakers": {"thresholds": [_threshold()]},
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
        "max_ejection_percent": 50,
    }


def _threshold() -> Json:
    return {
        "max_connections": MAX_CONNECTIONS,
        "max_pending_requests": MAX_CONNECTIONS,
        "max_requests": MAX_CONNECTIONS,
        "track_remaining": True,
        "retry_budget": {"budget_percent": {"value": 20}, "min_retry_concurrency": 100},
    }
