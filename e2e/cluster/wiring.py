"""The pod network of nodes whose image carries no network add-on.

Each node hands out addresses of its own podCIDR on point-to-point links, knows one route per other node, and
hides its pods behind its own address towards everything outside the pod network. Routes and rules die with
the container, and a restarted container may come back under another address, so wiring is always done again;
doing it twice changes nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

CONFLIST = "/etc/cni/net.d/10-moe.conflist"


@dataclass(frozen=True, slots=True)
class WiredNode:
    """A node's container, the pods' range on it, and the container's present address."""

    name: str
    pod_cidr: str
    address: str


def conflist(pod_cidr: str) -> str:
    """The CNI configuration of one node."""
    link = {
        "type": "ptp",
        "ipMasq": False,
        "mtu": 1500,
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/cni-ipam-state",  # forgotten on restart, as the pods are
            "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": pod_cidr}]],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.3.1", "name": "moe", "plugins": [link, ports]}, indent=1)


def script(node: WiredNode, nodes: Sequence[WiredNode], pod_subnet: str) -> str:
    """Shell commands that wire ``node``, to be run inside it."""
    masquerade = (
        f"POSTROUTING -s {node.pod_cidr} ! -d {pod_subnet} -m addrtype ! --dst-type LOCAL -j MASQUERADE"
    )
    routes = [
        f"ip route replace {peer.pod_cidr} via {peer.address}" for peer in nodes if peer.name != node.name
    ]
    return "\n".join(
        [
            "set -eu",
            f"iptables -t nat -C {masquerade} 2>/dev/null || iptables -t nat -A {masquerade}",
            *routes,
            # Last, and in one step: the kubelet calls the node ready as soon as it sees the file.
            f"printf %s {shlex.quote(conflist(node.pod_cidr))} > {CONFLIST}.new",
            f"mv {CONFLIST}.new {CONFLIST}",
            "",
        ]
    )
