"""The backends that must behave alike.

``memory``: ``MemoryKube`` on a ``MemoryApi``. ``rest``: ``AioKube`` → HTTP → ``RestServer`` → ``MemoryApi``.
``cluster``: ``AioKube`` on the real API server that ``MOE_CONTRACT_KUBECONFIG`` names; it joins when that is
set, and must be a cluster in which namespaces, a Node object and a CRD may be made. Everything made there has
a name of its own and is removed; what else lives in the cluster does not matter.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
from moe_operator.runtime import aio_kube
from moe_operator.runtime.aio_kube import AioKube
from moe_operator.runtime.kube import (
    CONFIG_MAP,
    CRD,
    NAMESPACE,
    POD,
    SERVICE_ACCOUNT,
    ApiError,
    Kind,
    Kube,
    Obj,
    kind_of,
)
from moe_operator.sandbox.api import MemoryApi, MemoryKube
from moe_operator.sandbox.rest import RestServer

from tests.contract.world import MOE, World, eventually, moe_crd, there

REAL = os.environ.get("MOE_CONTRACT_KUBECONFIG", "")
collect_ignore = [] if REAL else ["test_kubectl_on_cluster.py"]
T = TypeVar("T")
MAY_BE_HELD = (MOE, CONFIG_MAP, POD)  # kinds to which the tests give finalizers


@asynccontextmanager
async def memory(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    api = MemoryApi()
    api.create(moe_crd())
    yield World(MemoryKube(api), forget_history=api.compact)


@asynccontextmanager
async def rest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    api = MemoryApi()
    api.create(moe_crd())
    kubeconfig = tmp_path_factory.mktemp("rest") / "kubeconfig"
    async with RestServer(api, admin_token="of-the-tests") as server:
        server.write_kubeconfig(kubeconfig)
        async with await AioKube.connect(str(kubeconfig)) as kube:
            yield World(kube, forget_history=api.compact)


@asynccontextmanager
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with await AioKube.connect(REAL) as kube:
        # A real server forgets by itself: its watch cache never reaches back to its first write.
        yield World(kube, forget_history=lambda: None)


BACKENDS = {"memory": memory, "rest": rest} | ({"cluster": cluster} if REAL else {})


@pytest.fixture(scope="session", autouse=True)
def our_kind_is_known() -> Iterator[None]:
    """The client finds the tests' custom kind by its objects, as it finds the operator's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aio_kube, "kind_of", _kind_of)
        yield


def _kind_of(obj: Obj) -> Kind:
    return MOE if obj["kind"] == MOE.kind else kind_of(obj)


@pytest.fixture(scope="session")
def custom_kind_in_the_cluster(our_kind_is_known: None) -> Iterator[None]:
    """Our CRD under its test name, in the real cluster for as long as the tests run."""
    asyncio.run(_with_client(_install))
    yield
    asyncio.run(_with_client(_uninstall))


async def _install(kube: AioKube) -> None:
    await kube.create(moe_crd())
    await eventually(lambda: _served(kube))


async def _uninstall(kube: AioKube) -> None:
    name = moe_crd()["metadata"]["name"]
    await kube.delete(CRD, None, name)
    await eventually(lambda: _gone(kube, name))


async def _gone(kube: AioKube, name: str) -> bool:
    return not await there(kube, CRD, None, name)


async def _served(kube: AioKube) -> bool:
    try:
        await kube.list(MOE)
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return True


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "cluster":
        request.getfixturevalue("custom_kind_in_the_cluster")
    return str(request.param)


@pytest.fixture
async def world(backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with BACKENDS[backend](tmp_path_factory) as world:
        world.namespace = await _made(world.kube)
        if backend == "cluster":  # pods are refused until a controller has made it
            await eventually(lambda: there(world.kube, SERVICE_ACCOUNT, world.namespace, "default"))
        yield world
        await _release(world)
        if await there(world.kube, NAMESPACE, None, world.namespace):
            await world.kube.delete(NAMESPACE, None, world.namespace)


@pytest.fixture
async def tidy_world(
    backend: str, tmp_path_factory: pytest.TempPathFactory, namespace_for_many: str
) -> AsyncIterator[World]:
    """For tests that make nothing but objects of our own kind.

    In a real cluster they share a namespace, which nobody but them uses: to end one costs a real cluster more
    than they do.
    """
    async with BACKENDS[backend](tmp_path_factory) as world:
        world.namespace = namespace_for_many or await _made(world.kube)
        yield world
        for item in (await world.kube.list(MOE, world.namespace)).items:
            await world.kube.delete(MOE, world.namespace, item["metadata"]["name"])


@pytest.fixture
def namespace_for_many(backend: str, request: pytest.FixtureRequest) -> str:
    """One that is there already; "" where a world lasts for one test only."""
    return request.getfixturevalue("shared_namespace") if backend == "cluster" else ""


@pytest.fixture(scope="session")
def shared_namespace() -> Iterator[str]:
    """In the real cluster."""
    name = asyncio.run(_with_client(_made))
    yield name
    asyncio.run(_with_client(lambda kube: kube.delete(NAMESPACE, None, name)))


async def _with_client(act: Callable[[AioKube], Awaitable[T]]) -> T:
    async with await AioKube.connect(REAL) as kube:
        return await act(kube)


async def _made(kube: Kube) -> str:
    """The name of a new namespace."""
    name = f"contract-{uuid.uuid4().hex[:10]}"
    await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


async def _release(world: World) -> None:
    """Let go of everything, so that the namespace can go also after a test that failed."""
    for kind in MAY_BE_HELD:
        for item in (await world.kube.list(kind, world.namespace)).items:
            if item["metadata"].get("finalizers"):
                drop = [{"op": "remove", "path": "/metadata/finalizers"}]
                await world.kube.patch_json(kind, world.namespace, item["metadata"]["name"], drop)
