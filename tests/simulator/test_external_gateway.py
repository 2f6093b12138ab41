"""Behind a gateway that the user brings: weights, marks and answers of its HTTPRoute through a life."""

from __future__ import annotations

from typing import Any

import pytest
from moe_operator.runtime.kube import DEPLOYMENT, HTTP_ROUTE, KINDS, SERVICE

from tests.simulator.gateway_api import CRD, Controller
from tests.simulator.scenes import fresh_world
from tests.simulator.world import World, moe_deployment

Obj = dict[str, Any]
BRING_YOUR_OWN: Obj = {
    "external": {"httpRouteRef": {"name": "edge", "namespace": "infra", "hostnames": ["k3.example.com"]}}
}
MANAGED = ("Deployment", "PodDisruptionBudget", "Role", "RoleBinding", "ServiceAccount")


async def with_gateway_api() -> tuple[World, Controller]:
    world = await fresh_world()
    world.api.create(CRD)
    controller = Controller(world.api)
    world.neighbours.append(controller.step)
    return world, controller


async def behind_another(**spec: Any) -> tuple[World, Controller]:
    """``k3`` serves through somebody else's gateway and has come to rest."""
    world, controller = await with_gateway_api()
    await world.apply(moe_deployment(gateway=BRING_YOUR_OWN, **spec))
    await world.until(lambda: world.stable("k3"))
    await world.until(lambda: gateway_ready(world).get("status") == "True")
    await world.settle()
    return world, controller


def gateway_ready(world: World) -> Obj:
    return world.condition("k3", "GatewayReady")


def active(world: World) -> str:
    return str(world.status("k3").get("activeRevision", ""))


def managed(world: World) -> dict[str, list[str]]:
    kinds = [kind for kind in KINDS if kind.kind in MANAGED]
    found = {k.kind: [o["metadata"]["name"] for o in world.api.list(k, "default").items] for k in kinds}
    return {kind: names for kind, names in found.items() if names}


