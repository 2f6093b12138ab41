"""How many nodes may begin to pull from a source now: waves that spare it.

The rule is counted over all MoEDeployments, from the Jobs that exist: pulls that are under way from a host
plus those that begin now never exceed the limit. Nothing is held but the Job itself, so a crash leaks
nothing. Pulls that find every byte on other nodes do not load the source; each node that holds the files
feeds ``FANOUT`` others, so the number of holders doubles from wave to wave.

Fairness: while others wait for the same host, a deployment takes one place at a time, and only when none of
them has fewer pulls under way, then fewer so far. Rounds follow from that without anybody keeping a queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moe_operator.api.names import ANNOTATION_FROM_PEERS, ANNOTATION_SOURCE_HOST
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.quantity import parse_quantity
from moe_operator.api.spec import MoESpec
from moe_operator.reconcile.actions import Obj
from moe_operator.reconcile.site_looks import is_over
from moe_operator.reconcile.snapshot import Fleet
from moe_operator.resources.model_source import source_host

FANOUT = 2
UNLIMITED = 1 << 30


def limit_of(spec: MoESpec, host: str, policy: OperatorPolicy) -> int:
    """Nodes that may pull from ``host`` at the same time."""
    if not host:
        return UNLIMITED
    own, admins = spec.weights.max_concurrent_nodes, policy.staging.source_limits.get(host)
    return min(own, admins.max_concurrent_nodes or own) if admins else own


def bandwidth_of(spec: MoESpec, host: str, policy: OperatorPolicy) -> int:
    """Bytes per second for one node; 0 = no limit. A total is split over all that may pull at once."""
    own = parse_quantity(spec.weights.bandwidth_per_node) if spec.weights.bandwidth_per_node else 0
    admins = policy.staging.source_limits.get(host)
    total = (admins and admins.bytes_per_second) or 0
    share = max(1, total // limit_of(spec, host, policy)) if total else 0
    return min(filter(None, (own, share)), default=0)


def free_places(me: str, host: str, limit: int, fleet: Fleet) -> int:
    """How many nodes of the deployment ``me`` (namespace/name) may begin to pull from ``host`` now."""
    if not host:
        return UNLIMITED
    pulls = [job for job in fleet.jobs if pulls_from(host, job)]
    free = limit - sum(not is_over(job) for job in pulls)
    if free <= 0:
        return 0
    others = [name for name in waiting_for(host, fleet.deployments) if name != me]
    if not others:
        return free
    return 1 if _load(me, pulls) < min(_load(other, pulls) for other in others) else 0


def pulls_from(host: str, job: Obj) -> bool:
    """Whether a Job loads ``host``."""
    annotations = job["metadata"].get("annotations") or {}
    return annotations.get(ANNOTATION_SOURCE_HOST) == host and ANNOTATION_FROM_PEERS not in annotations


def waiting_for(host: str, deployments: Iterable[Obj]) -> list[str]:
    """MoEDeployments with a node that waits for its turn at ``host``."""
    return [key_of(d) for d in deployments if not d["metadata"].get("deletionTimestamp") and _waits(d, host)]


def key_of(obj: Obj) -> str:
    """``namespace/name``."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def owner_of(job: Obj) -> str:
    """``namespace/name`` of the MoEDeployment that a Job belongs to."""
    owners = job["metadata"].get("ownerReferences") or ()
    return f"{job['metadata']['namespace']}/{next((o['name'] for o in owners), '')}"


def _waits(deployment: Obj, host: str) -> bool:
    status: Mapping[str, object] = deployment.get("status") or {}
    rows = status.get("staging") or ()
    model = status.get("model") or {}
    assert isinstance(rows, list | tuple) and isinstance(model, dict)
    waiting = any(row.get("phase") == "Waiting" for row in rows)
    return waiting and source_host(str(model.get("source", "")), deployment["metadata"]["namespace"]) == host


def _load(deployment: str, pulls: Iterable[Obj]) -> tuple[int, int, str]:
    own = [job for job in pulls if owner_of(job) == deployment]
    return (sum(not is_over(job) for job in own), len(own), deployment)
