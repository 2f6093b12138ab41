"""The backends that must behave alike.

``memory``: ``MemoryKube`` on a ``MemoryApi``. ``rest``: ``AioKube`` → HTTP → ``RestServer`` → ``MemoryApi``.
``cluster``: ``AioKube`` on the real API server that ``MOE_CONTRACT_KUBECONFIG`` names; it joins when that is
set, and must be a cluster in which a namespace, a Node object and our CRD may be made.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from moe_operator.api.crd import custom_resource_definition
from moe_operator.runtime.aio_kube import AioKube
from moe_operator.runtime.kube import MOE_DEPLOYMENT, NAMESPACE, SERVICE_ACCOUNT, ApiError
from moe_operator.sandbox.api import MemoryApi, MemoryKube
from moe_operator.sandbox.rest import RestServer

from tests.contract.world import World, eventually, there

CRD = custom_resource_definition()
REAL = os.environ.get("MOE_CONTRACT_KUBECONFIG", "")


@asynccontextmanager
async def memory(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    api = MemoryApi()
    api.create(CRD)
    yield World(MemoryKube(api), forget_history=api.compact)


@asynccontextmanager
async def rest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    api = MemoryApi()
    api.create(CRD)
    kubeconfig = tmp_path_factory.mktemp("rest") / "kubeconfig"
    async with RestServer(api, admin_token="of-the-tests") as server:
        server.write_kubeconfig(kubeconfig)
        async with await AioKube.connect(str(kubeconfig)) as kube:
            yield World(kube, forget_history=api.compact)


@asynccontextmanager
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with await AioKube.connect(REAL) as kube:
        await kube.apply(CRD, manager="contract-tests")
        await eventually(lambda: _served(kube))
        # A real server forgets by itself: its watch cache never reaches back to its first write.
        yield World(kube, forget_history=lambda: None)


async def _served(kube: AioKube) -> bool:
    try:
        await kube.list(MOE_DEPLOYMENT)
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return True


BACKENDS = {"memory": memory, "rest": rest} | ({"cluster": cluster} if REAL else {})


@pytest.fixture(params=BACKENDS)
async def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with BACKENDS[request.param](tmp_path_factory) as world:
        world.namespace = f"contract-{uuid.uuid4().hex[:10]}"
        await world.kube.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}}
        )
        if request.param == "cluster":  # pods are refused until a controller has made it
            await eventually(lambda: there(world.kube, SERVICE_ACCOUNT, world.namespace, "default"))
        yield world
        if request.param == "cluster":
            await world.kube.delete(NAMESPACE, None, world.namespace)
