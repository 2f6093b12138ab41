"""Behind a gateway that the user brings: what the InferencePool selects through a life."""

from __future__ import annotations

from typing import Any

import pytest
from moe_operator.runtime.kube import HTTP_ROUTE, INFERENCE_POOL, KINDS, POD, SERVICE

from tests.simulator.gateway_api import CRD, POOL_CRD, Controller
from tests.simulator.scenes import fresh_world
from tests.simulator.world import World, moe_deployment

Obj = dict[str, Any]
POOL = "k3-pool"
IN_A_POOL: Obj = {"external": {"inferencePool": {"name": POOL, "endpointPicker": {"name": "k3-epp"}}}}
BY_A_ROUTE: Obj = {"external": {"httpRouteRef": {"name": "edge", "namespace": "infra"}}}
MANAGED = ("Deployment", "PodDisruptionBudget", "Role", "RoleBinding", "ServiceAccount")


async def with_pools() -> tuple[World, Controller]:
    world = await fresh_world()
    world.api.create(POOL_CRD)
    controller = Controller(world.api)
    world.neighbours.append(controller.step)
    return world, controller


async def in_a_pool(**spec: Any) -> tuple[World, Controller]:
    """``k3`` serves through a pool and has come to rest."""
    world, controller = await with_pools()
    await world.apply(moe_deployment(gateway=IN_A_POOL, **spec))
    await world.until(lambda: world.stable("k3"))
    await world.until(lambda: gateway_ready(world).get("status") == "True")
    await world.settle()
    return world, controller


def gateway_ready(world: World) -> Obj:
    return world.condition("k3", "GatewayReady")


def active(world: World) -> str:
    return str(world.status("k3").get("activeRevision", ""))


def leader(revision: str, replica: int = 0) -> str:
    return f"k3-{revision}-{replica}-0"


def managed(world: World) -> set[str]:
    kinds = [kind for kind in KINDS if kind.kind in MANAGED]
    return {kind.kind for kind in kinds if world.api.list(kind, "default").items}


async def test_the_pool_selects_the_serving_leader_and_nothing_of_a_managed_gateway_exists() -> None:
    world, controller = await in_a_pool()
    revision = active(world)
    assert controller.pools() == {POOL: (revision, {leader(revision)})}
    assert managed(world) == set() and world.gateway_pods() == []
    pool = world.api.get(INFERENCE_POOL, "default", POOL)
    [owner] = pool["metadata"]["ownerReferences"]
    assert owner["uid"] == world.deployment("k3")["metadata"]["uid"]
    picker = {
        "group": "", "kind": "Service", "name": "k3-epp", "port": {"number": 9002}, "failureMode": "FailOpen",
    }  # fmt: skip
    assert pool["spec"]["endpointPickerRef"] == picker
    assert pool["spec"]["targetPorts"] == [{"number": 8000}]
    assert world.is_ready("k3")
    assert gateway_ready(world)["message"] == f"accepted: InferencePool {POOL} with weights {revision} 100"
    world.kube.log.clear()
    for _ in range(10):
        await world.step(60.0)
    assert world.kube.log == [], "a world at rest is left alone"
    await world.delete("k3")
    await world.until(lambda: not world.exists("k3") and controller.pools() == {})


async def test_a_new_revision_is_selected_at_one_moment_and_the_old_one_ends_after_its_last_request() -> None:
    world, controller = await in_a_pool()
    old = active(world)
    world.probes.running[leader(old)] = 1
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    seen: list[str] = []
    for _ in range(200):
        await world.step()
        revision, pods = controller.pools()[POOL]
        assert pods == {leader(revision)}, "one revision, and never an empty one"
        seen += [revision] if revision not in seen[-1:] else []
        if active(world) != old:
            break
    new = active(world)
    assert seen == [old, new]
    for _ in range(60):
        await world.step()
        assert len(world.pods_of("k3", old)) == 2, "its last request still runs"
    world.probes.running.clear()
    await world.until(lambda: not world.pods_of("k3", old) and world.stable("k3"))
    await world.settle()
    assert controller.pools() == {POOL: (new, {leader(new)})}
    assert {s["metadata"]["name"] for s in world.api.list(SERVICE, "default").items} == {f"k3-{new}-0"}


