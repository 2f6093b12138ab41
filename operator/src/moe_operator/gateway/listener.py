"""The one listener: how bytes of a client become a request, before any route is looked at.

Written once in the life of a pod: a listener that changes is drained, and draining cuts every stream that
outlives the drain time. So it depends on the site alone, and every number in it is a bound for all intents;
the intent's own limits are tighter and live in the routes.
"""

from __future__ import annotations

from typing import Any

from moe_operator.gateway.access_log import access_log_options, access_logs
from moe_operator.gateway.files import RDS, file_source
from moe_operator.gateway.http_filters import http_filters
from moe_operator.gateway.replies import LOCAL_REPLY_CONFIG
from moe_operator.gateway.request_headers import drop_spoofed
from moe_operator.gateway.request_limits import LARGEST_HEADER_BYTES
from moe_operator.gateway.routes import ROUTES
from moe_operator.gateway.site import Site
from moe_operator.gateway.tls import transport_socket
from moe_operator.gateway.tracing import tracing

LISTENER = "ingress"
LONGEST_IDLE_SECONDS = 3600  # before a route is known; the route's own limit replaces it
HEADERS_SECONDS = 10
MAX_HEADERS = 128

Json = dict[str, Any]


def listener(site: Site) -> Json:
    """``Listener`` of this pod."""
    return {
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": LISTENER,
        "address": site.listen.envoy,
        "filter_chains": [
            {
                **transport_socket(site.tls, site.xds),
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": _connection_manager(site),
                    }
                ],
            }
        ],
    }


def _connection_manager(site: Site) -> Json:
    return {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3."
        "HttpConnectionManager",
        "stat_prefix": LISTENER,
        "codec_type": "HTTP1",
        "rds": {"route_config_name": ROUTES, "config_source": file_source(site.xds, RDS)},
        "use_remote_address": True,
        # Nobody is internal: x-envoy-* headers of a client (time-outs, retries) are dropped.
        "internal_address_config": {"cidr_ranges": []},
        "generate_request_id": True,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "early_header_mutation_extensions": [drop_spoofed()],
        # A path is compared as it was sent: what would have to be decoded first is not an allowed one.
        "normalize_path": False,
        "merge_slashes": False,
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
        "max_request_headers_kb": LARGEST_HEADER_BYTES >> 10,
        "request_headers_timeout": f"{HEADERS_SECONDS}s",
        "request_timeout": f"{site.request_seconds:g}s",
        "stream_idle_timeout": f"{LONGEST_IDLE_SECONDS}s",
        "common_http_protocol_options": {
            "idle_timeout": f"{LONGEST_IDLE_SECONDS}s",
            "max_headers_count": MAX_HEADERS,
            "headers_with_underscores_action": "DROP_HEADER",  # to an engine a_b may be a-b
        },
        "access_log": access_logs(),
        "access_log_options": access_log_options(),
        **tracing(site.otlp),
        "local_reply_config": LOCAL_REPLY_CONFIG,
        "http_filters": http_filters(site),
    }
