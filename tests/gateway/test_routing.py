"""Requests through the real Envoy: who gets them, and what happens when engines come, go and die."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.gateway.client import Answer
from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.load import Load
from tests.gateway.pod import Pod, colour, intent, until

FLIPS = 10
REQUESTS = 2_000


async def served_by(pod: Pod, requests: int) -> Counter[str]:
    client = pod.client()
    answers = [await client.chat() for _ in range(requests)]
    return Counter(answer.json["model"] for answer in answers)


async def test_the_share_of_a_colour_is_its_weight(engine: StartEngine, serving: StartPod) -> None:
    blue, green = await engine("blue"), await engine("green")
    pod = await serving(intent(1, colour("b", 80, blue.address), colour("g", 20, green.address)))
    await pod.healthy(blue.address, green.address)

    seen = await served_by(pod, 400)

    assert 280 <= seen["blue"] <= 360  # 320 ± 5 sigma
    assert seen["blue"] + seen["green"] == 400
    states = {host.revision: host for host in (await pod.ack()).hosts}
    assert (states["b"].weight, states["g"].weight) == (80, 20)


async def test_a_colour_of_weight_zero_gets_nothing_while_a_weighted_one_lives(
    engine: StartEngine, serving: StartPod
) -> None:
    blue, green = await engine("blue"), await engine("green")
    pod = await serving(intent(1, colour("b", 100, blue.address), colour("g", 0, green.address)))
    await pod.healthy(blue.address, green.address)

    assert await served_by(pod, 100) == {"blue": 100}


async def test_a_standby_serves_also_when_nothing_else_is_told(
    engine: StartEngine, serving: StartPod
) -> None:
    """The operator takes the leaders of a lost colour out while the one that stands by still does."""
    blue, green = await engine("blue"), await engine("green")
    both = (colour("b", 100, blue.address), colour("g", 0, green.address))
    pod = await serving(intent(1, *both))
    await pod.healthy(blue.address, green.address)

    pod.api.put(intent(2, colour("g", 0, green.address)))
    await pod.ack(2)

    assert await served_by(pod, 20) == {"green": 20}


async def test_the_standby_takes_over_when_every_weighted_engine_is_dead(
    engine: StartEngine, serving: StartPod
) -> None:
    blue, green = await engine("blue"), await engine("green")
    pod = await serving(intent(1, colour("b", 100, blue.address), colour("g", 0, green.address)))
    await pod.healthy(blue.address, green.address)

    await blue.kill()
    await pod.healthy(green.address)
    assert await served_by(pod, 50) == {"green": 50}

    await blue.start()
    await pod.healthy(blue.address, green.address)

    async def failed_back() -> bool:
        return await served_by(pod, 5) == {"blue": 5}

    await until(failed_back)


async def test_a_busy_engine_survives_two_failed_checks_and_is_ejected_by_more(
    engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)

    blue.healthy = False
    await pod.healthy()
    answer = await pod.client().chat()
    assert (answer.status, answer.json["error"]["code"]) == (503, "no_engine_available")

    blue.healthy = True
    await pod.healthy(blue.address)
    assert (await pod.client().chat()).status == 200


async def test_flipping_all_traffic_back_and_forth_fails_no_request_and_breaks_no_stream(
    engine: StartEngine, serving: StartPod
) -> None:
    blue, green = await engine("blue"), await engine("green")
    blue.chunk_seconds = green.chunk_seconds = 0.02
    shares = ((100, 0), (0, 100))
    pod = await serving(intent(1, colour("b", 100, blue.address), colour("g", 0, green.address)))
    await pod.healthy(blue.address, green.address)
    load = Load(pod)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(load.requests())
        for _ in range(12):
            tasks.create_task(load.streams())
        for flip in range(1, FLIPS + 1):
            await load.sent_at_least(REQUESTS * flip // (FLIPS + 1))
            b, g = shares[flip % 2]
            generation = 1 + flip
            pod.api.put(intent(generation, colour("b", b, blue.address), colour("g", g, green.address)))
            assert (await pod.ack(generation)).generation == generation
            loser = blue if flip % 2 else green
            before = loser.requests
            assert await served_by(pod, 5) == {"green" if flip % 2 else "blue": 5}
            await load.sent_at_least(load.sent + 50)
            assert loser.requests - before <= 20  # only what was on its way when Envoy swapped
        await load.sent_at_least(REQUESTS)
        load.stop = True

    assert load.failures == []
    assert load.sent >= REQUESTS
    assert load.streamed >= 100
    stats = (await pod.client(9901).get("/stats?filter=listener_m")).body.decode()
    assert "listener_manager.listener_modified: 0" in stats


async def test_an_endpoint_that_joins_is_acknowledged_once_healthy_and_one_that_leaves_gets_nothing(
    engine: StartEngine, serving: StartPod
) -> None:
    first, second = await engine("first"), await engine("second")
    pod = await serving(intent(1, colour("b", 100, first.address)))
    await pod.healthy(first.address)

    pod.api.put(intent(2, colour("b", 100, first.address, second.address)))
    assert (await pod.ack(2)).generation == 2
    await pod.healthy(first.address, second.address)
    assert (await served_by(pod, 60)).keys() == {"first", "second"}

    pod.api.put(intent(3, colour("b", 100, second.address)))
    assert [host.address for host in (await pod.ack(3)).hosts] == [second.address]
    before = first.requests
    assert await served_by(pod, 60) == {"second": 60}
    assert first.requests == before  # although it still passes its checks


async def test_a_killed_engine_breaks_only_its_own_streams(engine: StartEngine, serving: StartPod) -> None:
    one, two = await engine("one"), await engine("two")
    one.hold = two.hold = asyncio.Event()
    pod = await serving(intent(1, colour("b", 100, one.address, two.address)))
    await pod.healthy(one.address, two.address)
    streams = [asyncio.create_task(pod.client().chat(stream=True)) for _ in range(8)]

    async def all_run() -> bool:
        return one.active + two.active == 8 and one.active > 0 and two.active > 0

    await until(all_run)
    seen = {host.address: host.active_requests for host in (await pod.ack()).hosts}
    assert seen == {one.address: one.active, two.address: two.active}
    survivors = two.active

    await one.kill()
    two.hold.set()
    results = await asyncio.gather(*streams, return_exceptions=True)
    whole = [r for r in results if isinstance(r, Answer) and r.complete]
    assert len(whole) == survivors
    one.hold = None
    assert await served_by(pod, 40) == {"two": 40}  # nobody else notices: connects are retried


async def test_stream_chunks_arrive_one_by_one(engine: StartEngine, serving: StartPod) -> None:
    blue = await engine("blue")
    blue.hold = asyncio.Event()  # the last chunk is held back until the first ones were read here
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)

    reader, writer = await asyncio.open_connection(pod.address, 8080)
    body = b'{"stream": true}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    early = await reader.readuntil(b'"2 "')
    blue.hold.set()
    late = await reader.readuntil(b"[DONE]")
    writer.close()

    assert b"[DONE]" not in early
    assert b'"3 "' in late


async def test_without_engines_clients_are_told_when_to_come_back(serving: StartPod) -> None:
    pod = await serving(intent(1, retry_after_seconds=42))

    answer = await pod.client().chat()

    assert answer.status == 503
    assert answer.headers["retry-after"] == "42"
    assert answer.headers["content-type"] == "application/json"
    error = answer.json["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "service_unavailable",
        "no_engine_available",
        None,
    )
    assert isinstance(error["message"], str)


async def test_the_access_log_tells_who_served_and_holds_no_prompt_and_no_key(
    engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)

    answer = await pod.client().get("/v1/models?key=sk-q", authorization="Bearer sk-h", x_request_id="my-id")
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.headers["x-moe-revision"] == "b"
    assert len((await pod.client().chat()).headers["x-request-id"]) == 36

    async def logged() -> bool:
        return len(pod.access_log()) == 2

    await until(logged)  # Envoy flushes its log every few seconds
    line = pod.access_log()[0]
    assert (line["request_id"], line["revision"], line["pod"]) == ("my-id", "b", "kimi-b-0-0")
    assert (line["status"], line["path"]) == (200, "/v1/models")
    assert line["queue_ms"] >= 0 and line["ttft_ms"] >= 0 and line["duration_ms"] >= 0
    text = (pod.directory / "envoy.log").read_text()
    assert "sk-" not in text and "messages" not in text
