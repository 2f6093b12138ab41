"""What Envoy's admin interface says, as values: an acknowledgement is read back, never assumed.

Pure parsers of ``/stats`` (text), ``/clusters?format=json`` and ``/config_dump?include_eds``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moe_operator.api.intent import Ack, HostState
from moe_operator.gateway.cluster import CLUSTER
from moe_operator.gateway.render import CDS, EDS, LISTENER, RDS, ROUTES, generation_of

SUBSCRIPTIONS: Mapping[str, str] = {
    EDS: f"cluster.{CLUSTER}",
    CDS: "cluster_manager.cds",
    RDS: f"http.{LISTENER}.rds.{ROUTES}",
}
"""Dynamic file → where its subscription's stats live."""

SUBSCRIPTION_FILTER = (
    "^(" + "|".join(map(re.escape, SUBSCRIPTIONS.values())) + r")\.(version_text|update_rejected)$"
)
ACTIVE_REQUESTS = f"http.{LISTENER}.downstream_rq_active"
_LINE = re.compile(r'^(?P<name>\S+): "?(?P<value>[^"\n]*)"?$', re.MULTILINE)
_UNHEALTHY_FLAGS = (
    "failed_active_health_check",
    "failed_outlier_check",
    "pending_dynamic_removal",
    "pending_active_hc",
    "excluded_via_immediate_hc_fail",
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """File name → version that Envoy runs, and how many updates of it Envoy has refused since it started."""

    versions: Mapping[str, str]
    refusals: Mapping[str, int]

    @property
    def generation(self) -> int:
        """The newest intent that runs in every file; -1 = none."""
        return min((generation_of(self.versions.get(name, "")) for name in SUBSCRIPTIONS), default=-1)

    def refused_since(self, before: Mapping[str, int]) -> tuple[str, ...]:
        """Files whose count of refusals grew."""
        return tuple(name for name in SUBSCRIPTIONS if self.refusals.get(name, 0) > before.get(name, 0))


@dataclass(frozen=True, slots=True)
class Host:
    """One endpoint with the counters Envoy keeps for it."""

    address: str
    port: int
    revision: str
    healthy: bool
    stats: Mapping[str, int]

    @property
    def endpoint(self) -> str:
        """``ip:port``."""
        return f"{self.address}:{self.port}"


def stats(text: str) -> dict[str, str]:
    """``/stats`` as name → value; text readouts lose their quotes."""
    return {match["name"]: match["value"] for match in _LINE.finditer(text)}


def subscriptions(text: str) -> Subscriptions:
    """The dynamic files' versions and refusals out of ``/stats``."""
    values = stats(text)
    return Subscriptions(
        versions={name: values.get(f"{scope}.version_text", "") for name, scope in SUBSCRIPTIONS.items()},
        refusals={
            name: int(values.get(f"{scope}.update_rejected", "0")) for name, scope in SUBSCRIPTIONS.items()
        },
    )


def hosts(clusters: Json) -> tuple[Host, ...]:
    """The endpoints of the one cluster out of ``/clusters?format=json``."""
    return tuple(
        _host(status)
        for cluster in clusters.get("cluster_statuses", [])
        if cluster["name"] == CLUSTER
        for status in cluster.get("host_statuses", [])
    )


def _host(status: Json) -> Host:
    socket = status["address"]["socket_address"]
    health = status.get("health_status", {})
    return Host(
        address=socket["address"],
        port=socket["port_value"],
        revision=status.get("locality", {}).get("zone", ""),
        healthy=not any(health.get(flag) for flag in _UNHEALTHY_FLAGS),
        # proto3 JSON leaves zeros out and writes 64-bit numbers as strings.
        stats={stat["name"]: int(stat.get("value", 0)) for stat in status.get("stats", [])},
    )


def weights(endpoint_dump: Json) -> dict[str, int]:
    """Revision → weight of its locality out of ``/config_dump?include_eds``; standby is 0."""
    return {
        locality.get("locality", {}).get("zone", ""): locality.get("load_balancing_weight", 0)
        for locality in _localities(endpoint_dump)
    }


def _localities(endpoint_dump: Json) -> Iterator[Json]:
    for config in endpoint_dump.get("configs", []):
        assignment = config.get("endpoint_config", {})
        if assignment.get("cluster_name") == CLUSTER:
            yield from assignment.get("endpoints", [])


def host_states(seen: tuple[Host, ...], weight_of: Mapping[str, int]) -> list[HostState]:
    """The endpoints as an :class:`Ack` carries them."""
    return [
        HostState(
            address=host.address,
            port=host.port,
            revision=host.revision,
            healthy=host.healthy,
            weight=weight_of.get(host.revision, 0),
            active_requests=host.stats.get("rq_active", 0),
        )
        for host in seen
    ]


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at Envoy; ``None`` in place of it means that Envoy did not answer."""

    live: bool  # serves and does not drain
    subscriptions: Subscriptions
    hosts: tuple[Host, ...]
    weights: Mapping[str, int]


def ack(reading: Reading | None, received: int, rejected: str) -> Ack:
    """What the agent answers: Envoy's state, the newest intent seen and why it was refused, if it was."""
    return Ack(
        generation=reading.subscriptions.generation if reading else -1,
        received_generation=received,
        accepted=not rejected,
        rejected=rejected,
        hosts=host_states(reading.hosts, reading.weights) if reading else [],
        envoy_live=reading.live if reading else False,
    )
