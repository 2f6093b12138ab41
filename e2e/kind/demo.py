"""``make demo-kind``: the demo on the real cluster, which stays up with the deployment in it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

from moe_operator.runtime.kube import MOE_DEPLOYMENT, Kube

from e2e.checkpoints import build
from e2e.cluster.settings import Folders
from e2e.kind import shared_folder
from e2e.kind.backend import KindBackend, kind_backend
from e2e.kind.bring_up import Site
from e2e.scenarios.demo import CHECKPOINT, ROOT, Demo, demo_object
from e2e.scenarios.manifest import merge
from e2e.scenarios.replace_revision import Wish

PATCH = ROOT / "manifests/demo/kind.patch.yaml"
FIRST, NEXT = "0.33.0", "0.33.1"  # versions of the engine
GONE_SECONDS = 120.0


def kind_demo(site: Site, folders: Folders, clients: int, requests: int) -> Demo:
    """The demo on a cluster that is up."""
    image = {"spec": {"engine": {"image": site.images.stub_of(FIRST)}}}
    wish = Wish(merge(demo_object(PATCH), image), site.images.stub_of(NEXT), clients, requests)
    return Demo(wish, partial(_cluster, site, folders), lambda backend: backend.look_around())


@contextlib.asynccontextmanager
async def _cluster(site: Site, folders: Folders, wish: Wish) -> AsyncIterator[KindBackend]:
    """The cluster with the checkpoint in it and without the deployment of an earlier run."""
    await asyncio.to_thread(build, CHECKPOINT, shared_folder.checkpoints(folders) / CHECKPOINT)
    async with kind_backend(site, folders) as backend:
        meta = wish.deployment["metadata"]
        await _gone(backend.kube, meta["namespace"], meta["name"])
        yield backend


async def _gone(kube: Kube, namespace: str, name: str) -> None:
    """Delete a MoEDeployment and wait until it is away."""
    listing = await kube.list(MOE_DEPLOYMENT, namespace)
    if all(each["metadata"]["name"] != name for each in listing.items):
        return
    async with asyncio.timeout(GONE_SECONDS):
        events = kube.watch(MOE_DEPLOYMENT, namespace, resource_version=listing.resource_version)
        await kube.delete(MOE_DEPLOYMENT, namespace, name)
        async for event in events:
            if event.type == "DELETED" and event.object["metadata"]["name"] == name:
                return
