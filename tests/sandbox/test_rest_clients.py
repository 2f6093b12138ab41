"""The clients that the sandbox's API is for: kopf, the official client with its discovery."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_kube_config
from kubernetes.aio.dynamic import DynamicClient
from moe_operator.api.crd import custom_resource_definition
from moe_operator.runtime.kube import MOE_DEPLOYMENT, Obj
from moe_operator.sandbox.api import MemoryApi
from moe_operator.sandbox.rest import RestServer

CRD = custom_resource_definition()
KOPF_HANDLERS = """
import kopf

@kopf.on.startup()
async def configure(settings, **_):
    settings.posting.enabled = False

@kopf.on.event("moe-operator.io", "v1alpha1", "moedeployments")
async def seen(type, name, body, **_):
    print("event", type, name, body["spec"]["replicas"], flush=True)
"""


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    api.create(CRD)
    return api


@pytest.fixture
async def kubeconfig(api: MemoryApi, tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "kubeconfig"
    async with RestServer(api, admin_token="secret") as server:
        server.write_kubeconfig(path)
        yield path


def moe(name: str, replicas: int = 1) -> Obj:
    return {
        "apiVersion": "moe-operator.io/v1alpha1",
        "kind": "MoEDeployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "model": {"source": "https://models.example/kimi"},
            "engine": {"type": "vLLM", "image": "vllm:1"},
            "accelerators": {"product": "NVIDIA-H20", "nodes": 2},
        },
    }


async def test_kopf_finds_our_kind_and_follows_it(api: MemoryApi, kubeconfig: Path, tmp_path: Path) -> None:
    handlers = tmp_path / "handlers.py"
    handlers.write_text(KOPF_HANDLERS)
    api.create(moe("first"))
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kopf", "run", "--standalone", "--all-namespaces", str(handlers)),
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            seen = [await process.stdout.readline()]
            api.apply(moe("first", replicas=2), manager="m")
            seen.append(await process.stdout.readline())
            api.create(moe("second"))
            seen.append(await process.stdout.readline())
            api.delete(MOE_DEPLOYMENT, "default", "first")
            seen.append(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()

    assert [line.decode().split()[1:] for line in seen] == [
        ["None", "first", "1"],
        ["MODIFIED", "first", "2"],
        ["ADDED", "second", "1"],
        ["DELETED", "first", "2"],
    ]
    assert (
        process.returncode,
        api.get(MOE_DEPLOYMENT, "default", "second")["metadata"].get("finalizers"),
    ) == (
        0,
        None,
    )


async def test_the_dynamic_client_discovers_and_applies(kubeconfig: Path, tmp_path: Path) -> None:
    configuration = Configuration()
    await load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    async with ApiClient(configuration) as client:
        dynamic = await DynamicClient(client, cache_file=str(tmp_path / "discovery.json"))  # type: ignore[no-untyped-call]
        resource = await dynamic.resources.get(api_version="moe-operator.io/v1alpha1", kind="MoEDeployment")

        applied = await dynamic.server_side_apply(
            resource, body=moe("kimi", replicas=3), name="kimi", namespace="default", field_manager="m"
        )
        found = await dynamic.get(resource, name="kimi", namespace="default")
        listed = await dynamic.get(resource, namespace="default", label_selector="!absent")

    assert applied.metadata.managedFields[0].manager == "m"
    assert found.spec.replicas == 3
    assert [item.metadata.name for item in listed.items] == ["kimi"]
