"""The kubelets of all nodes in one: pods that are bound to a node of this sandbox run here as processes.

Level-triggered: at every change the bound pods are listed and each has, or gets, its worker. Admission is
the kubelet's: a pod whose requests do not fit beside what runs on its node is Failed ``OutOf…`` and stays
so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from moe_operator.runtime.kube import CONFIG_MAP, NODE, POD, SECRET, ApiError, Obj
from moe_operator.sandbox.cluster_names import address_owner
from moe_operator.sandbox.controllers import changed_or_tick, notice
from moe_operator.sandbox.objects import Key, deleting, finished, key_of, moved_on, status_patch
from moe_operator.sandbox.pod_status import rejected_status
from moe_operator.sandbox.pod_worker import MANAGER, Machine, PodWorker
from moe_operator.sandbox.quantity import amounts, pod_requests, total

RESYNC_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A process and whose it is."""

    namespace: str
    pod: str
    container: str
    pid: int


class Kubelet:
    """Runs pods until it is closed."""

    def __init__(self, machine: Machine, release_address: Callable[[Hashable], None]) -> None:
        self._machine = machine
        self._release_address = release_address
        self._workers: dict[str, PodWorker] = {}
        self._changed = asyncio.Event()
        self._config_changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the API; never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(notice(self._machine.kube, (POD, NODE), self._changed))
            tasks.create_task(notice(self._machine.kube, (CONFIG_MAP, SECRET), self._config_changed))
            tasks.create_task(self._refresh_volumes())
            while True:
                await self._sync()
                await changed_or_tick(self._changed, RESYNC_SECONDS)

    async def close(self, grace: float) -> None:
        """End every pod's processes; the API's objects stay as they are."""
        await asyncio.gather(*(w.close(grace) for w in list(self._workers.values())))

    def running(self) -> list[RunningContainer]:
        """Every container process, in order of pod and container."""
        found = [
            RunningContainer(*key_of(worker.pod), container, pid)
            for worker in self._workers.values()
            for container, pid in worker.processes().items()
        ]
        return sorted(found, key=lambda r: (r.namespace, r.pod, r.container))

    def log_files(self, namespace: str, pod: str, container: str) -> list[Path]:
        """Logs of a container's runs, oldest first; empty when it never ran."""
        for worker in self._workers.values():
            if key_of(worker.pod) == (namespace, pod):
                runs = (self._machine.pod_root(worker.pod) / "logs" / container).glob("*.log")
                return sorted(runs, key=lambda path: int(path.stem))
        return []

    async def _refresh_volumes(self) -> None:
        while True:
            await self._config_changed.wait()
            self._config_changed.clear()
            for worker in list(self._workers.values()):
                await worker.refresh_volumes()

    async def _sync(self) -> None:
        nodes = {n["metadata"]["name"]: n for n in (await self._machine.kube.list(NODE)).items}
        pods = {
            p["metadata"]["uid"]: p
            for p in (await self._machine.kube.list(POD)).items
            if p["spec"].get("nodeName") in nodes
        }
        self._forget_ended()
        for uid, worker in self._workers.items():
            if uid not in pods:
                worker.vanish()
        for uid, pod in sorted(pods.items(), key=lambda item: _age(item[1])):
            if uid in self._workers:
                self._workers[uid].update(pod)
            elif not finished(pod):
                await self._take(pod, nodes[pod["spec"]["nodeName"]])

    def _forget_ended(self) -> None:
        for uid, worker in list(self._workers.items()):
            if worker.ended:
                del self._workers[uid]
                self._release_address(address_owner(worker.pod))

    async def _take(self, pod: Obj, node: Obj) -> None:
        """Begin with a pod that is new here."""
        uid, owner = pod["metadata"]["uid"], address_owner(pod)
        if any(address_owner(w.pod) == owner for w in self._workers.values()):
            return  # its predecessor of the same name is still on its way out; its end wakes us
        if deleting(pod):
            await self._let_go(pod)
        elif refusal := self._no_room(pod, node):
            await self._reject(pod, refusal)
        else:
            self._workers[uid] = PodWorker(pod, self._machine, self._changed.set)

    def _no_room(self, pod: Obj, node: Obj) -> Refusal | None:
        name = node["metadata"]["name"]
        here = [w.pod for w in self._workers.values() if w.pod["spec"]["nodeName"] == name and not w.ended]
        return no_room(pod, node, here)

    async def _let_go(self, pod: Obj) -> None:
        namespace, name = key_of(pod)
        try:
            await self._machine.kube.delete(POD, namespace, name, uid=pod["metadata"]["uid"], grace_seconds=0)
        except ApiError as error:
            if not moved_on(error):
                raise

    async def _reject(self, pod: Obj, refusal: Refusal) -> None:
        now = self._machine.clock()
        status = rejected_status(refusal.reason, refusal.message, now)
        try:
            await self._machine.kube.apply_status(status_patch(pod, status), manager=MANAGER)
        except ApiError as error:
            if not moved_on(error):
                raise
        await self._machine.recorder.record(pod, "Warning", refusal.reason, refusal.message, now)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a kubelet does not take a pod."""

    reason: str
    message: str


def no_room(pod: Obj, node: Obj, here: Iterable[Obj]) -> Refusal | None:
    """Whether a node lacks something for ``pod`` beside the pods that it has."""
    allocatable = amounts((node.get("status") or {}).get("allocatable"))
    used = total(pod_requests(p) for p in here if not finished(p))
    for name, wanted in sorted(pod_requests(pod).items()):
        taken, offered = used.get(name, Decimal(0)), allocatable.get(name, Decimal(0))
        if wanted and taken + wanted > offered:
            return Refusal(
                f"OutOf{name}",
                f"Node didn't have enough resource: {name}, requested: {wanted.normalize():f}, "
                f"used: {taken.normalize():f}, capacity: {offered.normalize():f}",
            )
    return None


def _age(pod: Obj) -> tuple[str, Key]:
    return pod["metadata"].get("creationTimestamp", ""), key_of(pod)
