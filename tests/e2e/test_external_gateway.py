"""A gateway that the user brings: what the operator writes into its HTTPRoute or InferencePool, and when.

The cluster has the projects' own CRDs and nobody who acts on them; a stand-in answers for the Gateway, as an
implementation of it would: it accepts each generation of a route or pool.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from moe_operator.api.names import LABEL_REVISION, LABEL_SERVING, gateway_name
from moe_operator.runtime.kube import HTTP_ROUTE, INFERENCE_POOL, POD, ApiError, Kind

from tests.e2e.gateway_traffic import NAME, slow_tokens, whole
from tests.e2e.world import World, settled
from tests.gateway_api import gateway_api

Obj = dict[str, Any]
EDGE = "edge"
LOOK_SECONDS = 0.1
POOL, OTHER_POOL = f"{NAME}-pool", f"{NAME}-pool-2"
OF_A_ROUTE_TO_THE_POOL = {"group": HTTP_ROUTE.group, "kind": "Gateway", "name": EDGE}
BEHIND = {"spec": {"gateway": {"external": {"httpRouteRef": {"name": EDGE, "hostnames": ["moe.example"]}}}}}


class Edge:
    """The Gateway's side: accepts one route or pool, and remembers every set of weights that it was given."""

    def __init__(self, world: World, kind: Kind, name: str) -> None:
        self._world = world
        self.kind, self.name = kind, name
        self.given: list[dict[str, int]] = []

    async def work(self) -> None:
        while True:
            way = await self.way()
            if way:
                self._note(way)
                if answered(way) < way["metadata"]["generation"]:
                    await self._world.kube.apply_status(acceptance(way), manager=EDGE)
            await asyncio.sleep(LOOK_SECONDS)

    async def way(self) -> Obj | None:
        """The route or pool as it is now."""
        try:
            return await self._world.kube.get(self.kind, self._world.namespace, self.name)
        except ApiError as error:
            if not error.not_found:
                raise
        return None

    async def is_gone(self) -> bool:
        return await self.way() is None

    async def weights(self) -> dict[str, int]:
        """Of the route or pool as it is now."""
        way = await self.way()
        return shares(way) if way else {}

    def _note(self, way: Obj) -> None:
        if not self.given or self.given[-1] != shares(way):
            self.given.append(shares(way))


def shares(way: Obj) -> dict[str, int]:
    """Revision → weight; a route's backends are called by deployment and revision, a pool selects one."""
    if way["kind"] == INFERENCE_POOL.kind:
        return {way["spec"]["selector"]["matchLabels"][LABEL_REVISION]: 100}
    [rule] = way["spec"]["rules"]
    return {ref["name"].removeprefix(f"{NAME}-"): ref["weight"] for ref in rule["backendRefs"]}


def answered(way: Obj) -> int:
    """The newest generation of the route or pool that the Gateway has spoken about."""
    parents = (way.get("status") or {}).get("parents") or ()
    return max((c["observedGeneration"] for parent in parents for c in parent["conditions"]), default=0)


def acceptance(way: Obj) -> Obj:
    """The status as a Gateway writes it that has nothing against the route or pool."""
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": kind,
            "message": "",
            "observedGeneration": way["metadata"]["generation"],
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("Accepted", "ResolvedRefs")
    ]
    parents = [
        {"parentRef": parent, "controllerName": "example.com/edge", "conditions": conditions}
        for parent in way["spec"].get("parentRefs", [OF_A_ROUTE_TO_THE_POOL])
    ]
    meta = {name: way["metadata"][name] for name in ("name", "namespace")}
    kind = {"apiVersion": way["apiVersion"], "kind": way["kind"]}
    return {**kind, "metadata": meta, "status": {"parents": parents}}


@asynccontextmanager
async def edge(world: World, kind: Kind, name: str) -> AsyncIterator[Edge]:
    """A Gateway that works while entered, in a cluster that serves ``kind`` meanwhile."""
    async with gateway_api(world.kube, kind):
        gateway = Edge(world, kind, name)
        task = asyncio.create_task(gateway.work())
        try:
            yield gateway
        finally:
            task.cancel()
            [ended] = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended


def another(world: World) -> Obj:
    """What makes another revision."""
    return {"spec": {"engine": {"image": world.site.images.stub_of("0.33.1")}}}


async def serving_addresses(world: World, service: str) -> set[str]:
    """Where a Service sends to now, as the cluster's own controllers have found it."""
    label = f"kubernetes.io/service-name={service}"
    text = await world.kubectl_soon("get", "endpointslices", "-l", label, "-o", "json")
    endpoints = [each for item in json.loads(text)["items"] for each in item.get("endpoints") or ()]
    return {address for each in endpoints if each["conditions"]["ready"] for address in each["addresses"]}


async def test_an_httproute_follows_what_serves(world: World, figures: dict[str, str]) -> None:
    async with edge(world, HTTP_ROUTE, gateway_name(NAME)) as gateway:
        await behind_the_edge(world, gateway)
        await without_leaders(world, gateway)
        await to_another_revision(world, gateway)
        await back_to_its_own(world, gateway)
        figures["external gateway: weights in order"] = str([sorted(w.values()) for w in gateway.given])


