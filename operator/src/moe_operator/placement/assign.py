"""Which node holds which rank.

A replica needs ``nodes`` whole nodes inside one domain. Domains that already hold the replica's weights
come first, then the one that leaves the least behind, then the name, so the same cluster always gives
the same answer. With domain type Node every node is an NVLink domain of its own, and the *fabric* label
(leaf, rail, pod) groups nodes instead, so that expert-parallel traffic stays close.

Invariant: a node's GPUs are never promised twice: what running pods of any owner take and what
placements on record promise is subtracted before a node counts as free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moe_operator.hardware.nodes import GpuNode, unusable
from moe_operator.planning.plan import Refusal, Shortage

ANYWHERE = ""  # the name of the domain of nodes that no label groups
NAMED = 5  # how many domains or nodes a message lists before it counts the rest


@dataclass(frozen=True, slots=True)
class Need:
    """What one replica asks of the cluster. ``products`` are accepted gpu.product labels."""

    nodes: int
    gpus_per_node: int
    products: tuple[str, ...]
    domain_key: str = ""  # NVLink domain label; "" = every node is its own domain
    fabric_key: str = ""
    required: bool = True  # False = spill over domains when none is large enough
    tolerations: tuple[dict[str, Any], ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assignment:
    """rank → node for one replica; ranks are dense and start at 0 (the leader)."""

    domain: str
    nodes: tuple[GpuNode, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes that share a domain label, split into those that are free and those that are not."""

    name: str
    free: tuple[GpuNode, ...]
    total: int


def assign(
    need: Need,
    nodes: Sequence[GpuNode],
    used: Mapping[str, int],
    preferred: Collection[str] = (),
) -> Assignment | Refusal:
    """Pick nodes for one replica.

    ``used``: node → GPUs taken or promised. ``preferred``: nodes that hold the weights already.
    Returns a Refusal naming, per domain, how many nodes are free and how many are missing; the caller
    decides whether that blocks or waits.
    """
    of_product = [n for n in nodes if n.product in need.products]
    if not of_product:
        return _unknown_product(need, nodes)
    usable = [n for n in of_product if not _excluded(n, need)]
    if not usable:
        return _none_usable(need, of_product)
    domains = _domains(need, usable, used, preferred)
    fitting = [d for d in domains if len(d.free) >= need.nodes]
    if fitting:
        best = min(fitting, key=lambda d: _rank(d, need, preferred))
        return Assignment(best.name, best.free[: need.nodes])
    spilled = [n for d in sorted(domains, key=lambda d: (-len(d.free), d.name)) for n in d.free]
    if not need.required and len(spilled) >= need.nodes:
        return Assignment(ANYWHERE, tuple(spilled[: need.nodes]))
    return _no_domain_fits(need, domains, len(of_product) - len(usable))


def _domains(
    need: Need, nodes: Iterable[GpuNode], used: Mapping[str, int], preferred: Collection[str]
) -> list[Domain]:
    key = need.domain_key or need.fabric_key
    groups: dict[str, list[GpuNode]] = {}
    for node in nodes:
        groups.setdefault(node.labels.get(key, ANYWHERE) if key else ANYWHERE, []).append(node)
    if not need.domain_key and need.fabric_key and not _one_is_large_enough(groups, need, used):
        groups = {ANYWHERE: [n for members in groups.values() for n in members]}
    return [
        Domain(
            name,
            tuple(
                sorted(
                    (n for n in members if n.allocatable - used.get(n.name, 0) >= need.gpus_per_node),
                    key=lambda n: (n.name not in preferred, n.name),
                )
            ),
            len(members),
        )
        for name, members in groups.items()
    ]


def _one_is_large_enough(
    groups: Mapping[str, Sequence[GpuNode]], need: Need, used: Mapping[str, int]
) -> bool:
    return any(
        sum(n.allocatable - used.get(n.name, 0) >= need.gpus_per_node for n in members) >= need.nodes
        for name, members in groups.items()
        if name != ANYWHERE
    )


def _rank(domain: Domain, need: Need, preferred: Collection[str]) -> tuple[int, int, str]:
    staged = sum(n.name in preferred for n in domain.free[: need.nodes])
    return (-staged, len(domain.free) - need.nodes, domain.name)


def _excluded(node: GpuNode, need: Need) -> str:
    mismatch = next((k for k, v in need.node_selector.items() if node.labels.get(k) != v), None)
    if mismatch:
        return f"does not match nodeSelector {mismatch}={need.node_selector[mismatch]}"
    if need.domain_key and not node.labels.get(need.domain_key):
        return f"has no label {need.domain_key}"
    return unusable(node, need.tolerations)


def _unknown_product(need: Need, nodes: Sequence[GpuNode]) -> Refusal:
    present = sorted({n.product for n in nodes if n.product})
    return Refusal(
        "UnknownProduct",
        f"no node has {' or '.join(need.products)}; "
        f"the cluster has {_listed(present) or 'no labelled GPU nodes'}",
        "set accelerators.product to a product of this cluster (kubectl get nodes -L nvidia.com/gpu.product)",
    )


def _none_usable(need: Need, nodes: Sequence[GpuNode]) -> Refusal:
    reasons = [f"{n.name} {_excluded(n, need)}" for n in sorted(nodes, key=lambda n: n.name)]
    return Refusal(
        "NoUsableNodes",
        f"{len(nodes)} node(s) have {' or '.join(need.products)}, none can be used: {_listed(reasons, '; ')}",
        "make the named nodes usable, or tolerate their taints in placement.tolerations",
    )


def _no_domain_fits(need: Need, domains: Sequence[Domain], excluded: int) -> Refusal:
    ranked = sorted(domains, key=lambda d: (-len(d.free), d.name))
    rows = [f"{d.name or 'the cluster'} has {len(d.free)} of {d.total} free" for d in ranked]
    free = [len(d.free) for d in ranked]
    missing = need.nodes - (max(free, default=0) if need.required else sum(free))
    skipped = f"; {excluded} node(s) cannot be used" if excluded else ""
    return Shortage(
        "InsufficientGPUs",
        f"needs {need.nodes} node(s) with {need.gpus_per_node} free GPUs each"
        f"{' in one ' + need.domain_key if need.domain_key else ''}: {_listed(rows, '; ')}; "
        f"{missing} node(s) ({missing * need.gpus_per_node} GPUs) missing{skipped}",
        "free GPUs, add nodes, or lower accelerators.nodes or replicas",
        gpus=missing * need.gpus_per_node,
    )


def _listed(items: Sequence[str], separator: str = ", ") -> str:
    shown = separator.join(items[:NAMED])
    return shown if len(items) <= NAMED else f"{shown}{separator}and {len(items) - NAMED} more"