async def test_the_route_leads_to_the_serving_leader_and_nothing_of_a_managed_gateway_exists() -> None:
    world, controller = await behind_another()
    revision = active(world)
    assert controller.shares() == {revision: (100, {f"k3-{revision}-0-0"})}
    assert managed(world) == {} and world.gateway_pods() == []
    route = world.api.get(HTTP_ROUTE, "default", "k3-gateway")
    [owner] = route["metadata"]["ownerReferences"]
    assert owner["uid"] == world.deployment("k3")["metadata"]["uid"]
    assert route["spec"]["hostnames"] == ["k3.example.com"]
    [rule] = route["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert {"path": {"type": "Exact", "value": "/v1/chat/completions"}} in rule["matches"]
    assert world.is_ready("k3")
    world.kube.log.clear()
    for _ in range(10):
        await world.step(60.0)
    assert world.kube.log == [], "a world at rest is left alone"


async def test_a_revision_is_made_known_before_it_gets_weight_and_leaves_after_its_last_request() -> None:
    world, controller = await behind_another()
    old = active(world)
    world.probes.running[f"k3-{old}-0-0"] = 1
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    seen: list[dict[str, int]] = []
    for _ in range(200):
        await world.step()
        shares = controller.shares()
        weights = {revision: weight for revision, (weight, _) in shares.items()}
        if seen[-1:] != [weights]:
            seen.append(weights)
        assert all(pods for weight, pods in shares.values() if weight), "no weight without a ready leader"
        if active(world) != old:
            break
    new = active(world)
    assert seen == [{old: 100}, {old: 100, new: 0}, {old: 0, new: 100}]
    for _ in range(60):
        await world.step()
        assert len(world.pods_of("k3", old)) == 2, "its last request still runs"
    world.probes.running.clear()
    await world.until(lambda: not world.pods_of("k3", old) and world.stable("k3"))
    await world.settle()
    assert controller.shares() == {new: (100, {f"k3-{new}-0-0"})}
    services = {s["metadata"]["name"] for s in world.api.list(SERVICE, "default").items}
    assert services == {f"k3-{new}", f"k3-{new}-0"}


async def test_a_revision_that_loses_its_last_leader_gets_weight_0_at_once_and_its_share_later() -> None:
    world, controller = await behind_another()
    revision = active(world)
    world.kubelet.crashes["vllm:blue"] = 1
    world.kubelet.kill(world.engine_pods()[0])
    await world.until(lambda: controller.shares() == {revision: (0, set())}, steps=3)
    assert world.condition("k3", "Available")["status"] == "False"
    world.kubelet.crashes.clear()
    await world.until(lambda: controller.shares() == {revision: (100, {f"k3-{revision}-0-0"})})
    await world.until(lambda: world.stable("k3"))


async def test_the_old_revision_takes_over_when_the_new_one_dies_while_it_still_stands_by() -> None:
    world, controller = await behind_another()
    old = active(world)
    world.probes.running[f"k3-{old}-0-0"] = 1
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await world.until(lambda: active(world) != old)
    new = active(world)
    world.kubelet.crashes["vllm:green"] = 1
    world.kubelet.kill(next(p for p in world.engine_pods() if new in p["metadata"]["name"]))
    await world.until(lambda: controller.shares() == {old: (100, {f"k3-{old}-0-0"})}, steps=3)


async def test_without_gateway_api_the_reason_says_so_and_nothing_is_made() -> None:
    world = await fresh_world()
    await world.apply(moe_deployment(gateway=BRING_YOUR_OWN))
    await world.until(lambda: gateway_ready(world).get("reason") == "GatewayApiAbsent")
    await world.settle()
    assert managed(world) == {}
    stalled = world.condition("k3", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "GatewayApiAbsent")
    world.api.create(CRD)
    world.neighbours.append(Controller(world.api).step)
    await world.until(lambda: world.stable("k3"))
    assert not world.condition("k3", "Stalled")


async def test_a_gateway_that_does_not_take_the_route_is_quoted() -> None:
    world, controller = await with_gateway_api()
    controller.refuses = "no listener allows routes of namespace default"
    await world.apply(moe_deployment(gateway=BRING_YOUR_OWN))
    words = "Gateway infra/edge: Accepted is False: NotAllowedByListeners: no listener allows routes"
    await world.until(lambda: words in gateway_ready(world).get("message", ""))
    assert gateway_ready(world)["reason"] == "RouteNotAccepted"
    await world.settle()
    assert not world.is_ready("k3")
    controller.refuses = ""
    await world.until(lambda: world.stable("k3"))


@pytest.mark.parametrize("accepts", [True, False])
async def test_the_managed_gateway_stays_until_the_route_works(served: World, accepts: bool) -> None:
    served.api.create(CRD)
    controller = Controller(served.api, refuses="" if accepts else "no")
    served.neighbours.append(controller.step)
    gateways = {p["metadata"]["uid"] for p in served.gateway_pods()}
    await served.edit("k3", lambda s: s.update(gateway=BRING_YOUR_OWN))
    for _ in range(29):
        await served.step()
        assert {p["metadata"]["uid"] for p in served.gateway_pods()} == gateways and served.is_ready("k3")
    if not accepts:
        await served.settle()
        assert {p["metadata"]["uid"] for p in served.gateway_pods()} == gateways
        return
    await served.until(lambda: not served.gateway_pods() and served.stable("k3"))
    await served.settle()
    assert managed(served) == {} and served.is_ready("k3")


async def test_going_back_to_the_managed_gateway_keeps_the_route_until_that_serves() -> None:
    world, controller = await behind_another()
    world.kubelet.gateway_boots = False
    await world.edit("k3", lambda s: s.update(gateway={}))
    for _ in range(20):
        await world.step()
        assert controller.shares()
    assert world.api.get(DEPLOYMENT, "default", "k3-gateway")
    world.kubelet.gateway_boots = True
    await world.until(lambda: not world.api.list(HTTP_ROUTE).items and world.stable("k3"))
    await world.settle()
    assert not any("moe-operator.io/serving" in p["metadata"]["labels"] for p in world.engine_pods())
