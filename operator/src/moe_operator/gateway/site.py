"""What one gateway pod is born with and keeps until it ends, and the bootstrap that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moe_operator.api.intent import Tls
from moe_operator.api.names import PORT_GATEWAY_ROOM
from moe_operator.gateway.access_log import agent_cluster
from moe_operator.gateway.address import Address
from moe_operator.gateway.files import CDS, LDS, file_source
from moe_operator.gateway.tracing import otlp_cluster

MAX_DOWNSTREAM_CONNECTIONS = 32768
MAX_HEAP_BYTES = 768 << 20  # below the container's memory limit: Envoy refuses requests before it is killed
SHRINK_HEAP_AT = 0.9
REFUSE_REQUESTS_AT = 0.95
REQUEST_SECONDS = 300  # a client may take this long to send a request
MONITORS = "type.googleapis.com/envoy.extensions.resource_monitors"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Site:
    """One pod's own facts; a change of any of them needs a new pod."""

    xds: str  # absolute directory that Envoy and its agent share
    listen: Address
    admin: Address
    tls: Tls | None = None
    otlp: Address | None = None  # where traces go
    request_seconds: float = REQUEST_SECONDS

    @property
    def room(self) -> Address:
        """Where this pod's waiting room listens: loopback, like the admin interface."""
        return room_beside(self.admin)


def room_beside(admin: Address) -> Address:
    """The waiting room of the pod whose Envoy has its admin interface at ``admin``."""
    return Address(admin.host, PORT_GATEWAY_ROOM)


def bootstrap(site: Site) -> Json:
    """What Envoy is started with: where to read the rest, and when to protect itself."""
    return {
        "node": {"id": "moe-gateway", "cluster": "moe-gateway"},
        "admin": {"address": site.admin.envoy},
        "static_resources": {"clusters": _static_clusters(site)},
        "dynamic_resources": {
            "lds_config": file_source(site.xds, LDS),
            "cds_config": file_source(site.xds, CDS),
        },
        "overload_manager": {
            "refresh_interval": "0.25s",
            "resource_monitors": [
                _monitor(
                    "global_downstream_max_connections",
                    "downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=MAX_DOWNSTREAM_CONNECTIONS,
                ),
                _monitor("fixed_heap", "fixed_heap.v3.FixedHeapConfig", max_heap_size_bytes=MAX_HEAP_BYTES),
            ],
            "actions": [
                _action("shrink_heap", SHRINK_HEAP_AT),
                _action("stop_accepting_requests", REFUSE_REQUESTS_AT),
            ],
        },
    }


def _static_clusters(site: Site) -> list[Json]:
    traces = [otlp_cluster(site.otlp)] if site.otlp else []
    return [agent_cluster(site.xds), *traces]


def _monitor(name: str, kind: str, **config: int) -> Json:
    return {
        "name": f"envoy.resource_monitors.{name}",
        "typed_config": {"@type": f"{MONITORS}.{kind}", **config},
    }


def _action(name: str, threshold: float) -> Json:
    trigger = {"name": "envoy.resource_monitors.fixed_heap", "threshold": {"value": threshold}}
    return {"name": f"envoy.overload_actions.{name}", "triggers": [trigger]}
