"""Which watch event wakes which MoEDeployment.

Events only wake; nothing is ever decided from their contents. An event that cannot matter (a node's
heartbeat, our own status write) is recognised by comparing fingerprints with the last event of the same
object, so a converged cluster stays quiet.

What changes the question (a rank is lost, the MoEDeployment was edited) overtakes a pass that still waits for
answers: a leader whose rank is gone may never answer. Each pod and each edit does so once.

Invariant: forgetting everything here costs nothing but one superfluous pass per MoEDeployment.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moe_operator.api.names import COMPONENT_ENGINE, LABEL_COMPONENT, LABEL_DEPLOYMENT, digest, label_value
from moe_operator.runtime.kube import Obj
from moe_operator.runtime.queue import WorkQueue

NODE_COALESCE_SECONDS = 1.0  # nodes come and go in racks
SWEEP_SECONDS = 180.0
ENDED = {"Succeeded", "Failed"}  # phases of a pod that never runs again
SWEEP_SPREAD_SECONDS = 120.0  # 180 ± 120: every MoEDeployment gets a pass every 60–300 s


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One MoEDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class WakeUps:
    """Turns watch events and sweeps into adds to the work queue."""

    def __init__(self, queue: WorkQueue[Key], rng: random.Random) -> None:
        self._queue = queue
        self._rng = rng
        self._by_label: dict[tuple[str, str], Key] = {}
        self._fingerprints: dict[str, str] = {}  # uid → digest of what mattered of the object
        self._ending: set[str] = set()  # uids of engine pods that are known to end

    @property
    def known(self) -> tuple[Key, ...]:
        """Every MoEDeployment seen so far and not forgotten."""
        return tuple(self._by_label.values())

    def deployment_changed(self, obj: Obj, *, deleted: bool = False) -> None:
        """A MoEDeployment was listed, created, changed or removed."""
        key = key_of(obj)
        self._learn(key)
        if self._news(obj, _wish(obj), deleted=deleted):
            self._queue.overtake(key)

    def child_changed(self, obj: Obj, *, deleted: bool = False) -> None:
        """An object that carries the deployment label was listed, created, changed or removed."""
        meta = obj["metadata"]
        label = (meta.get("labels") or {}).get(LABEL_DEPLOYMENT, "")
        lost = self._is_lost(obj, deleted=deleted)
        key = self._by_label.get((meta.get("namespace", ""), label))
        if key is None:
            return
        if lost:
            self._queue.overtake(key)
        elif deleted or _is_over(obj):  # its place is free
            self._queue.add(key)
        else:
            self._queue.add_soon(key)

    def node_changed(self, obj: Obj, *, deleted: bool = False) -> None:
        """A node was listed, created, changed or removed; only GPU nodes concern us."""
        facts = _gpu_node(obj)
        was_gpu_node = obj["metadata"]["uid"] in self._fingerprints
        if facts is None and not was_gpu_node:
            return
        if self._news(obj, facts, deleted=deleted or facts is None):
            for key in self.known:
                self._queue.add_after(key, NODE_COALESCE_SECONDS)

    def sweep(self, deployments: Iterable[Obj]) -> None:
        """A fresh LIST of all MoEDeployments: give each a pass at a random moment of the next two minutes."""
        for obj in deployments:
            key = key_of(obj)
            self._learn(key)
            self._queue.add_after(key, self._rng.uniform(0, SWEEP_SPREAD_SECONDS))

    def forget(self, key: Key) -> None:
        """The MoEDeployment does not exist any more."""
        self._by_label.pop((key.namespace, label_value(key.name)), None)

    def _learn(self, key: Key) -> None:
        self._by_label[key.namespace, label_value(key.name)] = key

    def _is_lost(self, obj: Obj, *, deleted: bool) -> bool:
        """Whether this is the first that is heard of the end of an engine's pod."""
        meta = obj["metadata"]
        if (meta.get("labels") or {}).get(LABEL_COMPONENT) != COMPONENT_ENGINE:
            return False
        ends = deleted or bool(meta.get("deletionTimestamp")) or _phase(obj) in ENDED
        first = ends and meta["uid"] not in self._ending
        if deleted:
            self._ending.discard(meta["uid"])
        elif ends:
            self._ending.add(meta["uid"])
        return first

    def _news(self, obj: Obj, facts: Any, *, deleted: bool) -> bool:
        uid = obj["metadata"]["uid"]
        if deleted:
            self._fingerprints.pop(uid, None)
            return True
        fingerprint = digest(json.dumps(facts, sort_keys=True), 16)
        news = self._fingerprints.get(uid) != fingerprint
        self._fingerprints[uid] = fingerprint
        return news


def _is_over(obj: Obj) -> bool:
    """Whether this is a pod on its way out of which nothing runs any more."""
    return bool(obj["metadata"].get("deletionTimestamp")) and _phase(obj) in ENDED


def _phase(obj: Obj) -> str | None:
    phase: str | None = (obj.get("status") or {}).get("phase")
    return phase


def key_of(obj: Obj) -> Key:
    """The key of a MoEDeployment object."""
    return Key(obj["metadata"]["namespace"], obj["metadata"]["name"])


def _wish(obj: Obj) -> Any:
    """What of a MoEDeployment somebody else may have changed: everything but its status."""
    meta = obj["metadata"]
    return (
        meta.get("generation"),
        meta.get("deletionTimestamp"),
        meta.get("annotations"),
        meta.get("labels"),
        meta.get("finalizers"),
    )


def _gpu_node(node: Obj) -> Any:
    """What of a node decides placements; None for a node without extended resources."""
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    capacity, allocatable = (_extended(status.get(part)) for part in ("capacity", "allocatable"))
    if not capacity and not allocatable:
        return None
    ready = [c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"]
    return (
        capacity,
        allocatable,
        ready,
        meta.get("labels"),
        meta.get("deletionTimestamp"),
        spec.get("unschedulable"),
        spec.get("taints"),
    )


def _extended(resources: Obj | None) -> dict[str, Any]:
    return {name: amount for name, amount in (resources or {}).items() if "/" in name}
