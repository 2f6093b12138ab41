"""preStop: a gateway pod ends without cutting a stream."""

from __future__ import annotations

import asyncio

from tests.gateway.client import CHAT
from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.pod import Pod, colour, happened, intent, until


async def test_a_drain_waits_for_streams_and_serves_whoever_still_comes(
    engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    blue.hold = asyncio.Event()
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)
    streams = [asyncio.create_task(pod.client().chat(stream=True)) for _ in range(5)]

    async def streams_run() -> bool:
        return blue.active == 5

    await until(streams_run)
    drain = asyncio.create_task(pod.client(9904).post("/drain?grace=0"))

    async def unready() -> bool:
        return not await pod.ready()

    await until(unready)
    assert (await pod.client().get("/-/ready")).status == 503
    late = await pod.client().get("/v1/models")  # a node that does not know yet
    assert (late.status, late.headers["connection"]) == (200, "close")
    assert not drain.done()
    second = asyncio.create_task(pod.client(9904).post("/drain"))  # whoever asks again waits for the same one

    blue.hold.set()
    assert all(answer.complete for answer in await asyncio.gather(*streams))
    for answer in (await drain, await second):
        assert answer.json == {"cut": 0, "envoy_gone": False}


async def test_a_drain_ends_at_its_limit_and_says_what_it_cuts(
    engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    blue.hold = asyncio.Event()
    pod = await serving(intent(1, colour("b", 100, blue.address), drain_seconds=1))
    await pod.healthy(blue.address)
    stream = asyncio.create_task(pod.client().chat(stream=True))

    async def stream_runs() -> bool:
        return blue.active == 1

    await until(stream_runs)

    drained = await pod.client(9904).post("/drain?grace=0")

    assert drained.json == {"cut": 1, "envoy_gone": False}
    blue.hold.set()
    assert (await stream).complete  # Envoy itself is still there


async def test_a_drain_without_envoy_is_over_at_once(pod: Pod, serving: StartPod) -> None:
    await serving(intent(1))
    await pod.kill("envoy")

    assert (await pod.client(9904).post("/drain")).json == {"cut": 0, "envoy_gone": True}


async def test_the_hook_of_the_pod_waits_for_the_drain(engine: StartEngine, serving: StartPod) -> None:
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)

    assert await pod.run_drain() == 0

    assert (await pod.client().get("/-/ready")).status == 503
    assert (pod.directory / "drain.log").read_text() == '{"cut": 0, "envoy_gone": false}\n'


async def test_the_hook_says_that_there_is_no_agent(serving: StartPod) -> None:
    pod = await serving(intent(1))
    await pod.stop_agent()

    assert await pod.run_drain() == 1

    assert "the agent did not drain" in (pod.directory / "drain.log").read_text()


async def test_nobody_outside_the_pod_can_drain_it(serving: StartPod) -> None:
    pod = await serving(intent(1))

    assert (await pod.client(9902).post("/drain")).status == 404
    assert (await pod.client(9902).get("/drain")).status == 404
    assert (await pod.client(9904).get("/ack")).status == 404


async def test_a_client_that_leaves_cancels_the_engines_work(engine: StartEngine, serving: StartPod) -> None:
    blue = await engine("blue")
    blue.hold = asyncio.Event()
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)
    reader, writer = await asyncio.open_connection(pod.address, 8080)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n".encode() + b'{"stream":true}'
    )
    await reader.readuntil(b'"2 "')

    writer.close()

    await happened(blue.left)
