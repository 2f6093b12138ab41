"""Who may open a connection to the pods of a deployment.

Only gateways reach an engine's HTTP port, ranks of one group reach each other on every port, the operator
reaches what it asks (engines, stagers, gateway agents), only stagers reach the nodes that hand files on,
clients reach the gateway's one port; what the admin names may scrape metrics. Everything else that comes in
is refused.

What a NetworkPolicy cannot do: it needs a network plug-in that enforces it; it never applies to pods on their
node's network nor to RDMA; it sees no HTTP path, so whoever may scrape an engine's metrics may also ask it
for completions; and the kubelet of a pod's own node always gets in. Egress is left alone: API servers, model
sources and collectors have addresses that no selector names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moe_operator.api.names import (
    COMPONENT_ENGINE,
    COMPONENT_GATEWAY,
    COMPONENT_RESOLVER,
    COMPONENT_SCRUBBER,
    COMPONENT_SEEDER,
    COMPONENT_STAGER,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    LABEL_REPLICA,
    LABEL_REVISION,
    PORT_ENGINE_HTTP,
    PORT_GATEWAY_AGENT,
    PORT_GATEWAY_HTTP,
    PORT_PEERS,
    PORT_STAGE_PROGRESS,
    bounded,
    gateway_name,
    group_name,
    label_value,
    peers_name,
)
from moe_operator.api.policy import NetworkPolicies
from moe_operator.resources.ownership import Owner

Obj = dict[str, Any]
STAGING = (COMPONENT_RESOLVER, COMPONENT_STAGER, COMPONENT_SCRUBBER)


def deployment_policies(owner: Owner, rules: NetworkPolicies, *, external_gateway: bool) -> list[Obj]:
    """Policies of a deployment whatever it serves: of its engines, stagers, seeders and gateways."""
    operator = [_operator(rules)]
    scrapers = list(rules.metrics_from)
    clients = [{"podSelector": {"matchLabels": _component(owner, COMPONENT_GATEWAY)}}]
    if external_gateway and rules.external_gateways_from:
        clients += rules.external_gateways_from
    engines = [
        _open(None if external_gateway and not rules.external_gateways_from else clients, PORT_ENGINE_HTTP),
        _open([*operator, *scrapers], PORT_ENGINE_HTTP, PORT_STAGE_PROGRESS),
    ]
    agents = _open([*operator, *scrapers], PORT_GATEWAY_AGENT)
    stagers = {
        "matchLabels": {LABEL_DEPLOYMENT: label_value(owner.name)},
        "matchExpressions": [{"key": LABEL_COMPONENT, "operator": "In", "values": list(STAGING)}],
    }
    return [
        _policy(
            owner,
            bounded(owner.name, COMPONENT_ENGINE),
            COMPONENT_ENGINE,
            {"matchLabels": _component(owner, COMPONENT_ENGINE)},
            engines,
        ),
        _policy(
            owner,
            bounded(owner.name, COMPONENT_STAGER),
            COMPONENT_STAGER,
            stagers,
            [_open([*operator, *scrapers], PORT_STAGE_PROGRESS)],
        ),
        _policy(
            owner,
            peers_name(owner.name),
            COMPONENT_SEEDER,
            {"matchLabels": _component(owner, COMPONENT_SEEDER)},
            [_open([{"podSelector": {"matchLabels": _component(owner, COMPONENT_STAGER)}}], PORT_PEERS)],
        ),
        _policy(
            owner,
            gateway_name(owner.name),
            COMPONENT_GATEWAY,
            {"matchLabels": _component(owner, COMPONENT_GATEWAY)},
            [_open(None, PORT_GATEWAY_HTTP), agents],
        ),
    ]


def group_policy(owner: Owner, revision: str, replica: int) -> Obj:
    """Ranks of one group among themselves: rendezvous and collectives choose ports as they like."""
    group = {LABEL_REVISION: revision, LABEL_REPLICA: str(replica)}
    members = {"matchLabels": {LABEL_DEPLOYMENT: label_value(owner.name), **group}}
    return _policy(
        owner,
        group_name(owner.name, revision, replica),
        COMPONENT_ENGINE,
        members,
        [{"from": [{"podSelector": members}]}],
        group,
    )


def _policy(
    owner: Owner,
    name: str,
    component: str,
    selector: Obj,
    ingress: Iterable[Obj],
    labels: Mapping[str, str] | None = None,
) -> Obj:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owner.metadata(name, component, labels),
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": list(ingress)},
    }


def _open(peers: Sequence[Mapping[str, Any]] | None, *ports: int) -> Obj:
    """One ingress rule; None = from everywhere."""
    rule: Obj = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}
    return rule if peers is None else {"from": [dict(peer) for peer in peers], **rule}


def _operator(rules: NetworkPolicies) -> Obj:
    namespace = {"kubernetes.io/metadata.name": rules.operator_namespace}
    return {
        "namespaceSelector": {"matchLabels": namespace},
        "podSelector": {"matchLabels": dict(rules.operator_labels)},
    }


def _component(owner: Owner, component: str) -> dict[str, str]:
    return {LABEL_DEPLOYMENT: label_value(owner.name), LABEL_COMPONENT: component}
