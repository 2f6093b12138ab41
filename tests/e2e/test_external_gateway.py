"""A gateway that the user brings: what the operator writes into its HTTPRoute, and in which order.

The cluster has Gateway API's own CRD and nobody who acts on it; a stand-in answers for the Gateway, as an
implementation of it would: it accepts each generation of a route.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from moe_operator.api.names import LABEL_SERVING, gateway_name
from moe_operator.runtime.kube import HTTP_ROUTE, POD, ApiError

from e2e.scenarios.manifest import merge
from tests.e2e.gateway_traffic import NAME, slow_tokens, whole
from tests.e2e.world import World, settled
from tests.gateway_api import http_routes

Obj = dict[str, Any]
EDGE = "edge"
LOOK_SECONDS = 0.1
BEHIND = {"spec": {"gateway": {"external": {"httpRouteRef": {"name": EDGE, "hostnames": ["moe.example"]}}}}}


class Edge:
    """The Gateway's side: accepts routes, and remembers every set of weights that it was given."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.given: list[dict[str, int]] = []

    async def work(self) -> None:
        while True:
            route = await self.route()
            if route:
                self._note(route)
                if answered(route) < route["metadata"]["generation"]:
                    await self._world.kube.apply_status(acceptance(route), manager=EDGE)
            await asyncio.sleep(LOOK_SECONDS)

    async def route(self) -> Obj | None:
        try:
            return await self._world.kube.get(HTTP_ROUTE, self._world.namespace, gateway_name(NAME))
        except ApiError as error:
            if not error.not_found:
                raise
        return None

    async def weights(self) -> dict[str, int]:
        """Of the route as it is now."""
        route = await self.route()
        return shares(route) if route else {}

    def _note(self, route: Obj) -> None:
        if not self.given or self.given[-1] != shares(route):
            self.given.append(shares(route))


def shares(route: Obj) -> dict[str, int]:
    """Revision → weight; each backend is called by the deployment and a revision."""
    [rule] = route["spec"]["rules"]
    return {ref["name"].removeprefix(f"{NAME}-"): ref["weight"] for ref in rule["backendRefs"]}


def answered(route: Obj) -> int:
    """The newest generation of the route that the Gateway has spoken about."""
    parents = (route.get("status") or {}).get("parents") or ()
    return max((c["observedGeneration"] for parent in parents for c in parent["conditions"]), default=0)


def acceptance(route: Obj) -> Obj:
    """The route's status as a Gateway writes it that has nothing against it."""
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": kind,
            "message": "",
            "observedGeneration": route["metadata"]["generation"],
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("Accepted", "ResolvedRefs")
    ]
    parents = [
        {"parentRef": parent, "controllerName": "example.com/edge", "conditions": conditions}
        for parent in route["spec"]["parentRefs"]
    ]
    meta = {name: route["metadata"][name] for name in ("name", "namespace")}
    kind = {"apiVersion": HTTP_ROUTE.api_version, "kind": HTTP_ROUTE.kind}
    return {**kind, "metadata": meta, "status": {"parents": parents}}


@asynccontextmanager
async def edge(world: World) -> AsyncIterator[Edge]:
    """A Gateway that works while entered, in a cluster that serves HTTPRoutes meanwhile."""
    async with http_routes(world.kube):
        gateway = Edge(world)
        task = asyncio.create_task(gateway.work())
        try:
            yield gateway
        finally:
            task.cancel()
            [ended] = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended


async def serving_addresses(world: World, service: str) -> set[str]:
    """Where a Service sends to now, as the cluster's own controllers have found it."""
    label = f"kubernetes.io/service-name={service}"
    text = await world.kubectl_soon("get", "endpointslices", "-l", label, "-o", "json")
    endpoints = [each for item in json.loads(text)["items"] for each in item.get("endpoints") or ()]
    return {address for each in endpoints if each["conditions"]["ready"] for address in each["addresses"]}


async def test_an_httproute_follows_what_serves(world: World, figures: dict[str, str]) -> None:
    async with edge(world) as gateway:
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
    active = view.status.active_revision
    assert await gateway.weights() == {active: 100}
    assert (await world.pods(NAME, "gateway"), "Deployment" in await world.left(NAME)) == ([], False)
    route = await gateway.route()
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
    change = {"spec": {"engine": {"image": world.site.images.stub_of("0.33.1")}}}
    after = (await world.serve(slow_tokens(world, BEHIND, change))).status.active_revision
    assert after != before
    assert gateway.given == [
        {before: 100},
        {before: 100, after: 0},
        {before: 0, after: 100},
        {after: 100},
    ]


async def back_to_its_own(world: World, gateway: Edge) -> None:
    change = {"spec": {"engine": {"image": world.site.images.stub_of("0.33.1")}}}
    await world.serve(merge(slow_tokens(world), change))
    await whole(world)

    async def is_gone() -> bool:
        return await gateway.route() is None

    await world.poll(is_gone, "the route goes when the managed gateway has taken over")
    assert (await world.answers(NAME, NAME)).status_code == 200
