"""The Envoy configuration that an intent means.

Two halves with different lives. What :func:`render_site` makes (bootstrap and listener) depends on the
pod alone and is written once: a listener that changes is drained, and draining cuts every stream that
outlives the drain time. What :func:`render_intent` makes (endpoints, cluster, routes) may be swapped at
any moment by rename(2) and never touches a connection.

Colours are weighted localities of the one cluster ``all``, not weighted clusters: when every host of a
colour is dead its share moves to the others inside the proxy. Weight 0 leaves ``load_balancing_weight``
out (Envoy refuses a zero): such hosts stay health-checked and take over once no weighted host is healthy.

Invariants: pure; equal input gives equal bytes; every file carries a version that starts with the
intent's generation, so reading one version back says which intent Envoy runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from moe_operator.api.intent import Colour, Endpoint, Intent
from moe_operator.api.names import digest
from moe_operator.gateway.cluster import CLUSTER, OFF, cluster
from moe_operator.gateway.replies import LOCAL_REPLY_CONFIG, RETRY_AFTER_KEY

BOOTSTRAP = "bootstrap.json"
LDS = "lds.json"
EDS = "eds.json"
CDS = "cds.json"
RDS = "rds.json"
DYNAMIC_FILES = (EDS, CDS, RDS)  # in the order they are written: make before break

ROUTES = "gateway"
LISTENER = "ingress"
READY_PATH = "/-/ready"  # answered by Envoy itself: 200, or 503 once it drains
METADATA = "moe"  # filter_metadata namespace of endpoints and routes

MAX_DOWNSTREAM_CONNECTIONS = 32768
MAX_REPLAYED_BODY_BYTES = 16 << 20  # a longer body is sent, but not sent again to another engine
LONGEST_IDLE_SECONDS = 3600  # before a route is known; the route's own limit replaces it
KEEP_SHARE_WHILE_ONE_IS_HEALTHY = 1_000_000  # overprovisioning factor, percent
NO_INTENT = "none"  # version prefix while no intent is known

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a socket listens or an admin interface answers."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """``host:port`` or ``[v6]:port``; ValueError names what is wrong."""
        host, separator, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not separator or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(host, int(port))

    @property
    def envoy(self) -> Json:
        """As Envoy's ``core.v3.Address``."""
        return {"socket_address": {"address": self.host, "port_value": self.port}}

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Site:
    """What one gateway pod is born with and keeps until it ends."""

    xds: str  # absolute directory that Envoy and its agent share
    listen: Address
    admin: Address


def render(intent: Intent | None, site: Site) -> dict[str, str]:
    """File name → JSON text of everything Envoy reads."""
    return render_site(site) | render_intent(intent, site.xds)


def render_site(site: Site) -> dict[str, str]:
    """``bootstrap.json`` and ``lds.json``: the same for every intent."""
    return {BOOTSTRAP: _text(_bootstrap(site)), LDS: _discovery("site", _listener(site))}


def render_intent(intent: Intent | None, xds: str) -> dict[str, str]:
    """``eds.json``, ``cds.json`` and ``rds.json``, in the order they must be written.

    ``None`` (no intent known yet) serves nothing: every path answers 503, no version carries a generation.
    """
    prefix = NO_INTENT if intent is None else str(intent.generation)
    wanted = intent or Intent(generation=0, model="", allowed_paths=["/*"])
    return {
        EDS: _discovery(prefix, _assignment(wanted)),
        CDS: _discovery(prefix, cluster(_file_source(xds, EDS))),
        RDS: _discovery(prefix, _routes(wanted)),
    }


def version_of(text: str) -> str:
    """The version that a rendered discovery file carries."""
    return str(json.loads(text)["version_info"])


def generation_of(version: str) -> int:
    """The intent generation a version was rendered from; -1 for a version that carries none."""
    head = version.partition("-")[0]
    return int(head) if head.isdigit() else -1


def _discovery(prefix: str, resource: Json) -> str:
    version = f"{prefix}-{digest(_text(resource), 12)}"
    return _text({"version_info": version, "resources": [resource]})


def _text(value: Json) -> str:
    return json.dumps(value, indent=1, sort_keys=False) + "\n"


def _file_source(xds: str, name: str) -> Json:
    return {"path_config_source": {"path": f"{xds}/{name}"}, "resource_api_version": "V3"}


def _bootstrap(site: Site) -> Json:
    return {
        "node": {"id": "moe-gateway", "cluster": "moe-gateway"},
        "admin": {"address": site.admin.envoy},
        "dynamic_resources": {
            "lds_config": _file_source(site.xds, LDS),
            "cds_config": _file_source(site.xds, CDS),
        },
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.resource_monitors."
                        "downstream_connections.v3.DownstreamConnectionsConfig",
                        "max_active_downstream_connections": MAX_DOWNSTREAM_CONNECTIONS,
                    },
                }
            ]
        },
    }


def _listener(site: Site) -> Json:
    return {
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": LISTENER,
        "address": site.listen.envoy,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": _connection_manager(site),
                    }
                ]
            }
        ],
    }


