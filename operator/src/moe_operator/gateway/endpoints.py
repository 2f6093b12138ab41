"""Who may get a request: the colours as weighted localities of one cluster, and who waits behind them.

Colours are localities, not clusters: when every host of a colour is dead its share moves to the others
inside the proxy. Weight 0 leaves ``load_balancing_weight`` out (Envoy refuses a zero): such hosts stay
health-checked and take over once no weighted host is healthy. The waiting room has the next priority: it
gets a request only while not one engine can take it. A preview is a cluster of its own, so that nothing
falls over to a revision that has not passed its gates.
"""

from __future__ import annotations

from typing import Any

from moe_operator.api.intent import Colour, Endpoint, Intent
from moe_operator.gateway.address import Address

METADATA = "moe"  # filter_metadata namespace of endpoints and routes
ALL = "all"  # service name of the engines that take traffic
PREVIEW = "preview"
KEEP_SHARE_WHILE_ONE_IS_HEALTHY = 1_000_000  # overprovisioning factor, percent
ROOM_PRIORITY = 1

Json = dict[str, Any]


def engines(intent: Intent, room: Address) -> Json:
    """Every colour, and the waiting room behind them."""
    localities = [_locality(colour) for colour in intent.colours if colour.endpoints]
    return _assignment(ALL, [*localities, _room(room)])


def preview(intent: Intent) -> Json:
    """The revision on preview; nobody when there is none."""
    wanted = intent.preview
    hosts = [_host(wanted.revision, endpoint) for endpoint in wanted.endpoints] if wanted else []
    localities = [{"locality": {"zone": wanted.revision}, "lb_endpoints": hosts}] if wanted and hosts else []
    return _assignment(PREVIEW, localities)


def _assignment(name: str, localities: list[Json]) -> Json:
    return {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": name,
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


def _room(room: Address) -> Json:
    unchecked = {"disable_active_health_check": True}
    return {
        "locality": {"zone": "waiting-room"},
        "priority": ROOM_PRIORITY,
        "load_balancing_weight": 1,
        "lb_endpoints": [{"endpoint": {"address": room.envoy, "health_check_config": unchecked}}],
    }
