"""The sandbox as a scenario's cluster: processes of this machine, reached over its Kubernetes API."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network

from moe_operator.runtime.aio_kube import AioKube
from moe_operator.runtime.kube import POD, SERVICE
from moe_operator.sandbox.images import Images
from moe_operator.sandbox.loopback import DEFAULT_RANGE
from moe_operator.sandbox.objects import Key
from moe_operator.sandbox.run import Sandbox, SandboxConfig
from moe_operator.sandbox.service_proxy import ANNOTATION_PORT

from .backend import Supplies
from .demo import ROOT

PRESET = "h20-4x8"
MANAGER = "kubectl"
LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class SandboxBackend:
    """A running sandbox and a client of its API."""

    sandbox: Sandbox
    kube: AioKube

    def describe(self) -> str:
        """What it is made of."""
        return "sandbox: 4 fake nodes of 8 NVIDIA H20; pods are processes of this machine, Envoy is real"

    async def gateway_url(self, namespace: str, service: str) -> str:
        """The Service's own loopback address; its port may have moved where low ports need a privilege."""
        found = await self.kube.get(SERVICE, namespace, service)
        port = int(found["spec"]["ports"][0]["port"])
        annotations = found["metadata"].get("annotations") or {}
        moved = json.loads(annotations.get(ANNOTATION_PORT, "{}"))
        return f"http://{found['spec']['clusterIP']}:{moved.get(str(port), port)}"

    async def death(self) -> None:
        """What ends the sandbox before its time."""
        await asyncio.shield(self.sandbox.background.failed)

    async def evidence(self) -> str:
        """The last words of the operator and of every container that is not ready."""
        parts = [_tail("operator", (self.sandbox.state.path / "operator.log").read_text(errors="replace"))]
        for pod in (await self.kube.list(POD)).items:
            name, status = pod["metadata"]["name"], pod.get("status") or {}
            containers = [
                *(status.get("initContainerStatuses") or ()),
                *(status.get("containerStatuses") or ()),
            ]
            for container in containers:
                if not container.get("ready"):
                    log = self.sandbox.logs(name, container["name"], pod["metadata"]["namespace"])
                    parts.append(_tail(f"{name}/{container['name']}", log))
        return "\n".join(parts)

    def look_around(self) -> Sequence[str]:
        """Ways into the API."""
        return (f"KUBECONFIG={self.sandbox.kubeconfig} kubectl get moed,pods -o wide",)


@asynccontextmanager
async def sandbox_backend(
    supplies: Supplies, loopback: IPv4Network = DEFAULT_RANGE
) -> AsyncIterator[SandboxBackend]:
    """A sandbox for as long as it is entered."""
    config = SandboxConfig(
        nodes=PRESET,
        images=Images({image: _stub(image) for image in supplies.stub_images}),
        claims={Key("default", supplies.claim): supplies.checkpoints},
        loopback=loopback,
    )
    async with Sandbox(config) as sandbox:
        kubeconfig = str(sandbox.kubeconfig)
        async with await AioKube.connect(kubeconfig, manager=MANAGER) as kube:
            yield SandboxBackend(sandbox, kube)


def _stub(image: str) -> tuple[str, ...]:
    """The engine stub, which says that it is the version in the image's tag."""
    version = image.rpartition(":")[2]
    settings = (f"PYTHONPATH={ROOT}", f"STUB_VLLM_VERSION={version}")
    return ("env", *settings, sys.executable, "-m", "e2e.engine_stub", "vllm", "serve")


def _tail(title: str, text: str) -> str:
    return "\n".join([f"--- {title}", *text.splitlines()[-LOG_LINES:]])
