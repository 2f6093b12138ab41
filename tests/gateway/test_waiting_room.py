"""While no engine can take a request it waits, through the real Envoy."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest
from moe_operator.api.intent import Queue

from tests.gateway.client import CHAT, Answer
from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.engine_double import EngineDouble
from tests.gateway.pod import Pod, colour, intent, until

OUTAGE_SECONDS = 20


async def active(pod: Pod) -> int:
    """Requests that clients wait for."""
    text = (await pod.client(9901).get("/stats?filter=downstream_rq_active")).body.decode()
    return int(re.findall(r"http\.ingress\.downstream_rq_active: (\d+)", text)[0])


async def waiting(pod: Pod, number: int) -> None:
    async def so() -> bool:
        return await active(pod) == number

    await until(so)


async def held_numbers(pod: Pod) -> dict[str, int]:
    """What the room says of itself: who waits now, and how those who came have left."""
    text = (await pod.client(9902).get("/metrics")).body.decode()
    found = re.findall(
        r'^moe_gateway_held(?:_requests_total\{verdict="(\w+)"\})? (\d+)\.0$', text, re.MULTILINE
    )
    return {verdict or "held": int(number) for verdict, number in found}


async def down(pod: Pod, *engines: EngineDouble) -> None:
    for engine in engines:
        await engine.kill()
    await pod.healthy()


def stamps(engine: EngineDouble) -> list[int]:
    """When the requests reached the gateway, in the order in which the engine got them."""
    return [int(number) for head in engine.heads for number in re.findall(r"x-moe-received: (\d+)", head)]


@pytest.mark.parametrize("outage", [0, OUTAGE_SECONDS])
async def test_a_hundred_requests_wait_through_an_outage_and_are_served_in_order(
    engine: StartEngine, serving: StartPod, outage: float
) -> None:
    blue = await engine("blue")
    queue = Queue(hold_seconds=600)
    pod = await serving(intent(1, colour("b", 100, blue.address), queue=queue))
    await pod.healthy(blue.address)
    await down(pod, blue)
    since = time.monotonic()

    held = [asyncio.create_task(pod.client().chat(stream=n % 2 == 1)) for n in range(100)]
    await waiting(pod, 100)
    await asyncio.sleep(max(0.0, outage - (time.monotonic() - since)))
    assert not any(task.done() for task in held)
    await blue.start()

    answers = await asyncio.gather(*held)
    assert [answer for answer in answers if answer.status != 200] == []
    assert all(answer.complete for answer in answers[1::2])
    came, served = sorted(stamps(blue)), stamps(blue)
    assert len(served) == 100
    # called in order; a retry may be overtaken by those called within its jitter
    assert max(abs(came.index(stamp) - place) for place, stamp in enumerate(served)) <= 25


async def test_who_comes_when_the_room_is_full_is_turned_away_until_somebody_leaves(
    engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    told = intent(1, colour("b", 100, blue.address), queue=Queue(max_waiting=256), retry_after_seconds=777)
    pod = await serving(told)
    await pod.healthy(blue.address)
    await down(pod, blue)
    clients = [pod.client() for _ in range(256)]
    held = [asyncio.create_task(client.chat()) for client in clients]
    await waiting(pod, 256)

    assert await held_numbers(pod) == {"held": 256, "called": 0, "expired": 0, "full": 0, "left": 0}
    late = await pod.client().chat()
    assert (late.status, late.json["error"]["code"]) == (503, "waiting_room_full")
    assert late.headers["retry-after"] == "777"
    assert "x-envoy-ratelimited" not in late.headers
    assert late.headers["x-request-id"]

    held[0].cancel()
    await asyncio.wait(held[:1])
    await waiting(pod, 255)
    held[0] = asyncio.create_task(pod.client().chat())
    await waiting(pod, 256)
    assert (await pod.client().chat()).status == 503

    await blue.start()
    assert {answer.status for answer in await asyncio.gather(*held)} == {200}
    numbers = await held_numbers(pod)
    assert (numbers["held"], numbers["full"], numbers["left"], numbers["expired"]) == (0, 2, 1, 0)
    assert numbers["called"] >= 256  # again where the engine was slow to be seen by every worker


async def test_nobody_waits_longer_than_the_intent_allows(engine: StartEngine, serving: StartPod) -> None:
    blue = await engine("blue")
    queue = Queue(max_waiting=10, hold_seconds=1)
    pod = await serving(intent(1, colour("b", 100, blue.address), queue=queue, retry_after_seconds=42))
    await pod.healthy(blue.address)
    await down(pod, blue)

    answer = await pod.client().chat()

    assert (answer.status, answer.json["error"]["code"]) == (503, "no_engine_available")
    assert answer.headers["retry-after"] == "42"


async def test_a_question_about_this_moment_is_answered_at_once(serving: StartPod) -> None:
    pod = await serving(intent(1, queue=Queue(hold_seconds=3600)))
    assert (await pod.client().get("/health")).status == 503


async def test_a_large_body_is_kept_and_sent_whole(engine: StartEngine, serving: StartPod) -> None:
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address), queue=Queue()))
    await pod.healthy(blue.address)
    await down(pod, blue)
    body = json.dumps({"model": "kimi", "prompt": "x" * (5 << 20)}).encode()

    sent = asyncio.create_task(pod.client().send(CHAT, body))
    await waiting(pod, 1)
    await blue.start()

    assert (await sent).status == 200
    assert f"content-length: {len(body)}" in blue.heads[-1]


async def test_the_room_is_left_when_the_standby_comes_instead(
    engine: StartEngine, serving: StartPod
) -> None:
    blue, green = await engine("blue"), await engine("green")
    pod = await serving(intent(1, colour("b", 100, blue.address), queue=Queue()))
    await pod.healthy(blue.address)
    await down(pod, blue)
    held = [asyncio.create_task(pod.client().chat()) for _ in range(5)]
    await waiting(pod, 5)

    pod.api.put(intent(2, colour("b", 100, blue.address), colour("g", 0, green.address), queue=Queue()))

    answers: list[Answer] = await asyncio.gather(*held)
    assert [answer.json["model"] for answer in answers] == ["green"] * 5
