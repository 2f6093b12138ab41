"""Objects the contract tests write, and waiting for what a real cluster does in its own time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import Any

from moe_operator.api.crd import custom_resource_definition
from moe_operator.runtime.kube import ApiError, Kind, Kube, Obj, WatchEvent

ANOTHER = "11111111-2222-3333-4444-555555555555"  # a uid that nothing has
DEADLINE = 90.0  # a new custom kind is unknown to a cluster's garbage collector for half a minute

# Our custom resource under a name of the tests' own: an operator or a chart in the cluster is not disturbed.
MOE = Kind(f"t{uuid.uuid4().hex[:8]}.contract.example", "v1alpha1", "ContractMoE", "contractmoes")


@cache
def moe_crd() -> Obj:
    """Our CRD, but for its names."""
    crd = custom_resource_definition()
    crd["metadata"]["name"] = f"{MOE.plural}.{MOE.group}"
    crd["spec"]["group"] = MOE.group
    crd["spec"]["names"] = {"kind": MOE.kind, "plural": MOE.plural, "singular": MOE.kind.lower()}
    return crd


@dataclass
class World:
    """One backend with a namespace of its own."""

    kube: Kube
    forget_history: Callable[[], None]
    namespace: str = ""

    def _meta(self, name: str, meta: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "namespace": self.namespace, **meta}

    def config_map(self, name: str = "cm", data: dict[str, str] | None = None, **meta: Any) -> Obj:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self._meta(name, meta),
            "data": data if data is not None else {"a": "1"},
        }

    def deployment(self, name: str = "moe", **meta: Any) -> Obj:
        """A MoEDeployment."""
        return {
            "apiVersion": MOE.api_version,
            "kind": MOE.kind,
            "metadata": self._meta(name, meta),
            "spec": {
                "model": {"source": "https://models.example/kimi"},
                "engine": {"type": "vLLM", "image": "vllm:1"},
                "accelerators": {"product": "NVIDIA-H20", "nodes": 2},
            },
        }

    def status(self, name: str = "moe", **status: Any) -> Obj:
        """A MoEDeployment's status, to be applied."""
        return {
            "apiVersion": MOE.api_version,
            "kind": MOE.kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "status": status,
        }

    def pod(self, name: str = "pod", *containers: Obj, node: str = "", **meta: Any) -> Obj:
        spec: Obj = {
            "containers": list(containers) or [container("main")],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 20,
        }
        if node:
            spec["nodeName"] = node
        else:
            spec["schedulerName"] = "nobody"  # a real cluster's scheduler leaves it alone
        return {"apiVersion": "v1", "kind": "Pod", "metadata": self._meta(name, meta), "spec": spec}


def container(name: str, **fields: Any) -> Obj:
    return {"name": name, "image": "registry.example/image:1", **fields}


def condition(kind: str, status: str = "True") -> Obj:
    return {
        "type": kind,
        "status": status,
        "reason": "Test",
        "message": "",
        "lastTransitionTime": "2026-11-30T00:00:00Z",
        "observedGeneration": 1,
    }


def owned_by(owner: Obj, *, block: bool = False, controller: bool = False) -> Obj:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": block,
        "controller": controller,
    }


def version(obj: Obj) -> str:
    return str(obj["metadata"]["resourceVersion"])


def managers(obj: Obj) -> set[tuple[str, str, str]]:
    return {
        (entry["manager"], entry["operation"], entry.get("subresource", ""))
        for entry in obj["metadata"]["managedFields"]
    }


async def there(kube: Kube, kind: Kind, namespace: str | None, name: str) -> bool:
    try:
        await kube.get(kind, namespace, name)
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return True


async def refused(call: Awaitable[object]) -> tuple[int, str]:
    """Status and reason of the refusal that a call must meet."""
    try:
        await call
    except ApiError as error:
        return error.status, error.reason
    raise AssertionError("the server accepted it")


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds; at once where the server's controllers are part of it."""
    async with asyncio.timeout(DEADLINE):
        while not await condition():
            await asyncio.sleep(0.05)


class Seen:
    """What a watch has brought so far; bookmarks are not counted."""

    def __init__(self, events: Any) -> None:
        self._events = events

    async def take(self, count: int) -> list[tuple[str, str]]:
        """The next ``count`` changes as (type, name)."""
        return [(event.type, event.object["metadata"]["name"]) for event in await self.events(count)]

    async def events(self, count: int) -> list[WatchEvent]:
        found: list[WatchEvent] = []
        async with asyncio.timeout(DEADLINE):
            while len(found) < count:
                event = await anext(self._events)
                if event.type != "BOOKMARK":
                    found.append(event)
        return found


class watching:
    """``async with watching(kube, …) as seen``: a watch that is closed at the end."""

    def __init__(self, kube: Kube, *where: Any, **options: Any) -> None:
        self._stream = aclosing(kube.watch(*where, **options))  # type: ignore[type-var]

    async def __aenter__(self) -> Seen:
        return Seen(await self._stream.__aenter__())

    async def __aexit__(self, *_: object) -> None:
        await self._stream.__aexit__(None, None, None)
