"""Deployment → ReplicaSets: one per pod template, resized so that a rollout never starves or floods.

Rule of a rolling update, derived from what is observed and never remembered:
``total ≤ replicas + maxSurge`` while growing the new ReplicaSet, and
``available ≥ replicas - maxUnavailable`` while shrinking the old ones; pods that are not available
anyway go first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from moe_operator.api.names import digest
from moe_operator.runtime.kube import DEPLOYMENT, REPLICA_SET, ApiError, Kube, Obj
from moe_operator.sandbox.objects import (
    controlled_by,
    deleting,
    key_of,
    moved_on,
    owner_reference,
    status_patch,
    with_transitions,
)

MANAGER = "deployment-controller"
HASH_LABEL = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class Size:
    """One ReplicaSet: how many pods it asks for, has, and how many of them are available."""

    name: str
    wanted: int
    current: int = 0
    ready: int = 0
    available: int = 0


def template_hash(template: Obj) -> str:
    """Stable name of a pod template."""
    return digest(json.dumps(template, sort_keys=True, separators=(",", ":")), length=10)


def limits(strategy: Obj, replicas: int) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) in pods; percentages round up for surge and down for unavailable."""
    rolling = strategy.get("rollingUpdate") or {}
    surge = _pods(rolling.get("maxSurge", "25%"), replicas, math.ceil)
    unavailable = _pods(rolling.get("maxUnavailable", "25%"), replicas, math.floor)
    return surge, unavailable if surge or unavailable else 1


def _pods(value: int | str, replicas: int, rounding: Callable[[float], int]) -> int:
    if isinstance(value, int):
        return value
    return rounding(replicas * int(value.removesuffix("%")) / 100)


def rolling_sizes(
    replicas: int, surge: int, unavailable: int, new: Size, old: Sequence[Size]
) -> Mapping[str, int]:
    """The next size of every ReplicaSet of a rolling update."""
    total = new.wanted + sum(o.wanted for o in old)
    grown = min(replicas, new.wanted + max(0, replicas + surge - total))
    sizes = {new.name: grown if new.wanted < replicas else replicas}
    may_go = total - (replicas - unavailable) - max(0, new.wanted - new.available)
    spare = sum(s.available for s in (new, *old)) - (replicas - unavailable)
    for rs in old:
        broken = min(max(may_go, 0), rs.wanted - min(rs.available, rs.wanted))
        healthy = min(max(may_go - broken, 0), max(spare, 0), rs.wanted - broken)
        sizes[rs.name] = rs.wanted - broken - healthy
        may_go -= broken + healthy
        spare -= healthy
    return sizes


def recreate_sizes(replicas: int, new: Size, old: Sequence[Size]) -> Mapping[str, int]:
    """Old pods are gone before the first new one is made."""
    gone = all(o.current == 0 for o in old)
    return {new.name: replicas if gone else new.wanted, **{o.name: 0 for o in old}}


def next_sizes(deployment: Obj, new: Size, old: Sequence[Size]) -> Mapping[str, int]:
    """The next size of every ReplicaSet under the deployment's strategy."""
    replicas = wanted_replicas(deployment)
    strategy = deployment["spec"].get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return recreate_sizes(replicas, new, old)
    surge, unavailable = limits(strategy, replicas)
    return rolling_sizes(replicas, surge, unavailable, new, old)


def wanted_replicas(obj: Obj) -> int:
    """``spec.replicas``, 1 when not said."""
    value = obj["spec"].get("replicas")
    return 1 if value is None else int(value)


def size_of(replica_set: Obj) -> Size:
    """A ReplicaSet's numbers."""
    status = replica_set.get("status") or {}
    return Size(
        name=replica_set["metadata"]["name"],
        wanted=wanted_replicas(replica_set),
        current=int(status.get("replicas") or 0),
        ready=int(status.get("readyReplicas") or 0),
        available=int(status.get("availableReplicas") or 0),
    )


