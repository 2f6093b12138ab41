"""Clients while engines are gone: they wait for them, or what stands by takes their requests."""

from __future__ import annotations

import asyncio

import httpx
from moe_operator.api.names import LABEL_REVISION, PORT_GATEWAY_AGENT
from prometheus_client.parser import text_string_to_metric_families

from e2e.scenarios.load import Load
from tests.deployments.site import GATEWAY_PORT, Obj, Site, moe_deployment

NAME = "dsv31"
HELD = 20
ANSWERS = 50


def deployment(image: str = "stub:blue", replicas: int = 1) -> Obj:
    """Tokens come slowly, so that a stream outlasts whatever happens."""
    gateway = {"service": {"port": GATEWAY_PORT}, "queue": {"holdSeconds": 900}}
    env = [{"name": "STUB_ITL_MS", "value": "100"}]
    engine = {"type": "vLLM", "image": image, "env": env}
    return moe_deployment(gateway=gateway, engine=engine, replicas=replicas)


async def gauge(site: Site, name: str) -> int:
    """A number that the agents tell, of every gateway pod and endpoint together."""
    total = 0.0
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        for pod in site.pods("gateway"):
            page = await client.get(f"http://{pod['status']['podIP']}:{PORT_GATEWAY_AGENT}/metrics")
            families = text_string_to_metric_families(page.text)
            total += sum(s.value for family in families for s in family.samples if s.name == name)
    return int(total)


async def test_requests_wait_for_a_deployment_that_is_scaled_to_nothing(site: Site) -> None:
    await site.apply(deployment())
    await site.until(site.stable, "it is stable")
    await site.apply(deployment(replicas=0))
    await site.until(lambda: not site.pods(), "no engine is left")
    body = {"model": NAME, "prompt": "Hi", "max_tokens": 2}
    async with httpx.AsyncClient(base_url=site.gateway_url(), timeout=600, trust_env=False) as client:
        asked = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(HELD)]
        async with asyncio.timeout(60):
            while await gauge(site, "moe_gateway_held") < HELD:
                await asyncio.sleep(0.1)
        assert not any(task.done() for task in asked)
        await site.apply(deployment(replicas=1))
        answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [200] * HELD


async def test_the_standby_serves_when_all_pods_of_the_active_colour_are_killed(site: Site) -> None:
    """The old revision stands by while streams still run on it. Five clients ask one after the other."""
    await site.apply(deployment())
    await site.until(site.stable, "it is stable")
    async with Load(site.gateway_url(), NAME, clients=4, max_tokens=10_000) as long:
        async with asyncio.timeout(60):
            while await gauge(site, "moe_gateway_active_requests") < 4:
                await asyncio.sleep(0.1)
        old = site.status()["activeRevision"]
        await site.apply(deployment("stub:green"))
        await site.until(lambda: site.status()["rollout"]["phase"] == "Draining", "the new one takes over")
        active = site.status()["activeRevision"]
        victims = [p for p in site.pods() if p["metadata"]["labels"][LABEL_REVISION] == active]
        async with Load(site.gateway_url(), NAME, clients=5, max_tokens=1) as load:
            await load.reach(ANSWERS)
            assert set(load.tally.by_revision()) == {active}
            for pod in victims:
                site.sandbox.kill(pod["metadata"]["name"], "engine")
            await load.reach(load.tally.sent + ANSWERS)
            tally = await load.finish()
        assert long.tally.sent == 0, "what runs on the standby goes on"
    assert tally.by_revision().keys() == {active, old}
    assert tally.sent - tally.count("complete") <= 5, tally.complaints()
