"""A small world for runtime tests: an in-memory API server that knows our CRD, and objects to put into it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from moe_operator.api.crd import custom_resource_definition
from moe_operator.api.names import API_VERSION, KIND, LABEL_DEPLOYMENT
from moe_operator.api.policy import OperatorPolicy
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.runtime.kube import MOE_DEPLOYMENT, ApiError, Obj
from moe_operator.sandbox.api import MemoryApi, MemoryKube

GPU = "nvidia.com/gpu"
WRITES = ("apply", "apply_status", "create", "replace", "patch_json", "delete")


async def never(_: object) -> None:
    """A pass that nothing overtakes."""
    await asyncio.Event().wait()


def memory_api(*, collects_garbage: bool = True, clock: Callable[[], float] = time.time) -> MemoryApi:
    api = MemoryApi(auto_collect=collects_garbage, clock=clock)
    api.create(custom_resource_definition())
    return api


def deployment(name: str = "kimi", namespace: str = "default", **metadata: Any) -> Obj:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {
            "model": {"source": "https://models.example/kimi"},
            "engine": {"type": "vLLM", "image": "vllm:1"},
            "accelerators": {"product": "NVIDIA-H20", "nodes": 2},
        },
    }


def controlled_by(owner: Obj) -> list[Obj]:
    meta = owner["metadata"]
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def config_map(name: str, owner: Obj | None = None, deployment: str = "kimi") -> Obj:
    meta: Obj = {"name": name, "namespace": "default", "labels": {LABEL_DEPLOYMENT: deployment}}
    if owner:
        meta["ownerReferences"] = controlled_by(owner)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"k": "v"}}


def pod(
    name: str,
    owner: Obj | None = None,
    *,
    deployment: str = "kimi",
    gpus: int = 0,
    node: str = "",
    namespace: str = "default",
) -> Obj:
    container: Obj = {"name": "engine", "image": "vllm:1"}
    if gpus:
        container["resources"] = {"limits": {GPU: str(gpus)}, "requests": {GPU: str(gpus)}}
    meta: Obj = {"name": name, "namespace": namespace, "labels": {LABEL_DEPLOYMENT: deployment}}
    if owner:
        meta["ownerReferences"] = controlled_by(owner)
    spec: Obj = {"containers": [container]}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def node(name: str, gpus: int = 8) -> Obj:
    resources = {"cpu": "64", "memory": "1Ti", "pods": "110"} | ({GPU: str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-H20"}},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def status(target: str = "abc", **more: Any) -> Obj:
    return {"observedGeneration": 1, "targetRevision": target, **more}


def snapshot(obj: Obj, **more: Any) -> Snapshot:
    return Snapshot(now=1_000_000.0, policy=OperatorPolicy(), object=obj, **more)


@dataclass
class World:
    """The API server, a client of it that counts, and faults to inject: write number → error to raise."""

    api: MemoryApi = field(default_factory=memory_api)
    calls: list[tuple[str, str]] = field(default_factory=list)
    faults: dict[str, ApiError] = field(default_factory=dict)  # verb → error, until removed

    def __post_init__(self) -> None:
        self.kube = RecordingKube(self)

    def add(self, obj: Obj) -> Obj:
        return self.api.create(obj)

    def read(self, name: str = "kimi") -> Obj:
        return self.api.get(MOE_DEPLOYMENT, "default", name)

    @property
    def writes(self) -> list[str]:
        return [verb for verb, _ in self.calls if verb in WRITES]

    @property
    def reads(self) -> Counter[str]:
        return Counter(kind for verb, kind in self.calls if verb not in WRITES)


class RecordingKube(MemoryKube):
    """MemoryKube that notes every call and raises the fault injected for its verb."""

    def __init__(self, world: World) -> None:
        super().__init__(world.api)
        self._world = world

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in (*WRITES, "get", "list"):
            return found
        return _recorded(self._world, name, found)


def _recorded(world: World, verb: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def recorded(subject: Any, *args: Any, **options: Any) -> Any:
        kind = subject["kind"] if isinstance(subject, dict) else subject.kind
        world.calls.append((verb, kind))
        if verb in world.faults:
            raise world.faults[verb]
        return await call(subject, *args, **options)

    return recorded
