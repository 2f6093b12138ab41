"""How much a pod asks for and a node offers, in Kubernetes' own arithmetic.

A pod's effective request is the larger of its biggest init container and the sum of its containers,
plus the overhead of its runtime class; restartable init containers (sidecars) count like containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from moe_operator.api.quantity import parse_amount
from moe_operator.runtime.kube import Obj

Amounts = dict[str, Decimal]


def amounts(resources: Mapping[str, Any] | None) -> Amounts:
    """A resource list as numbers."""
    return {name: parse_amount(str(value)) for name, value in (resources or {}).items()}


def total(parts: Iterable[Amounts]) -> Amounts:
    """Sum, name by name."""
    result: Amounts = {}
    for part in parts:
        for name, value in part.items():
            result[name] = result.get(name, Decimal(0)) + value
    return result


def pod_requests(pod: Obj) -> Amounts:
    """What the scheduler must find on one node for ``pod``, its own slot (``pods: 1``) included."""
    spec = pod["spec"]
    inits = spec.get("initContainers") or []
    sidecars = [c for c in inits if c.get("restartPolicy") == "Always"]
    running = total(_requests(c) for c in [*spec["containers"], *sidecars])
    peak = running
    for container in inits:
        if container not in sidecars:
            peak = _larger(peak, _requests(container))
    return total([peak, amounts(spec.get("overhead")), {"pods": Decimal(1)}])


def _requests(container: Obj) -> Amounts:
    resources = container.get("resources") or {}
    # A limit without a request is a request: the API server defaults it so.
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _larger(one: Amounts, other: Amounts) -> Amounts:
    return {
        name: max(one.get(name, Decimal(0)), other.get(name, Decimal(0)))
        for name in one.keys() | other.keys()
    }
