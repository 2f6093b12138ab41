"""Where intents come from, and what survives when the API server, the agent or Envoy is lost."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.gateway.api_double import ApiDouble
from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.pod import Pod, colour, happened, intent, text_of, until


async def test_the_agent_watches_one_config_map_with_the_token_of_the_moment(
    api: ApiDouble, serving: StartPod
) -> None:
    pod = await serving(intent(1))
    await happened(api.watching)
    (pod.credentials / "token").write_text("second-token")
    api.cut()
    await happened(api.watching)

    assert api.tokens[0] == "bearer first-token"
    assert api.tokens[-1] == "bearer second-token"
    query = api.queries[-1]
    assert query["fieldSelector"] == ["metadata.name=kimi-gateway"]
    assert query["watch"] == ["1"]
    assert "resourceVersion" not in query  # the server sends the object as it is now


async def test_a_change_made_while_the_watch_was_lost_arrives(api: ApiDouble, serving: StartPod) -> None:
    pod = await serving(intent(1))
    await happened(api.watching)
    await api.stop()
    api.put(intent(2))

    await api.start()

    assert (await pod.ack(2)).generation == 2


@pytest.mark.parametrize("status", [403, 410, 500])
async def test_a_refused_watch_is_tried_again(api: ApiDouble, serving: StartPod, status: int) -> None:
    api.refuse_with = status
    pod = await serving(intent(1))
    api.put(intent(2))

    async def refused_twice() -> bool:
        return len(api.queries) >= 2

    await until(refused_twice)
    api.refuse_with = None
    assert (await pod.ack(2)).generation == 2
    metrics = (await pod.client(9902).get("/metrics")).body.decode()
    assert "moe_gateway_watch_connected 1.0" in metrics
    assert "moe_gateway_watch_failures_total 0.0" not in metrics


async def test_an_expired_watch_and_other_noise_do_not_stop_the_next_intent(
    api: ApiDouble, serving: StartPod
) -> None:
    pod = await serving(intent(1))
    await happened(api.watching)

    api.send("BOOKMARK", {"kind": "ConfigMap", "metadata": {"resourceVersion": "12746"}})
    api.send("MODIFIED", {"kind": "ConfigMap", "metadata": {"name": "kimi-gateway"}})
    api.send("DELETED", {"kind": "ConfigMap", "metadata": {"name": "kimi-gateway"}, "data": {}})
    api.watching.clear()
    api.send("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
    await happened(api.watching)
    api.put(intent(2))

    assert (await pod.ack(2)).generation == 2


async def test_a_gateway_boots_from_the_mount_while_the_api_is_down(
    api: ApiDouble, engine: StartEngine, pod: Pod
) -> None:
    await api.stop()
    blue = await engine("blue")
    pod.prepare(intent(5, colour("b", 100, blue.address)))

    await pod.start()
    await until(pod.ready)

    await pod.healthy(blue.address)
    assert (await pod.client().chat()).json["model"] == "blue"
    assert (await pod.ack()).received_generation == 5
    pod.mount.write_text(text_of(intent(6, colour("b", 100, blue.address))))  # the kubelet refreshes it
    assert (await pod.ack(6)).generation == 6


async def test_an_older_intent_is_ignored_even_by_an_agent_that_has_forgotten_everything(
    api: ApiDouble, serving: StartPod
) -> None:
    pod = await serving(intent(7))
    await pod.ack(7)

    pod.mount.write_text(text_of(intent(4)))
    await pod.stop_agent()
    api.text = text_of(intent(6))
    pod.start_agent()
    await until(pod.ready)
    api.put(intent(3))
    api.put(intent(8))

    ack = await pod.ack(8)
    assert (ack.generation, ack.received_generation, ack.accepted) == (8, 8, True)
    files = [json.loads((pod.xds / name).read_text()) for name in ("eds.json", "cds.json", "rds.json")]
    assert all(file["version_info"].startswith("8-") for file in files)


async def test_killing_the_agent_leaves_traffic_alone_and_the_next_one_goes_on(
    api: ApiDouble, engine: StartEngine, pod: Pod
) -> None:
    blue, green = await engine("blue"), await engine("green")
    first = intent(1, colour("b", 100, blue.address), colour("g", 0, green.address))
    pod.prepare(first)
    api.put(first)
    assert await pod.run_init() == 0
    await pod.start_envoy()
    await pod.run_agent()
    await until(pod.ready)
    await pod.healthy(blue.address, green.address)

    await pod.kill("agent")
    assert (await pod.client().chat()).json["model"] == "blue"
    api.put(intent(2, colour("b", 0, blue.address), colour("g", 100, green.address)))
    await pod.run_agent()
    await until(pod.ready)

    assert (await pod.ack(2)).generation == 2
    assert (await pod.client().chat()).json["model"] == "green"
    agent = pod.processes["agent"]
    agent.terminate()
    assert await agent.wait() == 0


async def test_a_killed_envoy_comes_back_from_its_files_without_agent_and_api(
    api: ApiDouble, engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    pod = await serving(intent(3, colour("b", 100, blue.address)))
    await pod.ack(3)
    await pod.stop_agent()
    await api.stop()

    await pod.kill("envoy")
    await pod.start_envoy()

    async def answers() -> bool:
        try:
            return (await pod.client().chat()).status == 200
        except ConnectionError:
            return False

    await until(answers)


async def test_an_intent_that_arrives_while_envoy_is_down_is_acknowledged_when_it_is_back(
    api: ApiDouble, serving: StartPod
) -> None:
    pod = await serving(intent(1))
    await pod.kill("envoy")
    assert (await pod.client(9902).get("/readyz")).status == 503
    api.put(intent(2))

    async def received() -> bool:
        return (await pod.ack()).received_generation == 2

    await until(received)
    ack = await pod.ack()
    assert (ack.generation, ack.envoy_live, ack.accepted) == (-1, False, True)

    await pod.start_envoy()
    ack = await pod.ack(2)
    assert (ack.generation, ack.envoy_live) == (2, True)
    await until(pod.ready)


async def test_waiting_for_a_generation_ends_the_moment_it_is_accepted(
    api: ApiDouble, serving: StartPod
) -> None:
    pod = await serving(intent(1))
    waiting = asyncio.create_task(pod.ack(2))
    short = await pod.client(9902).get("/ack?wait_generation=2&timeout=0.01")
    assert short.json["generation"] == 1
    assert not waiting.done()

    api.put(intent(2))

    assert (await waiting).generation == 2
