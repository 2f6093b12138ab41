"""A sandbox with the questions that tests of whole deployments ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import yaml
from moe_operator.api.names import LABEL_COMPONENT, LABEL_RANK
from moe_operator.runtime.kube import EVENT, MOE_DEPLOYMENT, POD, ApiError
from moe_operator.sandbox.run import Sandbox

Obj = dict[str, Any]
DEADLINE = 300.0  # a hang is told from a busy machine by this alone
POLL = 0.05
GATEWAY_PORT = 8080


def moe_deployment(
    name: str = "dsv31", checkpoint: str = "deepseek-v3.1", nodes: int = 2, **spec: Any
) -> Obj:
    base: Obj = {
        "model": {"source": f"pvc://checkpoints/{checkpoint}"},
        "engine": {"type": "vLLM", "image": "stub:blue"},
        "accelerators": {"product": "NVIDIA-H20", "nodes": nodes},
        "gateway": {"service": {"port": GATEWAY_PORT}},
        "restart": {"backoffSeconds": 0},
    }
    return {
        "apiVersion": "moe-operator.io/v1alpha1",
        "kind": "MoEDeployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**base, **spec},
    }


@dataclass
class Site:
    sandbox: Sandbox

    async def apply(self, obj: Obj) -> None:
        await self.sandbox.kube.apply(obj, manager="kubectl")

    def status(self, name: str = "dsv31") -> Obj:
        return dict(self.sandbox.kube.api.get(MOE_DEPLOYMENT, "default", name).get("status") or {})

    def condition(self, kind: str, name: str = "dsv31") -> Obj:
        return next((c for c in self.status(name).get("conditions", ()) if c["type"] == kind), {})

    def generation(self, name: str) -> int:
        return int(self.sandbox.kube.api.get(MOE_DEPLOYMENT, "default", name)["metadata"]["generation"])

    def stable(self, name: str = "dsv31") -> bool:
        status = self.status(name)
        return (
            self.condition("Ready", name).get("status") == "True"
            and status.get("observedGeneration") == self.generation(name)
            and status["rollout"]["phase"] == "Stable"
            and status["activeRevision"] == status["targetRevision"]
        )

    def exists(self, name: str = "dsv31") -> bool:
        try:
            self.sandbox.kube.api.get(MOE_DEPLOYMENT, "default", name)
        except ApiError as error:
            return not error.not_found
        return True

    def pods(self, component: str = "engine") -> list[Obj]:
        return list(self.sandbox.kube.api.list(POD, "default", labels=f"{LABEL_COMPONENT}={component}").items)

    def engine(self, rank: int) -> Obj:
        return next(p for p in self.pods() if p["metadata"]["labels"][LABEL_RANK] == str(rank))

    def uids(self, component: str = "engine") -> set[str]:
        return {p["metadata"]["uid"] for p in self.pods(component)}

    def incarnations(self, name: str = "dsv31") -> list[int]:
        """How often each group was recreated."""
        return [g["incarnation"] for g in self.status(name).get("groups", ())]

    async def until(self, check: Callable[[], object], what: str, deadline: float = DEADLINE) -> float:
        """Wait until ``check`` is true; how long it took, in seconds."""
        began = time.monotonic()
        while not check():
            if time.monotonic() - began > deadline:
                raise AssertionError(f"not within {deadline:g} s: {what}\n{self.story()}")
            await asyncio.sleep(POLL)
        return time.monotonic() - began

    async def until_open(self, url: str) -> None:
        """Wait until a GET is answered with 200: what a status says may be of a moment ago."""
        async with asyncio.timeout(DEADLINE), httpx.AsyncClient(timeout=5) as client:
            while True:
                try:
                    if (await client.get(url)).status_code == 200:
                        return
                except httpx.TransportError:
                    pass  # nobody listens yet
                await asyncio.sleep(POLL)

    def gateway_url(self, name: str = "dsv31") -> str:
        return self.sandbox.service_url(f"{name}-gateway", GATEWAY_PORT)

    def story(self) -> str:
        """Everything a person would look at."""
        parts = (
            [yaml.safe_dump(self.sandbox.kube.api.list(MOE_DEPLOYMENT).items[0].get("status"))]
            if (self.sandbox.kube.api.list(MOE_DEPLOYMENT).items)
            else ["no MoEDeployment"]
        )
        parts += [
            f"{e['reason']}: {e['message']}" for e in self.sandbox.kube.api.list(EVENT, "default").items[-30:]
        ]
        for pod in self.sandbox.kube.api.list(POD, "default").items:
            phase = (pod.get("status") or {}).get("phase")
            parts.append(
                f"--- {pod['metadata']['name']}: {phase} {pod['metadata'].get('deletionTimestamp', '')}"
            )
            for container in pod["spec"]["containers"]:
                tail = self.sandbox.logs(pod["metadata"]["name"], container["name"]).splitlines()[-5:]
                parts += [f"    {container['name']}: {line[:300]}" for line in tail]
        log = (self.sandbox.state.path / "operator.log").read_text().splitlines()[-8:]
        return "\n".join([*parts, *log])
