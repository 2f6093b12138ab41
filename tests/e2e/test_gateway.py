"""The gateway loses a part, or the engines behind it: clients notice no more than they must."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import httpx
import pytest
from moe_operator.api.intent import INTENT_KEY, Intent
from moe_operator.api.names import LABEL_REVISION, PORT_GATEWAY_AGENT, gateway_name
from moe_operator.runtime.kube import CONFIG_MAP, POD

from e2e.kind.release import NAME as OPERATOR
from e2e.kind.release import NAMESPACE as OPERATOR_NAMESPACE
from e2e.scenarios.load import Load
from tests.e2e.audit_log import moments, now
from tests.e2e.gateway_traffic import NAME, gateways, losses, slow_tokens, traffic, whole
from tests.e2e.world import World, is_ready

Obj = dict[str, Any]
HELD = 40
CHANGES = 5
AGENT = f"http://127.0.0.1:{PORT_GATEWAY_AGENT}"
READ = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
WAIT = """
import json, sys, time, urllib.request as r
print("asking", flush=True)
ack = json.load(r.urlopen(sys.argv[1]))
print(json.dumps([time.time(), ack["generation"], ack["rejected"]]))
"""


async def restarted(world: World, pod: Obj, container: str) -> None:
    """Wait until the kubelet has started a container once more than in ``pod``."""
    name, before = pod["metadata"]["name"], world.restarts(pod, container)

    async def so() -> bool:
        found = await world.kube.get(POD, pod["metadata"]["namespace"], name)
        return world.restarts(found, container) > before

    await world.poll(so, f"{container} of {name} runs again")


async def a_pod_is_deleted(world: World) -> None:
    victim = (await gateways(world))[0]["metadata"]
    await world.kube.delete(POD, world.namespace, victim["name"])

    async def is_gone() -> bool:
        return victim["uid"] not in await world.uids(NAME, "gateway")

    await world.poll(is_gone, "the gateway pod is gone")


async def all_pods_are_replaced(world: World) -> None:
    before = await world.uids(NAME, "gateway")
    await world.kubectl_soon("rollout", "restart", f"deployment/{gateway_name(NAME)}")

    async def are_new() -> bool:
        return not before & await world.uids(NAME, "gateway")

    await world.poll(are_new, "every gateway pod is a new one")


async def an_agent_is_killed(world: World) -> None:
    victim = (await gateways(world))[0]
    await asyncio.to_thread(world.kill, victim, "agent")
    await restarted(world, victim, "agent")


async def the_operators_are_killed(world: World) -> None:
    victims = [pod for pod in await world.operators() if is_ready(pod)]
    await world.kill_operators()
    for victim in victims:
        await restarted(world, victim, "operator")


@pytest.mark.parametrize(
    "loss", [a_pod_is_deleted, all_pods_are_replaced, an_agent_is_killed, the_operators_are_killed]
)
async def test_nothing_fails_when(
    world: World, figures: dict[str, str], loss: Callable[[World], Awaitable[None]]
) -> None:
    await world.serve(slow_tokens(world))
    await whole(world)
    async with traffic(world) as flow:
        await loss(world)
        await whole(world)
        await flow.more()
        tally = await flow.finish()
    figures[f"gateway: {loss.__name__.replace('_', ' ')}"] = flow.figure(tally)
    assert tally.complaints() == []


async def test_a_killed_envoy_costs_what_was_on_its_way_through_it(
    world: World, figures: dict[str, str]
) -> None:
    """Until its pod's address is taken back nobody listens there; nothing that was refused had been sent."""
    await world.serve(slow_tokens(world))
    await whole(world)
    async with traffic(world) as flow:
        victim = (await gateways(world))[0]
        await asyncio.to_thread(world.kill, victim, "envoy")
        died = time.monotonic()
        await restarted(world, victim, "envoy")
        await whole(world)
        back = time.monotonic()
        await flow.more()
        tally = await flow.finish()
    lost = losses(tally, died, back)
    last = max((request.began - died for request in lost.refused), default=0.0)
    figures["gateway: Envoy is killed"] = (
        f"{tally.sent} requests: {len(lost.cut)} cut in it, {len(lost.refused)} refused in {last:.1f} s, "
        f"{len(lost.others)} others failed"
    )
    assert lost.others == []