def build_replica_set(deployment: Obj, replicas: int) -> Obj:
    """The ReplicaSet of the deployment's present template."""
    spec = deployment["spec"]
    suffix = template_hash(spec["template"])
    template_meta = spec["template"].get("metadata") or {}
    labels = {**(template_meta.get("labels") or {}), HASH_LABEL: suffix}
    selector = spec["selector"]
    return {
        "apiVersion": REPLICA_SET.api_version,
        "kind": REPLICA_SET.kind,
        "metadata": {
            "name": f"{deployment['metadata']['name']}-{suffix}",
            "namespace": deployment["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference(deployment)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": int(spec.get("minReadySeconds") or 0),
            "selector": {
                **selector,
                "matchLabels": {**(selector.get("matchLabels") or {}), HASH_LABEL: suffix},
            },
            "template": {**spec["template"], "metadata": {**template_meta, "labels": labels}},
        },
    }


def status_of(deployment: Obj, new: Size, old: Sequence[Size], now: float) -> Obj:
    """What the Deployment says of itself."""
    everything = (new, *old)
    replicas = wanted_replicas(deployment)
    available = sum(s.available for s in everything)
    _, unavailable = limits(deployment["spec"].get("strategy") or {}, replicas)
    enough = available >= replicas - unavailable
    done = new.available >= replicas and new.current == sum(s.current for s in everything) == replicas
    progress = "has successfully progressed" if done else "is progressing"
    conditions = [
        {
            "type": "Available",
            "status": "True" if enough else "False",
            "reason": f"MinimumReplicas{'Available' if enough else 'Unavailable'}",
            "message": f"Deployment {'has' if enough else 'does not have'} minimum availability.",
        },
        {
            "type": "Progressing",
            "status": "True",
            "reason": "NewReplicaSetAvailable" if done else "ReplicaSetUpdated",
            "message": f'ReplicaSet "{new.name}" {progress}.',
        },
    ]
    before = (deployment.get("status") or {}).get("conditions") or ()
    return {
        "observedGeneration": deployment["metadata"].get("generation", 1),
        "replicas": sum(s.current for s in everything),
        "updatedReplicas": new.current,
        "readyReplicas": sum(s.ready for s in everything),
        "availableReplicas": available,
        "unavailableReplicas": max(0, replicas - available),
        "conditions": with_transitions(conditions, before, now),
    }


async def step(kube: Kube, now: float) -> None:
    """One look at every Deployment."""
    deployments = (await kube.list(DEPLOYMENT)).items
    if not deployments:
        return
    sets = (await kube.list(REPLICA_SET)).items
    for deployment in deployments:
        if deleting(deployment):
            continue
        owned = [r for r in sets if controlled_by(r, deployment["metadata"]["uid"])]
        try:
            await _converge(kube, deployment, owned, now)
        except ApiError as error:
            if not moved_on(error):
                raise


async def _converge(kube: Kube, deployment: Obj, owned: Sequence[Obj], now: float) -> None:
    newest = build_replica_set(deployment, 0)
    by_name = {r["metadata"]["name"]: r for r in owned}
    if newest["metadata"]["name"] not in by_name:
        by_name[newest["metadata"]["name"]] = await kube.apply(newest, manager=MANAGER)
    new = size_of(by_name.pop(newest["metadata"]["name"]))
    old = [size_of(r) for _, r in sorted(by_name.items())]
    sizes = next_sizes(deployment, new, old)
    for size in (new, *old):
        if sizes[size.name] != size.wanted:
            await _resize(kube, deployment, size.name, sizes[size.name])
    status = status_of(deployment, new, old, now)
    if status != deployment.get("status"):
        await kube.apply_status(status_patch(deployment, status), manager=MANAGER)
    await _prune(kube, deployment, old)


async def _resize(kube: Kube, deployment: Obj, name: str, replicas: int) -> None:
    namespace = key_of(deployment).namespace
    operations = [{"op": "replace", "path": "/spec/replicas", "value": replicas}]
    await kube.patch_json(REPLICA_SET, namespace, name, operations)


async def _prune(kube: Kube, deployment: Obj, old: Sequence[Size]) -> None:
    """Empty ReplicaSets beyond the history limit go."""
    limit = deployment["spec"].get("revisionHistoryLimit")
    empty = [s.name for s in old if s.wanted == s.current == 0]
    for name in empty[: max(0, len(empty) - (10 if limit is None else int(limit)))]:
        await kube.delete(REPLICA_SET, key_of(deployment).namespace, name)
