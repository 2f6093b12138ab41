"""The kind cluster as a scenario's cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from moe_operator.runtime.aio_kube import AioKube
from moe_operator.runtime.kube import NODE, SERVICE

from e2e.cluster.settings import Folders
from e2e.kind.bring_up import Site
from e2e.kind.evidence import evidence
from e2e.kind.release import NAME, NAMESPACE

MANAGER = "kubectl"


@dataclass(frozen=True, slots=True)
class KindBackend:
    """A cluster that is up, with the operator in it, and a client of its API."""

    site: Site
    kube: AioKube
    folders: Folders

    def describe(self) -> str:
        """What it is made of."""
        return (
            "kind: a real Kubernetes, 4 nodes of 8 pretended NVIDIA H20; pods are containers, Envoy is real"
        )

    async def gateway_url(self, namespace: str, service: str) -> str:
        """The Service's node port on any node; LookupError when it has none."""
        found = await self.kube.get(SERVICE, namespace, service)
        port = found["spec"]["ports"][0].get("nodePort")
        if not port:
            raise LookupError(f"Service {namespace}/{service} has no node port: give it type NodePort")
        return f"http://{await self._node_address()}:{port}"

    async def _node_address(self) -> str:
        nodes = (await self.kube.list(NODE)).items
        addresses = nodes[0]["status"]["addresses"]
        return str(next(a["address"] for a in addresses if a["type"] == "InternalIP"))

    async def death(self) -> None:
        """Nobody's process ends this cluster."""
        await asyncio.Event().wait()

    async def evidence(self) -> str:
        """Objects, events and last words."""
        return await asyncio.to_thread(evidence, self.site.record)

    def look_around(self) -> Sequence[str]:
        """Ways into the API."""
        return (
            f"export KUBECONFIG={self.site.record.kubeconfig} PATH={self.folders.bin}:$PATH",
            "kubectl get moed,pods -o wide",
            "kubectl explain moed.spec",
            f"helm -n {NAMESPACE} status {NAME}",
            "python -m e2e.cluster down      removes all of it",
        )


@asynccontextmanager
async def kind_backend(site: Site, folders: Folders) -> AsyncIterator[KindBackend]:
    """A client of the cluster for as long as it is entered; the cluster stays."""
    async with await AioKube.connect(site.record.kubeconfig, manager=MANAGER) as kube:
        yield KindBackend(site, kube, folders)
