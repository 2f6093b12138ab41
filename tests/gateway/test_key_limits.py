"""What one key may ask for, in the real Envoy with two workers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from moe_operator.api.intent import Intent, KeyLimits, Keys, Limits

from tests.gateway.client import Answer, Client
from tests.gateway.conftest import StartEngine
from tests.gateway.engine_double import EngineDouble
from tests.gateway.pod import Pod, colour, happened, intent, until
from tests.gateway.secret import Mount, api_key, entry

StartLimited = Callable[..., Awaitable[Pod]]
BUSY = "rate_limit_exceeded"


@pytest.fixture
def secret(tmp_path: Path) -> Mount:
    mount = Mount(tmp_path / "keys")
    mount.write(**{name: entry(api_key(name)) for name in ("alice", "bob", "carol")})
    return mount


@pytest.fixture
async def blue(engine: StartEngine) -> EngineDouble:
    return await engine("blue")


@pytest.fixture
def limited(pod: Pod, secret: Mount, blue: EngineDouble) -> StartLimited:
    """Start a pod with limits for every key, and for some of their own."""

    async def start(*own: KeyLimits, **limits: int) -> Pod:
        first = wanted(1, secret, blue, *own, **limits)
        pod.workers = 2
        pod.prepare(first)
        pod.api.put(first)
        await pod.start()
        await pod.healthy(blue.address)
        return pod

    return start


def wanted(generation: int, secret: Mount, blue: EngineDouble, *own: KeyLimits, **limits: int) -> Intent:
    return intent(
        generation,
        colour("b", 100, blue.address),
        keys=Keys(directory=str(secret.directory)),
        limits=Limits(**limits),
        key_limits=list(own),
    )


async def ask(client: Client, name: str, *, stream: bool = False) -> Answer:
    return await client.chat(authorization=f"Bearer {api_key(name)}", stream=stream)


def refusal(answer: Answer) -> tuple[int, str, str]:
    error = answer.json["error"]
    return answer.status, error["type"], error["code"]


async def test_requests_per_minute_are_counted_for_each_key(limited: StartLimited) -> None:
    pod = await limited(KeyLimits(key_id="bob", requests_per_minute=5), requests_per_minute_per_key=2)
    clients = [pod.client() for _ in range(4)]  # on both workers

    for name, allowed in {"alice": 2, "bob": 5, "carol": 2}.items():
        answers = [await ask(clients[n % 4], name) for n in range(allowed + 2)]
        assert [answer.status for answer in answers] == [200] * allowed + [429] * 2
        assert refusal(answers[-1]) == (429, BUSY, "requests_per_minute_exceeded")
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 30
        assert answers[0].headers["x-ratelimit-limit"] == str(allowed)
        assert answers[0].headers["x-ratelimit-remaining"] == str(allowed - 1)


async def test_a_new_key_of_a_client_does_not_give_it_new_requests(
    limited: StartLimited, secret: Mount
) -> None:
    pod = await limited(requests_per_minute_per_key=1)
    client, second = pod.client(), api_key("alice-2")
    assert (await ask(client, "alice")).status == 200

    secret.put({"alice": entry(api_key("alice")), "alice.2": entry(second)})

    async def taken_up() -> bool:
        return (await client.chat(authorization=f"Bearer {second}")).status != 401

    await until(taken_up)
    assert (await client.chat(authorization=f"Bearer {second}")).status == 429


class Streams:
    """Streams that stay open at the engine until it lets them go."""

    def __init__(self, pod: Pod, blue: EngineDouble) -> None:
        self.pod, self.blue = pod, blue
        self.hold = blue.hold = asyncio.Event()
        self.open: list[tuple[Client, asyncio.Task[Answer]]] = []

    async def start(self, name: str, count: int) -> None:
        """Wait until so many more run at the engine."""
        running = self.blue.active + count
        for _ in range(count):
            client = self.pod.client()
            self.open.append((client, asyncio.create_task(ask(client, name, stream=True))))

        async def so() -> bool:
            return self.blue.active == running

        await until(so)

    async def refused(self, name: str, count: int) -> Counter[tuple[int, str, str]]:
        """What so many more get to hear, all at once."""
        asked = [ask(self.pod.client(), name, stream=True) for _ in range(count)]
        return Counter(map(refusal, await asyncio.gather(*asked)))

    async def finish(self) -> list[Answer]:
        self.hold.set()
        return await asyncio.gather(*(task for _, task in self.open))


TOO_MANY = (429, BUSY, "too_many_concurrent_requests")


async def test_requests_in_flight_are_counted_exactly(limited: StartLimited, blue: EngineDouble) -> None:
    pod = await limited(KeyLimits(key_id="bob", concurrent=1), concurrent_per_key=5)
    streams = Streams(pod, blue)

    await streams.start("alice", 5)
    assert await streams.refused("alice", 20) == {TOO_MANY: 20}
    await streams.start("bob", 1)
    assert await streams.refused("bob", 5) == {TOO_MANY: 5}
    await streams.start("carol", 5)  # not what the others take
    assert blue.active == 11

    assert all(answer.complete for answer in await streams.finish())
    for name, count in {"alice": 5, "bob": 1, "carol": 5}.items():  # all places are free again
        again = Streams(pod, blue)
        await again.start(name, count)
        assert await again.refused(name, 3) == {TOO_MANY: 3}
        await again.finish()


async def test_many_at_once_never_get_more_than_the_limit(limited: StartLimited, blue: EngineDouble) -> None:
    pod = await limited(concurrent_per_key=7)
    hold = blue.hold = asyncio.Event()
    asked = [asyncio.create_task(ask(pod.client(), "alice", stream=True)) for _ in range(60)]

    async def others_refused() -> bool:
        return sum(task.done() for task in asked) == 53

    await until(others_refused)
    assert blue.active == 7
    hold.set()
    answers = await asyncio.gather(*asked)
    assert Counter(answer.status for answer in answers) == {200: 7, 429: 53}
    assert {answer.headers["retry-after"] for answer in answers if answer.status == 429} == {"1"}


async def test_a_client_that_leaves_frees_its_place(limited: StartLimited, blue: EngineDouble) -> None:
    pod = await limited(concurrent_per_key=2)
    streams = Streams(pod, blue)
    await streams.start("alice", 2)

    client, task = streams.open.pop()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    client.close()
    await happened(blue.left)

    await streams.start("alice", 1)
    assert await streams.refused("alice", 1) == {TOO_MANY: 1}
    await streams.finish()


async def test_keys_that_come_and_go_do_not_disturb_the_count(
    limited: StartLimited, blue: EngineDouble, secret: Mount
) -> None:
    pod = await limited(concurrent_per_key=3)
    streams = Streams(pod, blue)
    await streams.start("carol", 3)

    secret.put({name: entry(api_key(name)) for name in ("aaron", "carol", "zoe")})
    client = pod.client()

    async def taken_up() -> bool:
        return (await ask(client, "aaron")).status == 200

    await until(taken_up)
    assert await streams.refused("carol", 4) == {TOO_MANY: 4}
    await streams.finish()


async def test_a_new_intent_does_not_renew_what_a_key_has_used_up(
    limited: StartLimited, blue: EngineDouble, secret: Mount
) -> None:
    limits = {"concurrent_per_key": 2, "requests_per_minute_per_key": 3}
    pod = await limited(**limits)
    streams = Streams(pod, blue)
    await streams.start("alice", 2)

    pod.api.put(wanted(2, secret, blue, **limits))
    await pod.ack(2)

    assert await streams.refused("alice", 1) == {TOO_MANY: 1}  # and that was the third in this minute
    assert await streams.refused("alice", 1) == {(429, BUSY, "requests_per_minute_exceeded"): 1}
    await streams.finish()


async def test_a_key_that_used_up_its_tokens_waits_from_the_next_request_on(
    limited: StartLimited, blue: EngineDouble
) -> None:
    blue.usage = {"prompt_tokens": 900, "completion_tokens": 300, "total_tokens": 1200}
    pod = await limited(KeyLimits(key_id="bob", tokens_per_minute=10**6), tokens_per_minute_per_key=1000)
    client = pod.client()

    assert (await ask(client, "alice")).status == 200

    async def waits() -> bool:
        return (await ask(client, "alice")).status == 429

    await until(waits)
    answer = await ask(client, "alice")
    assert refusal(answer) == (429, BUSY, "tokens_per_minute_exceeded")
    owed = 1200 * blue.requests - 1000
    assert 1 <= int(answer.headers["retry-after"]) <= owed * 60 / 1000 + 1
    assert (await ask(client, "carol")).status == 200
    for _ in range(3):
        assert (await ask(client, "bob", stream=True)).complete


async def test_leaving_a_stream_before_its_end_is_not_free(limited: StartLimited, blue: EngineDouble) -> None:
    pod = await limited(tokens_per_minute_per_key=10)
    streams, client = Streams(pod, blue), pod.client()
    await streams.start("alice", 1)  # a prompt of more than ten tokens

    async def waits() -> bool:
        return (await ask(client, "alice")).status == 429

    leaver, task = streams.open.pop()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    leaver.close()
    await happened(blue.left)
    streams.hold.set()
    await until(waits)


async def test_accounts_outlive_the_agent_and_what_happens_without_it_is_charged_later(
    limited: StartLimited, blue: EngineDouble
) -> None:
    blue.usage = {"prompt_tokens": 10_000, "completion_tokens": 0, "total_tokens": 10_000}
    pod = await limited(tokens_per_minute_per_key=1000)
    client = pod.client()

    async def waits(name: str) -> bool:
        return (await ask(client, name)).status == 429

    assert not await waits("alice")
    await until(lambda: waits("alice"))

    async def saved() -> bool:
        accounts = pod.xds / "accounts.json"
        return accounts.exists() and "alice" in json.loads(accounts.read_text())

    await until(saved)
    await pod.stop_agent()
    assert await waits("alice")  # the list lives in Envoy
    assert not await waits("bob")  # nobody counts ...
    pod.start_agent()
    await until(lambda: waits("bob"))  # ... but Envoy remembers
    assert await waits("alice")
