"""From apply to delete: where ranks sit, what kubectl says, and that nothing is left whatever has died."""

from __future__ import annotations

import re

import pytest
from moe_operator.api.names import LABEL_RANK, gateway_name
from moe_operator.runtime.kube import DEPLOYMENT, POD

from tests.e2e.deployments import deepseek, kimi_k3
from tests.e2e.world import World

COLUMNS = ["NAME", "READY", "PHASE", "ACTIVE", "TARGET", "GROUPS", "PLAN", "AGE"]


async def test_kimi_k3_on_four_nodes_sits_where_its_status_says_and_answers(world: World) -> None:
    view = await world.serve(kimi_k3(world.site, world.namespace))
    await world.kubectl_soon("wait", "moed/kimi-k3", "--for=condition=Ready", "--timeout=120s")
    (placement,) = view.placements(view.status.active_revision)
    placed = {rank.rank: rank.node for rank in placement.ranks}
    pods = await world.pods("kimi-k3")
    bound = {int(pod["metadata"]["labels"][LABEL_RANK]): pod["spec"]["nodeName"] for pod in pods}
    assert bound == placed
    assert len(set(bound.values())) == 4
    answer = await world.answers("kimi-k3", "kimi-k3")
    assert (answer.status_code, bool(answer.json()["choices"][0]["text"])) == (200, True)


async def test_kubectl_get_and_explain_read_well(world: World) -> None:
    await world.serve(kimi_k3(world.site, world.namespace))
    head, row = (await world.kubectl_soon("get", "moed")).splitlines()
    assert head.split() == COLUMNS
    assert re.fullmatch(r"kimi-k3 +True +Stable +\w{8} +\w{8} +1 +Fits +\w+ *", row)
    wide = await world.kubectl_soon("get", "moed", "kimi-k3", "-o", "wide")
    assert "TP8·DP4·EP32" in wide
    explained = await world.kubectl_soon("explain", "moed.spec")
    for field in ("model", "engine", "accelerators", "gateway", "rollout"):
        assert re.search(rf"^  {field}\t<Object>", explained, re.MULTILINE), field
    assert "DESCRIPTION:" in await world.kubectl_soon("explain", "moed.spec.weights.cacheClass")


async def test_deleting_leaves_nothing(world: World, figures: dict[str, str]) -> None:
    await world.serve(kimi_k3(world.site, world.namespace))
    seconds = await world.delete("kimi-k3")
    await world.poll(lambda: nothing_left(world, "kimi-k3"), "nothing is left of it")
    figures["delete of a 4-pod group until the object is gone"] = f"{seconds:.1f} s"


async def kill_an_engine(world: World, name: str) -> None:
    world.kill(await world.rank(name, 1), "engine")


async def kill_the_gateway(world: World, name: str) -> None:
    await world.kube.delete(DEPLOYMENT, world.namespace, gateway_name(name))
    for pod in await world.pods(name, "gateway"):
        await world.kube.delete(POD, world.namespace, pod["metadata"]["name"], grace_seconds=0)


async def kill_the_operator(world: World, name: str) -> None:
    await world.kill_operators()


@pytest.mark.parametrize("disaster", [kill_an_engine, kill_the_gateway, kill_the_operator])
async def test_deleting_leaves_nothing_whatever_is_dead(world: World, disaster: object) -> None:
    await world.serve(deepseek(world.site, world.namespace))
    await disaster(world, "deepseek-v31")  # type: ignore[operator]
    await world.delete("deepseek-v31")
    await world.poll(lambda: nothing_left(world, "deepseek-v31"), "nothing is left of it")


async def test_a_deletion_without_an_operator_ends_when_there_is_one(world: World) -> None:
    """The finalizer waits for somebody who can see to the pods, and for nothing else."""
    await world.serve(deepseek(world.site, world.namespace))
    await world.scale_operator(0)
    await world.kubectl_soon("delete", "moed", "deepseek-v31", "--wait=false")
    pods = await world.uids("deepseek-v31")
    await world.scale_operator(2)
    assert pods  # nobody else has removed them
    await world.gone("deepseek-v31")
    await world.poll(lambda: nothing_left(world, "deepseek-v31"), "nothing is left of it")


async def nothing_left(world: World, name: str) -> bool:
    return not await world.left(name)
