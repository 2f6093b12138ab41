"""ReplicaSet → pods: as many live pods as it asks for, made from its template.

A pod that ended or is being deleted does not count. When there are too many, those go first that serve
least: not bound, then not ready, then the youngest.
"""

from __future__ import annotations

from collections.abc import Sequence

from moe_operator.api.moments import elapsed
from moe_operator.api.names import digest
from moe_operator.runtime.kube import POD, REPLICA_SET, ApiError, Kube, Obj
from moe_operator.sandbox.deployments import wanted_replicas
from moe_operator.sandbox.objects import (
    condition,
    controlled_by,
    deleting,
    finished,
    is_true,
    key_of,
    moved_on,
    owner_reference,
    status_patch,
)

MANAGER = "replicaset-controller"


def build_pod(owner: Obj, name: str, template: Obj, labels: Obj | None = None) -> Obj:
    """A pod of ``template`` that ``owner`` controls."""
    meta = template.get("metadata") or {}
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": {
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "labels": {**(meta.get("labels") or {}), **(labels or {})},
            "annotations": dict(meta.get("annotations") or {}),
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": template["spec"],
    }


def fresh_name(owner: Obj, now: float, ordinal: int) -> str:
    """Owner's name and five characters that no earlier pod had.

    A function of the clock rather than of chance, so that a simulation repeats itself.
    """
    seed = f"{owner['metadata']['uid']}/{now}/{ordinal}"
    return f"{owner['metadata']['name'][:57]}-{digest(seed, length=5)}"


def superfluous(pods: Sequence[Obj], wanted: int) -> list[Obj]:
    """Which live pods go when there are more than ``wanted``."""
    by_age = sorted(pods, key=lambda p: p["metadata"].get("creationTimestamp", ""), reverse=True)
    by_use = sorted(by_age, key=lambda p: (bool(p["spec"].get("nodeName")), is_true(p, "Ready")))
    return by_use[: max(0, len(pods) - wanted)]


def available(pod: Obj, min_ready_seconds: int, now: float) -> bool:
    """Whether a pod has been ready for long enough."""
    ready = condition(pod, "Ready")
    if ready is None or ready["status"] != "True":
        return False
    return elapsed(ready["lastTransitionTime"], now) >= min_ready_seconds


def status_of(replica_set: Obj, live: Sequence[Obj], now: float) -> Obj:
    """What the ReplicaSet says of itself."""
    patience = int(replica_set["spec"].get("minReadySeconds") or 0)
    return {
        "observedGeneration": replica_set["metadata"].get("generation", 1),
        "replicas": len(live),
        "fullyLabeledReplicas": len(live),
        "readyReplicas": sum(is_true(p, "Ready") for p in live),
        "availableReplicas": sum(available(p, patience, now) for p in live),
    }


async def step(kube: Kube, now: float) -> None:
    """One look at every ReplicaSet."""
    sets = (await kube.list(REPLICA_SET)).items
    if not sets:
        return
    pods = (await kube.list(POD)).items
    for replica_set in sets:
        if deleting(replica_set):
            continue
        owned = [p for p in pods if controlled_by(p, replica_set["metadata"]["uid"])]
        try:
            await _converge(kube, replica_set, owned, now)
        except ApiError as error:
            if not moved_on(error):
                raise


async def _converge(kube: Kube, replica_set: Obj, owned: Sequence[Obj], now: float) -> None:
    live = [p for p in owned if not deleting(p) and not finished(p)]
    wanted = wanted_replicas(replica_set)
    status = status_of(replica_set, live, now)
    if status != replica_set.get("status"):
        await kube.apply_status(status_patch(replica_set, status), manager=MANAGER)
    for ordinal in range(wanted - len(live)):
        name = fresh_name(replica_set, now, len(owned) + ordinal)
        await kube.create(build_pod(replica_set, name, replica_set["spec"]["template"]))
    for pod in superfluous(live, wanted):
        namespace, name = key_of(pod)
        await kube.delete(POD, namespace, name, uid=pod["metadata"]["uid"])
