"""What Envoy's admin answers mean."""

from __future__ import annotations

import pytest
from moe_operator.api.intent import HostState
from moe_operator.gateway import readback
from moe_operator.gateway.discovered import FILTERS, KEYS
from moe_operator.gateway.files import CDS, EDS, EDS_PREVIEW, RDS
from moe_operator.gateway.keys import InForce
from moe_operator.gateway.readback import Reading, Subscriptions

STATS = """\
cluster.all.version_text: "7-73edaf3bf60f"
cluster.preview.version_text: "8-1a2b3c4d5e6f"
cluster_manager.cds.version_text: "8-f113e3c22602"
http.ingress.rds.gateway.version_text: "8-a1b7b8cc226f"
cluster.all.update_rejected: 1
cluster.preview.update_rejected: 0
cluster_manager.cds.update_rejected: 0
http.ingress.rds.gateway.update_rejected: 0
extension_config_discovery.http_filter.moe.keys.version_text: "309554b5f45e"
extension_config_discovery.http_filter.moe.keys.update_rejected: 2
"""
CLUSTERS = {
    "cluster_statuses": [
        {"name": "other", "host_statuses": [{"address": "never read"}]},
        {
            "name": "all",
            "host_statuses": [
                {
                    "address": {"socket_address": {"address": "10.0.1.7", "port_value": 8000}},
                    "stats": [{"name": "rq_total", "value": "41"}, {"type": "GAUGE", "name": "rq_active"}],
                    "health_status": {"eds_health_status": "HEALTHY"},
                    "locality": {"zone": "5c9f1e77"},
                },
                {
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": 9903}},
                    "priority": 1,
                    "locality": {"zone": "waiting-room"},
                },
                {
                    "address": {"socket_address": {"address": "fd00::7", "port_value": 8000}},
                    "stats": [{"type": "GAUGE", "name": "rq_active", "value": "3"}],
                    "health_status": {"eds_health_status": "HEALTHY", "failed_active_health_check": True},
                    "locality": {"zone": "00c0ffee"},
                },
            ],
        },
        {
            "name": "long",
            "host_statuses": [
                {
                    "address": {"socket_address": {"address": "10.0.1.7", "port_value": 8000}},
                    "stats": [{"type": "GAUGE", "name": "rq_active", "value": "2"}],
                    "locality": {"zone": "5c9f1e77"},
                }
            ],
        },
    ]
}
ENDPOINTS = {
    "configs": [
        {
            "endpoint_config": {
                "cluster_name": "all",
                "endpoints": [
                    {"locality": {"zone": "5c9f1e77"}, "load_balancing_weight": 90},
                    {"locality": {"zone": "00c0ffee"}},
                    {"locality": {"zone": "waiting-room"}, "priority": 1, "load_balancing_weight": 1},
                ],
            }
        },
        {"endpoint_config": {"cluster_name": "other", "endpoints": [{"locality": {"zone": "x"}}]}},
    ]
}


def test_the_generation_that_runs_is_the_oldest_of_the_files() -> None:
    seen = readback.subscriptions(STATS)
    assert seen == Subscriptions(
        versions={
            **dict.fromkeys(FILTERS, ""),
            EDS: "7-73edaf3bf60f",
            EDS_PREVIEW: "8-1a2b3c4d5e6f",
            CDS: "8-f113e3c22602",
            RDS: "8-a1b7b8cc226f",
            KEYS: "309554b5f45e",
        },
        refusals={**dict.fromkeys((EDS_PREVIEW, CDS, RDS, *FILTERS), 0), EDS: 1, KEYS: 2},
    )
    assert seen.generation == 7


def test_refused_is_what_is_behind_and_was_refused_since() -> None:
    seen = readback.subscriptions(STATS)
    wanted = {EDS: "8-73edaf3bf60f", RDS: "9-a1b7b8cc226f", KEYS: "309554b5f45e"}
    assert seen.behind(wanted) == (EDS, RDS)
    assert seen.refused(wanted, {}) == (EDS,)
    assert seen.refused(wanted, {EDS: 1}) == ()
    assert seen.behind({}) == ()


@pytest.mark.parametrize("text", ["", 'cluster.all.version_text: "none-73edaf3bf60f"\n'])
def test_nothing_runs_where_nothing_was_loaded(text: str) -> None:
    assert readback.subscriptions(text).generation == -1


def test_an_acknowledgement_joins_health_weight_and_load_of_all_pools() -> None:
    hosts, weights = readback.hosts(CLUSTERS), readback.weights(ENDPOINTS)
    reading = Reading(True, readback.subscriptions(STATS), hosts, weights)
    ack = readback.ack(reading, 7, 8, "why", InForce(3, "abcd"))

    assert ack.hosts == [
        HostState(
            address="10.0.1.7", port=8000, revision="5c9f1e77", healthy=True, weight=90, active_requests=2
        ),
        HostState(
            address="fd00::7", port=8000, revision="00c0ffee", healthy=False, weight=0, active_requests=3
        ),
    ]
    assert (ack.generation, ack.received_generation, ack.accepted, ack.rejected) == (7, 8, False, "why")
    assert (ack.keys, ack.keys_digest) == (3, "abcd")


def test_without_envoy_there_is_nothing_to_acknowledge() -> None:
    ack = readback.ack(None, -1, 8, "", InForce())
    assert (ack.generation, ack.received_generation, ack.envoy_live, ack.hosts) == (-1, 8, False, [])


@pytest.mark.parametrize(
    "flag",
    ["failed_active_health_check", "failed_outlier_check", "pending_active_hc", "pending_dynamic_removal"],
)
def test_every_reason_not_to_send_traffic_counts_as_unhealthy(flag: str) -> None:
    status = {
        "address": {"socket_address": {"address": "10.0.1.7", "port_value": 8000}},
        "health_status": {flag: True},
    }
    (host,) = readback.hosts({"cluster_statuses": [{"name": "all", "host_statuses": [status]}]})
    assert not host.healthy
