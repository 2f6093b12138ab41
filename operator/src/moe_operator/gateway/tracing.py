"""Traces: what clients send travels on; what the gateway adds leaves by OTLP where an address is given.

``traceparent`` and ``tracestate`` are passed to the engine untouched while nothing is exported. With an
exporter the gateway becomes a span of the client's trace, or starts one, and names itself as the parent.
"""

from __future__ import annotations

from typing import Any

from moe_operator.gateway.address import Address

CLUSTER = "otlp"
SERVICE = "moe-gateway"

Json = dict[str, Any]


def tracing(endpoint: Address | None) -> Json:
    """The part of the connection manager, to be merged into it; nothing without ``endpoint``."""
    if endpoint is None:
        return {}
    exporter = {
        "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
        "grpc_service": {"envoy_grpc": {"cluster_name": CLUSTER}, "timeout": "1s"},
        "service_name": SERVICE,
    }
    return {
        "tracing": {
            "provider": {"name": "envoy.tracers.opentelemetry", "typed_config": exporter},
            "spawn_upstream_span": True,
        }
    }


def otlp_cluster(endpoint: Address) -> Json:
    """Where spans go; part of the bootstrap."""
    protocol = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": CLUSTER,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": endpoint.envoy}}]}],
        },
        "typed_extension_protocol_options": {
            protocol: {
                "@type": f"type.googleapis.com/{protocol}",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
    }