def _connection_manager(site: Site) -> Json:
    return {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3."
        "HttpConnectionManager",
        "stat_prefix": LISTENER,
        "codec_type": "HTTP1",
        "rds": {"route_config_name": ROUTES, "config_source": _file_source(site.xds, RDS)},
        "use_remote_address": True,
        # Nobody is internal: x-envoy-* headers of a client (time-outs, retries) are dropped.
        "internal_address_config": {"cidr_ranges": []},
        "generate_request_id": True,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "request_headers_timeout": "10s",
        "stream_idle_timeout": f"{LONGEST_IDLE_SECONDS}s",
        "common_http_protocol_options": {"idle_timeout": f"{LONGEST_IDLE_SECONDS}s"},
        "access_log": [_access_log()],
        "local_reply_config": LOCAL_REPLY_CONFIG,
        "http_filters": [_ready_filter(), _router_filter()],
    }


def _ready_filter() -> Json:
    return {
        "name": "envoy.filters.http.health_check",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck",
            "pass_through_mode": False,
            "headers": [{"name": ":path", "string_match": {"exact": READY_PATH}}],
        },
    }


def _router_filter() -> Json:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            "suppress_envoy_headers": True,
        },
    }


def _access_log() -> Json:
    """One JSON line per request: who, where, how long; never a body, a query or a credential."""
    return {
        "name": "envoy.access_loggers.stdout",
        "filter": {"not_health_check_filter": {}},
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {
                "json_format": {
                    "time": "%START_TIME%",
                    "request_id": "%REQ(X-REQUEST-ID)%",
                    "source": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
                    "method": "%REQ(:METHOD)%",
                    "path": "%PATH(NQ:PATH)%",
                    "status": "%RESPONSE_CODE%",
                    "details": "%RESPONSE_CODE_DETAILS%",
                    "flags": "%RESPONSE_FLAGS%",
                    "revision": f"%UPSTREAM_METADATA({METADATA}:revision)%",
                    "pod": f"%UPSTREAM_METADATA({METADATA}:pod)%",
                    "upstream": "%UPSTREAM_HOST%",
                    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                    "bytes_in": "%BYTES_RECEIVED%",
                    "bytes_out": "%BYTES_SENT%",
                    "queue_ms": "%COMMON_DURATION(DS_RX_END:US_TX_BEG:ms)%",
                    "ttfb_ms": "%COMMON_DURATION(DS_RX_BEG:DS_TX_BEG:ms)%",
                    "duration_ms": "%DURATION%",
                }
            },
        },
    }


def _assignment(intent: Intent) -> Json:
    localities = [_locality(colour) for colour in intent.colours if colour.endpoints]
    return {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": CLUSTER,
        "endpoints": localities,
        "policy": {"overprovisioning_factor": KEEP_SHARE_WHILE_ONE_IS_HEALTHY},
    }


def _locality(colour: Colour) -> Json:
    weight = {"load_balancing_weight": colour.weight} if colour.weight else {}
    hosts = [_host(colour.revision, endpoint) for endpoint in colour.endpoints]
    return {"locality": {"zone": colour.revision}, **weight, "lb_endpoints": hosts}


def _host(revision: str, endpoint: Endpoint) -> Json:
    # DRAINING: no new requests; Envoy keeps the host, and with it the count of what still runs on it
    leaving = {"health_status": "DRAINING"} if endpoint.leaving else {}
    return {
        **leaving,
        "endpoint": {"address": Address(endpoint.address, endpoint.port).envoy},
        "metadata": {"filter_metadata": {METADATA: {"revision": revision, "pod": endpoint.pod}}},
    }


def _routes(intent: Intent) -> Json:
    return {
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "name": ROUTES,
        "virtual_hosts": [
            {
                "name": LISTENER,
                "domains": ["*"],
                "request_body_buffer_limit": MAX_REPLAYED_BODY_BYTES,
                "retry_policy": _retry_policy(),
                "response_headers_to_add": [
                    {
                        "header": {
                            "key": "x-moe-revision",
                            "value": f"%UPSTREAM_METADATA({METADATA}:revision)%",
                        },
                        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                    }
                ],
                "routes": [*(_route(intent, path) for path in intent.allowed_paths), _not_found()],
            }
        ],
    }


def _route(intent: Intent, path: str) -> Json:
    timeouts = intent.timeouts
    return {
        "match": _match(path),
        "metadata": {"filter_metadata": {METADATA: {RETRY_AFTER_KEY: str(intent.retry_after_seconds)}}},
        "route": {
            "cluster": CLUSTER,
            "timeout": OFF,
            # Envoy has one idle clock per stream; it must outlast the slower of the two silences.
            "idle_timeout": f"{max(timeouts.first_byte_seconds, timeouts.idle_seconds)}s",
        },
    }


def _match(path: str) -> Json:
    """``/a/*`` is everything below ``/a``; anything else is exactly that path."""
    if path.endswith("/*"):
        return {"prefix": path.removesuffix("*")}
    return {"path": path}


def _not_found() -> Json:
    return {"match": {"prefix": "/"}, "direct_response": {"status": 404}}


def _retry_policy() -> Json:
    """Only what no engine can have started on: a prompt that kills engines must not be replayed."""
    return {
        "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": 2,
        "retry_back_off": {"base_interval": "0.05s", "max_interval": "1s"},
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3."
                    "PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 5,
    }
