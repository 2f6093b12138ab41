"""kill -9 of every part in turn: the deployment is whole again, and says so.

One deployment for all of them, because each leaves it whole; none relies on another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from moe_operator.runtime.kube import POD

from tests.deployments.conftest import built
from tests.deployments.site import Site, moe_deployment

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(tmp_path_factory: pytest.TempPathFactory, checkpoints: Path) -> AsyncIterator[Site]:
    async with built(tmp_path_factory.mktemp("healing") / "state", checkpoints) as site:
        await site.apply(moe_deployment(restart={"backoffSeconds": 0, "maxGroupRestarts": 100}))
        await site.until(site.stable, "it is stable")
        yield site


def lives(site: Site) -> int:
    """How often the one group was recreated."""
    (number,) = site.incarnations()
    return number


async def answers(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.gateway_url(), timeout=30) as client:
        answer = await client.post(
            "/v1/completions", json={"model": "dsv31", "prompt": "Hi", "max_tokens": 2}
        )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_killed_rank_brings_the_whole_group_back_once(serving: Site, rank: int) -> None:
    before, was = serving.uids(), lives(serving)
    serving.sandbox.kill(serving.engine(rank)["metadata"]["name"], "engine")
    await serving.until(lambda: not before & serving.uids(), "every pod of the old life is gone")
    await serving.until(serving.stable, "it is stable again")
    assert lives(serving) == was + 1
    assert len(serving.pods()) == 2
    await answers(serving)


async def test_a_deleted_leader_pod_brings_the_whole_group_back(serving: Site) -> None:
    before = serving.uids()
    await serving.sandbox.kube.delete(POD, "default", serving.engine(0)["metadata"]["name"])
    await serving.until(lambda: not before & serving.uids(), "every pod of the old life is gone")
    await serving.until(serving.stable, "it is stable again")
    await answers(serving)


async def test_a_killed_operator_comes_back_and_touches_nothing(serving: Site) -> None:
    was, gateways = lives(serving), serving.uids("gateway")
    operator = serving.sandbox.operator
    assert operator is not None
    gone = operator.kill()

    def is_back() -> bool:
        try:
            return operator.pid != gone
        except LookupError:
            return False

    await serving.until(is_back, "the operator runs again")
    victim = serving.engine(1)["metadata"]
    await serving.sandbox.kube.delete(POD, "default", victim["name"])
    await serving.until(lambda: lives(serving) == was + 1, "the new operator acts")
    await serving.until(serving.stable, "it is stable again")
    assert serving.uids("gateway") == gateways
    await answers(serving)


@pytest.mark.parametrize(("container", "door"), [("envoy", ":8080/-/ready"), ("agent", ":9902/readyz")])
async def test_a_killed_gateway_container_comes_back(serving: Site, container: str, door: str) -> None:
    pod = serving.pods("gateway")[0]
    name, address = pod["metadata"]["name"], pod["status"]["podIP"]
    gone = serving.sandbox.kill(name, container)

    def is_back() -> bool:
        try:
            return serving.sandbox.pid(name, container) != gone
        except LookupError:
            return False

    await serving.until(is_back, f"{container} runs again")
    await serving.until_open(f"http://{address}{door}")
    await serving.until(
        lambda: serving.condition("GatewayReady").get("status") == "True", "every gateway pod is in step"
    )
    await serving.until(serving.stable, "it is stable")
    await answers(serving)