async def test_the_selector_waits_until_the_new_leaders_mark_has_got_about() -> None:
    world, controller = await in_a_pool()
    old = active(world)
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await world.until(lambda: len(marked(world)) == 2)
    for _ in range(29):
        await world.step()
        assert controller.pools()[POOL][0] == old
    await world.until(lambda: controller.pools()[POOL][0] != old, steps=4)


def marked(world: World) -> set[str]:
    pods = world.api.list(POD, "default", labels="moe-operator.io/serving=true").items
    return {pod["metadata"]["name"] for pod in pods}


async def test_a_revision_that_loses_its_last_leader_leaves_an_empty_pool_until_it_serves_again() -> None:
    world, controller = await in_a_pool()
    revision = active(world)
    world.kubelet.crashes["vllm:blue"] = 1
    world.kubelet.kill(world.engine_pods()[0])
    await world.until(lambda: controller.pools() == {POOL: (revision, set())}, steps=3)
    assert marked(world) == set()
    assert world.condition("k3", "Available")["status"] == "False"
    world.kubelet.crashes.clear()
    await world.until(lambda: controller.pools() == {POOL: (revision, {leader(revision)})})
    await world.until(lambda: world.stable("k3"))


async def test_the_old_revision_takes_over_when_the_new_one_dies_while_it_still_stands_by() -> None:
    world, controller = await in_a_pool()
    old = active(world)
    world.probes.running[leader(old)] = 1
    await world.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await world.until(lambda: active(world) != old)
    new = active(world)
    assert controller.pools() == {POOL: (new, {leader(new)})}
    world.kubelet.crashes["vllm:green"] = 1
    world.kubelet.kill(next(p for p in world.engine_pods() if new in p["metadata"]["name"]))
    await world.until(lambda: controller.pools() == {POOL: (old, {leader(old)})}, steps=3)


async def test_a_replica_that_is_to_go_is_out_of_the_pool_while_its_last_request_runs() -> None:
    world, controller = await in_a_pool(replicas=2)
    revision = active(world)
    assert controller.pools() == {POOL: (revision, {leader(revision, 0), leader(revision, 1)})}
    world.probes.running[leader(revision, 1)] = 1
    await world.edit("k3", lambda s: s.update(replicas=1))
    await world.until(lambda: controller.pools() == {POOL: (revision, {leader(revision)})}, steps=5)
    for _ in range(60):
        await world.step()
        assert world.api.get(POD, "default", leader(revision, 1))
    world.probes.running.clear()
    await world.until(lambda: len(world.pods_of("k3", revision)) == 2 and world.stable("k3"))


async def test_without_the_inference_extension_the_reason_says_so_and_what_served_goes_on(
    served: World,
) -> None:
    gateways = {p["metadata"]["uid"] for p in served.gateway_pods()}
    await served.edit("k3", lambda s: s.update(gateway=IN_A_POOL))
    await served.until(lambda: gateway_ready(served).get("reason") == "GatewayApiAbsent")
    words = "the API server does not serve inference.networking.k8s.io/v1 InferencePools"
    assert gateway_ready(served)["message"] == words
    await served.settle()
    stalled = served.condition("k3", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "GatewayApiAbsent")
    assert {p["metadata"]["uid"] for p in served.gateway_pods()} == gateways
    assert served.condition("k3", "Available")["status"] == "True"
    served.api.create(POOL_CRD)
    served.neighbours.append(Controller(served.api).step)
    await served.until(lambda: served.stable("k3") and not served.gateway_pods())
    assert not served.condition("k3", "Stalled")


