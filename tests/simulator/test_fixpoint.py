"""Once a world has come to rest, ``decide`` asks for nothing and the operator writes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from moe_operator.reconcile.decide import decide
from moe_operator.runtime.kube import NODE, POD

from tests.simulator.scenes import serving_world
from tests.simulator.world import World, moe_deployment

Obj = dict[str, Any]
ONE_TRY = {"maxGroupRestarts": 0}


async def plain(world: World) -> None:
    await world.until(lambda: world.stable("k3"))


async def two_replicas(world: World) -> None:
    await world.edit("k3", lambda s: s.update(replicas=2))
    await world.until(lambda: world.status("k3")["readyReplicas"] == 2)


async def no_replicas(world: World) -> None:
    await world.edit("k3", lambda s: s.update(replicas=0))
    await world.until(lambda: not world.engine_pods())


async def another_revision(world: World) -> None:
    before = world.status("k3")["activeRevision"]
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await world.until(lambda: world.stable("k3") and world.status("k3")["activeRevision"] != before)


async def there_and_back(world: World) -> None:
    await another_revision(world)
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:blue"))
    await world.until(lambda: world.stable("k3") and len(world.engine_pods()) == 2)


async def recovered(world: World) -> None:
    world.kubelet.kill(world.engine_pods()[1])
    await world.until(lambda: world.status("k3")["groups"][0]["incarnation"] == 1)
    await world.until(lambda: world.stable("k3"))


async def given_up(world: World) -> None:
    world.kubelet.crashes["vllm:blue"] = 1
    await world.edit("k3", lambda s: s.update(restart=ONE_TRY))
    world.kubelet.kill(world.engine_pods()[0])
    await world.until(lambda: world.condition("k3", "Stalled").get("status") == "True")


async def failed_target(world: World) -> None:
    world.kubelet.crashes["vllm:green"] = 1
    await world.edit("k3", lambda s: (s["engine"].update(image="vllm:green"), s.update(restart=ONE_TRY)))
    await world.until(lambda: world.status("k3")["rollout"]["phase"] == "Failed")


async def no_room(world: World) -> None:
    await world.edit("k3", lambda s: s.update(replicas=2))
    await world.until(lambda: world.status("k3")["readyReplicas"] == 2)
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await world.until(lambda: world.condition("k3", "CapacityForRollout").get("status") == "False")


async def refused_edit(world: World) -> None:
    await world.edit("k3", lambda s: s.update(parallelism={"tensor": 3}))
    await world.until(lambda: world.condition("k3", "Stalled").get("status") == "True")


async def unknown_product(world: World) -> None:
    await world.apply(moe_deployment("odd", accelerators={"product": "NVIDIA-X1", "nodes": 1}))
    await world.until(lambda: world.condition("odd", "Placed").get("status") == "False")


async def image_that_nobody_has(world: World) -> None:
    world.kubelet.missing_images.add("vllm:green")
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await world.until(lambda: world.condition("k3", "Progressing")["reason"] == "ImagePullFailed")


async def no_gateway(world: World) -> None:
    world.kubelet.gateway_boots = False
    for pod in world.gateway_pods():
        await world.user.delete(POD, "default", pod["metadata"]["name"], grace_seconds=0)
    await world.until(lambda: world.condition("k3", "Available")["status"] == "False")


ENDS: tuple[Callable[[World], Awaitable[None]], ...] = (
    plain, two_replicas, no_replicas, another_revision, there_and_back, recovered, given_up, failed_target,
    no_room, refused_edit, unknown_product, image_that_nobody_has, no_gateway,
)  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
async def test_a_world_at_rest_is_left_alone(served: World, end: Callable[[World], Awaitable[None]]) -> None:
    await end(served)
    await served.settle()
    for key in served.deployment_keys():
        snapshot = await served.observe(key)
        decision = decide(snapshot)
        assert decision.actions == () and decision.status is None and decision.events == ()
        assert decide(snapshot) == decision, "the same world, the same answer"
    before = served.kube.writes
    for _ in range(10):
        await served.step(60.0)
    assert served.kube.writes == before


async def test_a_reconcile_of_a_world_at_rest_only_reads() -> None:
    world = await serving_world()
    await world.user.delete(NODE, None, "h20-3")
    before = world.kube.writes
    for _ in range(5):
        await world.step(30.0)
    assert world.kube.writes == before, "a node that nothing runs on may go"
