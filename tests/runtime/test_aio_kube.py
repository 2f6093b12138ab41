"""What the client takes from its environment; what it says to an API server is tested in tests/contract."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from moe_operator.runtime.aio_kube import AioKube
from moe_operator.runtime.kube import MOE_DEPLOYMENT, ApiError
from moe_operator.sandbox.rest import RestServer

from tests.runtime.world import deployment, memory_api

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class NoThreads(ThreadPoolExecutor):
    def submit(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a thread for a request")


@pytest.mark.usefixtures("no_proxy")
async def test_a_request_costs_no_thread(tmp_path: Path) -> None:
    """Reading ~/.netrc before each was half of what a pass cost the operator."""
    api = memory_api()
    api.create(deployment())
    async with RestServer(api, admin_token="ours") as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await AioKube.connect(str(tmp_path / "kubeconfig")) as kube:
            asyncio.get_running_loop().set_default_executor(NoThreads())
            found = (await kube.list(MOE_DEPLOYMENT)).items
    assert [item["metadata"]["name"] for item in found] == ["kimi"]


@pytest.mark.usefixtures("no_proxy")
async def test_a_proxy_that_the_environment_names_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RestServer(memory_api(), admin_token="ours") as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        for scheme in ("http", "https"):
            monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:1")
        async with await AioKube.connect(str(tmp_path / "kubeconfig")) as kube:
            with pytest.raises(ApiError, match=r"127\.0\.0\.1:1"):
                await kube.list(MOE_DEPLOYMENT)
