"""What Envoy's admin interface says, as values: an acknowledgement is read back, never assumed.

Pure parsers of ``/stats`` (text), ``/clusters?format=json`` and ``/config_dump?include_eds``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from moe_operator.api.intent import Ack, HostState
from moe_operator.gateway.cluster import CLUSTERS
from moe_operator.gateway.discovered import FILTERS, name_of
from moe_operator.gateway.endpoints import ALL, PREVIEW
from moe_operator.gateway.files import CDS, DYNAMIC_FILES, EDS, EDS_PREVIEW, RDS, generation_of
from moe_operator.gateway.keys import InForce
from moe_operator.gateway.listener import LISTENER
from moe_operator.gateway.routes import ROUTES

SUBSCRIPTIONS: Mapping[str, str] = {
    EDS: f"cluster.{ALL}",
    EDS_PREVIEW: f"cluster.{PREVIEW}",
    CDS: "cluster_manager.cds",
    RDS: f"http.{LISTENER}.rds.{ROUTES}",
    **{file: f"extension_config_discovery.http_filter.{name_of(file)}" for file in FILTERS},
}
"""File that may change → where its subscription's stats live."""

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
        """The newest intent that runs in every file that is rendered from one; -1 = none."""
        return min(generation_of(self.versions.get(name, "")) for name in DYNAMIC_FILES)

    def refused(self, wanted: Mapping[str, str], before: Mapping[str, int]) -> tuple[str, ...]:
        """Files that are not in force in the wanted version and were refused since ``before``."""
        return tuple(name for name in self.behind(wanted) if self.refusals.get(name, 0) > before.get(name, 0))

    def behind(self, wanted: Mapping[str, str]) -> tuple[str, ...]:
        """Files that are not in force in the wanted version."""
        return tuple(name for name, version in wanted.items() if self.versions.get(name) != version)


@dataclass(frozen=True, slots=True)
class Host:
    """One endpoint with the counters Envoy keeps for it."""

    address: str
    port: int
    revision: str
    healthy: bool
    stats: Mapping[str, int]
    leaving: bool = False  # gets no new requests

    @property
    def endpoint(self) -> str:
        """``ip:port``."""
        return f"{self.address}:{self.port}"

    @property
    def takes_requests(self) -> bool:
        """Whether a new request may be sent to it."""
        return self.healthy and not self.leaving

    def joined(self, other: Host) -> Host:
        """The same engine as two pools see it."""
        names = self.stats.keys() | other.stats.keys()
        total = {name: self.stats.get(name, 0) + other.stats.get(name, 0) for name in sorted(names)}
        return replace(self, healthy=self.healthy and other.healthy, stats=total)


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
    """The engines out of ``/clusters?format=json``, each once, in Envoy's order.

    An engine may be in several pools (``all``, ``long``, ``preview``): its counters are summed, and it is
    healthy when every pool that has it would send to it. The waiting room is no engine.
    """
    merged: dict[tuple[str, int, str], Host] = {}
    for status in _statuses(clusters):
        host = _host(status)
        key = (host.address, host.port, host.revision)
        merged[key] = merged[key].joined(host) if key in merged else host
    return tuple(merged.values())


def _statuses(clusters: Json) -> Iterator[Json]:
    for cluster in clusters.get("cluster_statuses", []):
        if cluster["name"] in CLUSTERS:
            yield from (s for s in cluster.get("host_statuses", []) if not s.get("priority"))


def _host(status: Json) -> Host:
    socket = status["address"]["socket_address"]
    health = status.get("health_status", {})
    healthy = not any(health.get(flag) for flag in _UNHEALTHY_FLAGS)
    return Host(
        address=socket["address"],
        port=socket["port_value"],
        revision=status.get("locality", {}).get("zone", ""),
        healthy=healthy,
        leaving=health.get("eds_health_status") == "DRAINING",
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
        if assignment.get("cluster_name") == ALL:
            yield from (found for found in assignment.get("endpoints", []) if not found.get("priority"))


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


def ack(reading: Reading | None, applied: int, received: int, rejected: str, keys: InForce) -> Ack:
    """What the agent answers: Envoy's state, the newest intents applied and seen, why one was refused."""
    return Ack(
        generation=applied,
        received_generation=received,
        accepted=not rejected,
        rejected=rejected,
        hosts=host_states(reading.hosts, reading.weights) if reading else [],
        envoy_live=reading.live if reading else False,
        keys=keys.values,
        keys_digest=keys.digest,
    )