async def behind_the_edge(world: World, gateway: Edge) -> None:
    """From the managed gateway to the route: that goes when the route is known to work."""
    await world.serve(slow_tokens(world))
    await whole(world)
    view = await world.serve(slow_tokens(world, BEHIND))
    await world.poll(partial(is_alone, world), "the managed gateway goes when the route is taken")
    assert await gateway.weights() == {view.status.active_revision: 100}
    route = await gateway.way()
    assert route is not None
    assert [parent["name"] for parent in route["spec"]["parentRefs"]] == [EDGE]
    assert route["spec"]["hostnames"] == ["moe.example"]
    [rule] = route["spec"]["rules"]
    assert {match["path"]["type"] for match in rule["matches"]} == {"Exact"}
    leader = await world.rank(NAME, 0)
    assert leader["metadata"]["labels"][LABEL_SERVING] == "true"
    [backend] = rule["backendRefs"]

    async def found() -> bool:
        return await serving_addresses(world, backend["name"]) == {leader["status"]["podIP"]}

    await world.poll(found, "the backend is the leader that serves")


async def is_alone(world: World) -> bool:
    """Nothing is left of a managed gateway."""
    return not await world.pods(NAME, "gateway") and "Deployment" not in await world.left(NAME)


async def without_leaders(world: World, gateway: Edge) -> None:
    """A revision that lost its last leader gets nothing, until it serves again."""
    active = (await world.view(NAME)).status.active_revision
    await world.kube.delete(POD, world.namespace, (await world.rank(NAME, 0))["metadata"]["name"])

    async def nothing() -> bool:
        return await gateway.weights() == {active: 0}

    async def everything() -> bool:
        return await gateway.weights() == {active: 100}

    await world.poll(nothing, "nobody is sent to a revision without leaders")
    await world.poll(everything, "its new leader gets all requests")
    await world.until(NAME, settled, "it serves again")


async def to_another_revision(world: World, gateway: Edge) -> None:
    """The new revision is known before it gets a request, and the old one is forgotten after its last."""
    before = (await world.view(NAME)).status.active_revision
    gateway.given.clear()
    after = (await world.serve(slow_tokens(world, BEHIND, another(world)))).status.active_revision
    assert after != before
    assert gateway.given == [
        {before: 100},
        {before: 100, after: 0},
        {before: 0, after: 100},
        {after: 100},
    ]


async def back_to_its_own(world: World, gateway: Edge) -> None:
    await world.serve(slow_tokens(world, another(world)))
    await whole(world)
    await world.poll(gateway.is_gone, "the route goes when the managed gateway has taken over")
    assert (await world.answers(NAME, NAME)).status_code == 200


def in_pool(name: str) -> Obj:
    pool = {"name": name, "endpointPicker": {"name": f"{NAME}-epp"}}
    return {"spec": {"gateway": {"external": {"inferencePool": pool}}}}


async def selected(world: World, gateway: Edge) -> set[str]:
    """Names of the pods that an endpoint picker finds by the pool's selector now."""
    pool = await gateway.way()
    assert pool is not None
    labels = ",".join(f"{key}={value}" for key, value in pool["spec"]["selector"]["matchLabels"].items())
    pods = (await world.kube.list(POD, world.namespace, labels=labels)).items
    return {pod["metadata"]["name"] for pod in pods}


async def test_an_inference_pool_follows_what_serves(world: World, figures: dict[str, str]) -> None:
    async with edge(world, INFERENCE_POOL, POOL) as gateway:
        await in_the_pool(world, gateway)
        await the_pool_without_leaders(world, gateway)
        await the_pool_to_another_revision(world, gateway)
        figures["external gateway: what the pool selected"] = str(gateway.given)
        await to_a_pool_of_another_name(world, gateway)
        await world.delete(NAME)
        await world.poll(gateway.is_gone, "the pool goes with its deployment")


async def in_the_pool(world: World, gateway: Edge) -> None:
    """The pool leads to the leader, and nothing is left of a managed gateway."""
    view = await world.serve(slow_tokens(world, in_pool(POOL)))
    await world.poll(partial(is_alone, world), "the managed gateway goes when the pool is taken")
    await world.until(NAME, settled, "it serves through the pool")
    assert await gateway.weights() == {view.status.active_revision: 100}
    assert await selected(world, gateway) == {(await world.rank(NAME, 0))["metadata"]["name"]}
    pool = await gateway.way()
    assert pool is not None
    assert pool["spec"]["endpointPickerRef"]["name"] == f"{NAME}-epp"
    [owner] = pool["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("MoEDeployment", NAME, True)


async def the_pool_without_leaders(world: World, gateway: Edge) -> None:
    """The selector stays and finds nobody, until a leader serves again."""
    before = await gateway.weights()
    gone = await world.rank(NAME, 0)
    await world.kube.delete(POD, world.namespace, gone["metadata"]["name"])

    async def nobody() -> bool:
        return await selected(world, gateway) == set()

    async def somebody() -> bool:
        return await selected(world, gateway) == {gone["metadata"]["name"]}  # a new pod of the old name

    await world.poll(nobody, "nobody is in the pool of a revision without leaders")
    await world.poll(somebody, "its new leader is in the pool")
    await world.until(NAME, settled, "it serves again")
    assert await gateway.weights() == before


async def the_pool_to_another_revision(world: World, gateway: Edge) -> None:
    """One change of the selector, and the old revision ends after it."""
    before = (await world.view(NAME)).status.active_revision
    gateway.given.clear()
    after = (await world.serve(slow_tokens(world, in_pool(POOL), another(world)))).status.active_revision
    assert after != before
    assert gateway.given == [{before: 100}, {after: 100}]
    assert await selected(world, gateway) == {(await world.rank(NAME, 0))["metadata"]["name"]}


async def to_a_pool_of_another_name(world: World, gateway: Edge) -> None:
    """The first pool goes when the second one is taken."""
    first, before = Edge(world, INFERENCE_POOL, POOL), await gateway.weights()
    gateway.name = OTHER_POOL
    await world.serve(slow_tokens(world, in_pool(OTHER_POOL), another(world)))
    await world.poll(first.is_gone, "the first pool goes")
    assert await gateway.weights() == before