async def test_the_standby_serves_when_all_pods_of_the_active_colour_are_killed(
    world: World, figures: dict[str, str]
) -> None:
    """The old revision stands by while streams still run on it. Five clients ask one after the other."""
    await world.serve(slow_tokens(world))
    url, change = await world.url(NAME), {"spec": {"engine": {"image": world.site.images.stub_of("0.33.1")}}}
    async with Load(url, NAME, clients=4, max_tokens=10_000) as long:

        async def all_run() -> bool:
            return await gauge(world, "moe_gateway_active_requests") == 4

        await world.poll(all_run, "four streams run on the old revision")
        generation = (await world.apply(slow_tokens(world, change)))["metadata"]["generation"]
        view = await world.until(
            NAME,
            lambda v: v.generation == generation and v.current and v.status.rollout.phase == "Draining",
            "the new revision takes all requests",
        )
        active = view.status.active_revision
        victims = [p for p in await world.pods(NAME) if p["metadata"]["labels"][LABEL_REVISION] == active]
        async with Load(url, NAME, clients=5, max_tokens=1) as load:
            await load.reach(100)
            assert set(load.tally.by_revision()) == {active}
            await asyncio.gather(*(asyncio.to_thread(world.kill, pod, "engine") for pod in victims))
            await load.reach(load.tally.sent + 200)
            tally = await load.finish()
        assert long.tally.sent == 0, "what runs on the standby goes on"
    lost = tally.sent - tally.count("complete")
    served = {revision: count for revision, count in tally.by_revision().items() if revision != active}
    figures["gateway: all pods of the active colour are killed"] = (
        f"{lost} of {tally.sent} requests failed, the standby served {sum(served.values())}"
    )
    assert len(served) == 1, tally.complaints()
    assert lost <= 5, tally.complaints()


async def gauge(world: World, name: str) -> int:
    """A number that the agents tell, of every gateway pod and endpoint together."""
    pages = [
        await world.kubectl_soon(
            "exec", pod["metadata"]["name"], "-c", "agent", "--", "python3", "-c", READ, f"{AGENT}/metrics"
        )
        for pod in await gateways(world)
    ]
    sample = re.compile(rf"^{name}(?:{{.*}})? (\S+)$", re.MULTILINE)
    return sum(int(float(value)) for page in pages for value in sample.findall(page))


async def test_requests_wait_for_a_deployment_that_is_scaled_to_nothing(
    world: World, figures: dict[str, str]
) -> None:
    await world.serve(slow_tokens(world, {"spec": {"gateway": {"queue": {"holdSeconds": 900}}}}))
    await world.kubectl_soon("scale", f"moed/{NAME}", "--replicas=0")

    async def none() -> bool:
        return await world.pods(NAME) == []

    await world.poll(none, "no engine is left")

    async with httpx.AsyncClient(base_url=await world.url(NAME), timeout=900, trust_env=False) as client:
        body = {"model": NAME, "prompt": "Hello", "max_tokens": 2}
        asked = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(HELD)]

        async def all_wait() -> bool:
            return await gauge(world, "moe_gateway_held") == HELD

        await world.poll(all_wait, "every request waits")
        assert not any(task.done() for task in asked)
        began = time.monotonic()
        await world.kubectl_soon("scale", f"moed/{NAME}", "--replicas=1")
        answers = await asyncio.gather(*asked)
    seconds = time.monotonic() - began
    figures["gateway: requests held while scaled to nothing"] = (
        f"{HELD} answered {seconds:.0f} s after the scale up"
    )
    assert [answer.status_code for answer in answers] == [200] * HELD


async def test_a_changed_intent_is_in_force_in_every_gateway_pod(
    world: World, figures: dict[str, str]
) -> None:
    """From the operator's write, by the API server's log, until each pod has read it back from Envoy."""
    await world.serve(slow_tokens(world))
    await whole(world)
    took = [await one_change(world, number) for number in range(CHANGES)]
    figures["gateway: an intent in force in both pods after its write"] = (
        f"median {statistics.median(took) * 1000:.0f} ms, slowest {max(took) * 1000:.0f} ms of {CHANGES}"
    )


async def one_change(world: World, number: int) -> float:
    """Seconds."""
    wanted, since = await generation(world) + 1, now()
    asking = [await ask_for_ack(world, pod, wanted) for pod in await gateways(world)]
    await world.apply(slow_tokens(world, {"spec": {"gateway": {"limits": {"maxChoices": 100 + number}}}}))
    outputs = [(await process.communicate())[0] for process in asking]
    acks = [json.loads(output) for output in outputs]
    assert [(acked >= wanted, rejected) for _, acked, rejected in acks] == [(True, "")] * 2
    return float(max(at for at, _, _ in acks)) - (await written(world, since)).timestamp()


async def generation(world: World) -> int:
    found = await world.kube.get(CONFIG_MAP, world.namespace, gateway_name(NAME))
    return Intent.model_validate_json(found["data"][INTENT_KEY]).generation


async def ask_for_ack(world: World, pod: Obj, wanted: int) -> asyncio.subprocess.Process:
    """A process in the pod that asks its agent and prints when the answer came; it asks when we return."""
    record, url = world.site.record, f"{AGENT}/ack?wait_generation={wanted}&timeout=60"
    process = await asyncio.create_subprocess_exec(
        record.kubectl, "--kubeconfig", record.kubeconfig, "-n", world.namespace,
        "exec", pod["metadata"]["name"], "-c", "agent", "--", "python3", "-c", WAIT, url,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert (await process.stdout.readline()).strip() == b"asking"
    return process


async def written(world: World, since: datetime) -> datetime:
    """When the operator began to write the intent."""
    account = f"{OPERATOR_NAMESPACE}:{OPERATOR}"
    target = (world.namespace, "configmaps", gateway_name(NAME))
    found: list[datetime] = []

    async def logged() -> bool:
        found[:] = await asyncio.to_thread(moments, account, "patch", target, since)
        return bool(found)

    await world.poll(logged, "the write is in the audit log")
    return min(found)
