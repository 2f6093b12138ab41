"""The cluster with the questions that end-to-end tests ask."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import httpx
from moe_operator.api.names import (
    COMPONENT_ENGINE,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    LABEL_RANK,
    gateway_name,
)
from moe_operator.runtime.aio_kube import AioKube
from moe_operator.runtime.kube import KINDS, MOE_DEPLOYMENT, POD, ApiError

from e2e.cluster.command import attempt, run
from e2e.kind.backend import KindBackend
from e2e.kind.bring_up import Site
from e2e.kind.release import NAME, NAMESPACE
from e2e.scenarios.follow import Follower
from e2e.scenarios.view import View

Obj = dict[str, Any]
SECONDS = 300.0  # for anything that is waited for; a hang is told from a slow machine by this alone
POLL = 0.1
TAKEN = "taken"
GO = f"""
import sys, urllib.request as r
r.urlopen(r.Request(sys.argv[1], sys.argv[2].encode(), method='POST'))
print({TAKEN!r}, flush=True)
"""
CHILDREN = ("Pod", "Service", "ConfigMap", "Deployment", "ReplicaSet", "ControllerRevision", "Job", "Role",
            "RoleBinding", "ServiceAccount")  # fmt: skip


@dataclass
class World:
    """One namespace of the cluster, its API and its containers."""

    backend: KindBackend
    kube: AioKube
    namespace: str

    @property
    def site(self) -> Site:
        return self.backend.site

    def kubectl(self, *arguments: str) -> str:
        return self.site.record.client("-n", self.namespace, *arguments)

    async def kubectl_soon(self, *arguments: str) -> str:
        """kubectl beside everything else that goes on."""
        return await asyncio.to_thread(self.kubectl, *arguments)

    async def apply(self, obj: Obj, manager: str = "kubectl") -> Obj:
        return await self.kube.apply(obj, manager=manager)

    async def view(self, name: str) -> View:
        return View.of(await self.kube.get(MOE_DEPLOYMENT, self.namespace, name))

    async def serve(self, obj: Obj) -> View:
        """Apply and wait until that spec serves and nothing else is left of another one.

        What other tests have left goes first: the four nodes are all that there is.
        """
        await self.clear(but=obj["metadata"]["name"])
        await self.apply(obj)
        return await self.until(obj["metadata"]["name"], settled, "it serves")

    async def clear(self, but: str = "") -> None:
        """Delete every deployment that other tests have left, ``but`` one of that name."""
        for other in (await self.kube.list(MOE_DEPLOYMENT, self.namespace)).items:
            if other["metadata"]["name"] != but:
                await self.delete(other["metadata"]["name"])

    async def until(self, name: str, done: Callable[[View], bool], what: str) -> View:
        async with Follower(self.kube, self.namespace, name) as follower:
            return await follower.until(done, what, SECONDS, lambda _: None)

    async def poll(self, check: Callable[[], Coroutine[Any, Any, object]], what: str) -> float:
        """Ask again and again; how long it took until the answer was yes, in seconds."""
        began = time.monotonic()
        while not await check():
            if time.monotonic() - began > SECONDS:
                raise AssertionError(f"not within {SECONDS:g} s: {what}")
            await asyncio.sleep(POLL)
        return time.monotonic() - began

    async def exists(self, name: str) -> bool:
        try:
            await self.kube.get(MOE_DEPLOYMENT, self.namespace, name)
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return True

    async def gone(self, name: str) -> float:
        async def is_gone() -> bool:
            return not await self.exists(name)

        return await self.poll(is_gone, f"{name} is gone")

    async def delete(self, name: str) -> float:
        """Delete a MoEDeployment and wait until it is away; seconds."""
        await self.kube.delete(MOE_DEPLOYMENT, self.namespace, name)
        return await self.gone(name)

    async def left(self, name: str) -> dict[str, list[str]]:
        """Kind → names of everything that carries the deployment's label."""
        found = {}
        for kind in (each for each in KINDS if each.kind in CHILDREN):
            items = (await self.kube.list(kind, self.namespace, labels=f"{LABEL_DEPLOYMENT}={name}")).items
            if items:
                found[kind.kind] = [item["metadata"]["name"] for item in items]
        return found

    async def pods(self, name: str, component: str = COMPONENT_ENGINE) -> list[Obj]:
        labels = f"{LABEL_DEPLOYMENT}={name},{LABEL_COMPONENT}={component}"
        return list((await self.kube.list(POD, self.namespace, labels=labels)).items)

    async def uids(self, name: str, component: str = COMPONENT_ENGINE) -> set[str]:
        return {pod["metadata"]["uid"] for pod in await self.pods(name, component)}

    async def rank(self, name: str, rank: int) -> Obj:
        pods = await self.pods(name)
        return next(pod for pod in pods if pod["metadata"]["labels"][LABEL_RANK] == str(rank))

    async def url(self, name: str) -> str:
        return await self.backend.gateway_url(self.namespace, gateway_name(name))

    async def answers(self, name: str, model: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=await self.url(name), timeout=60, trust_env=False) as client:
            return await client.post(
                "/v1/completions", json={"model": model, "prompt": "Hello", "max_tokens": 4}
            )

    def kill(self, pod: Obj, container: str, signal: str = "SIGKILL") -> None:
        """Send a signal to the first process of a container, past the kubelet."""
        container_id = container_status(pod, container)["containerID"].removeprefix("containerd://")
        task = ("ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", signal, container_id)
        run("docker", "exec", pod["spec"]["nodeName"], *task)

    def restarts(self, pod: Obj, container: str) -> int:
        """How often the kubelet has started a container again."""
        return int(container_status(pod, container)["restartCount"])

    async def fault(self, pod: Obj, fault: Obj) -> None:
        """Make the stub misbehave through its admin port.

        A stub that is told to end takes the program that told it along: what counts is that it was told.
        """
        url = f"http://127.0.0.1:{ADMIN_PORT}/_stub/faults"
        name, record = pod["metadata"]["name"], self.site.record
        kubectl = (record.kubectl, "--kubeconfig", record.kubeconfig, "-n", self.namespace)
        program = ("exec", name, "-c", "engine", "--", "python3", "-c", GO, url, json.dumps(fault))
        told = await asyncio.to_thread(attempt, *kubectl, *program)
        assert told.out.strip() == TAKEN, told

    async def operators(self) -> list[Obj]:
        """Pods of the operator itself."""
        listing = await self.kube.list(POD, NAMESPACE, labels=f"app.kubernetes.io/name={NAME}")
        return [pod for pod in listing.items if not pod["metadata"].get("deletionTimestamp")]

    async def scale_operator(self, replicas: int) -> None:
        """Change the number of operator pods and wait until that many run."""
        client = self.site.record.client
        scale = ("-n", NAMESPACE, "scale", f"deployment/{NAME}", f"--replicas={replicas}")
        await asyncio.to_thread(client, *scale)

        async def reached() -> bool:
            pods = (await self.kube.list(POD, NAMESPACE, labels=f"app.kubernetes.io/name={NAME}")).items
            ready = [pod for pod in pods if is_ready(pod)]
            return len(pods) == len(ready) == replicas

        await self.poll(reached, f"{replicas} operators run")

    async def kill_operators(self) -> None:
        """kill -9 of every operator's process; their kubelets start them again."""
        for pod in await self.operators():
            if is_ready(pod):
                await asyncio.to_thread(self.kill, pod, "operator")


ADMIN_PORT = 8099


def settled(view: View) -> bool:
    """The newest spec serves, whole, and nothing of another revision is left."""
    return view.current and view.settled(view.status.target_revision)


def container_status(pod: Obj, name: str) -> Obj:
    """Of a container or a sidecar."""
    status = pod["status"]
    statuses = (*status["containerStatuses"], *status.get("initContainerStatuses", ()))
    return dict(next(each for each in statuses if each["name"] == name))


def is_ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