@pytest.mark.parametrize(
    ("routed", "refuses", "words"),
    [
        (False, "", "no Gateway has answered: an HTTPRoute has to lead to InferencePool k3-pool"),
        (True, "no such Service", "Gateway infra/edge: Accepted is False: NotAllowedByListeners: no such"),
    ],
)
async def test_a_pool_that_no_gateway_takes_is_reported_and_the_managed_gateway_stays(
    served: World, routed: bool, refuses: str, words: str
) -> None:
    served.api.create(POOL_CRD)
    controller = Controller(served.api, refuses=refuses, routed=routed)
    served.neighbours.append(controller.step)
    gateways = {p["metadata"]["uid"] for p in served.gateway_pods()}
    await served.edit("k3", lambda s: s.update(gateway=IN_A_POOL))
    for _ in range(60):
        await served.step()
        assert {p["metadata"]["uid"] for p in served.gateway_pods()} == gateways and served.is_ready("k3")
    controller.refuses, controller.routed = "", True
    await served.until(lambda: not served.gateway_pods() and served.stable("k3"))
    controller.refuses, controller.routed = refuses, routed
    await served.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await served.until(lambda: words in gateway_ready(served).get("message", ""))
    assert gateway_ready(served)["reason"] == "RouteNotAccepted"
    assert controller.pools()[POOL][1], "what was selected stays selected"


async def test_somebody_elses_pool_of_that_name_is_left_alone() -> None:
    world, controller = await with_pools()
    theirs: Obj = {
        "apiVersion": INFERENCE_POOL.api_version,
        "kind": INFERENCE_POOL.kind,
        "metadata": {"name": POOL, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"moe-operator.io/revision": "theirs"}}},
    }
    made = world.api.create(theirs)
    await world.apply(moe_deployment(gateway=IN_A_POOL))
    await world.until(lambda: gateway_ready(world).get("reason") == "NameTaken")
    await world.settle()
    now = world.api.get(INFERENCE_POOL, "default", POOL)
    assert (now["spec"], now["metadata"].get("labels")) == (made["spec"], None)
    assert world.condition("k3", "Stalled")["reason"] == "NameTaken"
    world.api.delete(INFERENCE_POOL, "default", POOL)
    await world.until(lambda: world.stable("k3"))
    assert controller.pools() == {POOL: (active(world), {leader(active(world))})}


@pytest.mark.parametrize(("before", "after"), [(IN_A_POOL, BY_A_ROUTE), (BY_A_ROUTE, IN_A_POOL)])
async def test_a_route_and_a_pool_change_places_without_a_moment_of_neither(before: Obj, after: Obj) -> None:
    world, controller = await with_pools()
    world.api.create(CRD)
    await world.apply(moe_deployment(gateway=before))
    await world.until(lambda: world.stable("k3") and gateway_ready(world)["status"] == "True")
    await world.settle()
    was_route = bool(controller.shares())
    await world.edit("k3", lambda s: s.update(gateway=after))
    for _ in range(29):
        await world.step()
        assert controller.shares() if was_route else controller.pools()
        assert world.condition("k3", "Available")["status"] == "True"
    await world.until(lambda: not (controller.shares() if was_route else controller.pools()))
    await world.settle()
    revision = active(world)
    if was_route:
        assert controller.pools() == {POOL: (revision, {leader(revision)})}
        services = {s["metadata"]["name"] for s in world.api.list(SERVICE, "default").items}
        assert services == {f"k3-{revision}-0"} and world.api.list(HTTP_ROUTE).items == ()
    else:
        assert controller.shares() == {revision: (100, {leader(revision)})}
    assert world.is_ready("k3") and managed(world) == set()


async def test_a_pool_of_another_name_takes_over_before_the_first_one_goes() -> None:
    world, controller = await in_a_pool()
    revision = active(world)
    picker = {"name": "k3-epp"}
    renamed = {"external": {"inferencePool": {"name": "other", "endpointPicker": picker}}}
    await world.edit("k3", lambda s: s.update(gateway=renamed))
    for _ in range(29):
        await world.step()
        assert controller.pools()[POOL] == (revision, {leader(revision)})
    await world.until(lambda: controller.pools().keys() == {"other"})
    assert controller.pools()["other"] == (revision, {leader(revision)})


async def test_going_back_to_the_managed_gateway_keeps_the_pool_until_that_serves() -> None:
    world, controller = await in_a_pool()
    world.kubelet.gateway_boots = False
    await world.edit("k3", lambda s: s.update(gateway={}))
    for _ in range(20):
        await world.step()
        assert controller.pools()[POOL][1]
    world.kubelet.gateway_boots = True
    await world.until(lambda: not controller.pools() and world.stable("k3"))
    await world.settle()
    assert marked(world) == set()
