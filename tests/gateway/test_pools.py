"""Who gets which request: previews, sessions, long prompts, and what is left when a colour dies."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from moe_operator.api.intent import (
    Colour,
    Endpoint,
    Intent,
    Keys,
    Limits,
    LongContext,
    Preview,
    Queue,
    Timeouts,
)

from tests.gateway.client import Answer
from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.engine_double import EngineDouble
from tests.gateway.load import Load
from tests.gateway.pod import PATHS, Pod, colour, intent, until
from tests.gateway.secret import Mount, api_key, entry

LONG_PROMPT = "x" * 4000
STREAMS = 200  # at a time; each lasts four chunks
CHUNK_SECONDS = 0.5
WORKERS = 8
REQUESTS_PER_STEP = 50  # streams and short ones


def on_preview(engine: EngineDouble, *keys: str) -> Preview:
    endpoints = [Endpoint(address=engine.address, port=8000, pod="kimi-g-0-0")]
    return Preview(revision="g", endpoints=endpoints, allowed_key_ids=list(keys))


async def test_a_preview_is_reached_by_its_name_alone(engine: StartEngine, serving: StartPod) -> None:
    blue, green = await engine("blue"), await engine("green")
    pod = await serving(intent(1, colour("b", 100, blue.address), preview=on_preview(green, "*")))
    await pod.healthy(blue.address, green.address)
    client = pod.client()

    named = await client.chat(x_moe_revision_preview="g")
    assert (named.json["model"], named.headers["x-moe-revision"]) == ("green", "g")
    assert {(await client.chat()).json["model"] for _ in range(20)} == {"blue"}
    other = await client.chat(x_moe_revision_preview="h")
    assert (other.status, other.json["error"]["code"]) == (403, "preview_refused")

    await blue.kill()  # and nothing falls over to what has not passed its gates
    await pod.healthy(green.address)
    assert (await client.chat()).status == 503
    assert (await client.chat(x_moe_revision_preview="g")).json["model"] == "green"


async def test_a_preview_for_chosen_keys_is_closed_to_everybody_else(
    engine: StartEngine, serving: StartPod
) -> None:
    blue, green = await engine("blue"), await engine("green")
    pod = await serving(intent(1, colour("b", 100, blue.address), preview=on_preview(green, "ci")))
    await pod.healthy(blue.address, green.address)

    spoofed = await pod.client().chat(x_moe_revision_preview="g", x_moe_key_id="ci")

    assert (spoofed.status, spoofed.json["error"]["code"]) == (403, "preview_refused")
    assert green.requests == 0


async def test_a_preview_is_open_to_the_keys_that_are_named(
    engine: StartEngine, serving: StartPod, tmp_path: Path
) -> None:
    blue, green = await engine("blue"), await engine("green")
    secret = Mount(tmp_path / "keys")
    secret.write(ci=entry(api_key("ci")), alice=entry(api_key("alice")))
    told = intent(
        1,
        colour("b", 100, blue.address),
        preview=on_preview(green, "ci", "al.ce"),  # an id, no pattern
        keys=Keys(directory=str(secret.directory)),
    )
    pod = await serving(told)
    await pod.healthy(blue.address, green.address)

    async def asked(key: str, **headers: str) -> Answer:
        return await pod.client().chat(authorization=f"Bearer {api_key(key)}", **headers)

    async def asked_green(key: str, **headers: str) -> Answer:
        return await asked(key, x_moe_revision_preview="g", **headers)

    assert (await asked_green("ci")).json["model"] == "green"
    assert (await asked("ci")).json["model"] == "blue"
    served = green.requests
    for answer in (await asked_green("alice"), await asked_green("alice", x_moe_key_id="ci")):
        assert (answer.status, answer.json["error"]["code"]) == (403, "preview_refused")
    assert (await asked_green("nobody")).status == 401
    assert (await asked("alice")).json["model"] == "blue"
    assert green.requests == served


async def test_a_session_stays_with_its_engine(engine: StartEngine, serving: StartPod) -> None:
    one, two = await engine("one"), await engine("two")
    told = intent(1, colour("b", 100, one.address, two.address), affinity_header="x-session-id")
    pod = await serving(told)
    await pod.healthy(one.address, two.address)
    client = pod.client()

    async def engine_of(session: int) -> str:
        return str((await client.chat(x_session_id=f"s{session}")).json["model"])

    first = [await engine_of(session) for session in range(30)]
    assert set(first) == {"one", "two"}
    assert [await engine_of(session) for session in range(30)] == first

    await one.kill()
    await pod.healthy(two.address)
    assert {await engine_of(session) for session in range(30)} == {"two"}


async def test_long_prompts_fill_their_own_pool_and_no_other(engine: StartEngine, serving: StartPod) -> None:
    blue = await engine("blue")
    blue.hold = asyncio.Event()
    lane = LongContext(threshold_tokens=500, max_concurrent=2)
    pod = await serving(intent(1, colour("b", 100, blue.address), long_context=lane))
    await pod.healthy(blue.address)
    held = [asyncio.create_task(pod.client().chat(LONG_PROMPT, stream=True)) for _ in range(2)]

    async def both_run() -> bool:
        return blue.active == 2

    await until(both_run)
    assert [host.active_requests for host in (await pod.ack()).hosts] == [2]  # whatever the pool
    third = await pod.client().chat(LONG_PROMPT)
    assert (third.status, third.json["error"]["code"]) == (429, "too_many_requests")
    assert third.headers["retry-after"]
    assert (await pod.client().chat("short")).status == 200

    blue.hold.set()
    assert all(answer.complete for answer in await asyncio.gather(*held))
    assert (await pod.client().chat(LONG_PROMPT)).status == 200


async def test_what_asks_for_too_much_is_refused_before_an_engine_sees_it(
    engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    limits = Limits(max_output_tokens=100, max_choices=2, max_context_tokens=2000)
    pod = await serving(intent(1, colour("b", 100, blue.address), limits=limits))
    await pod.healthy(blue.address)
    client, path = pod.client(), "/v1/chat/completions"

    for body, code in (
        (b'{"max_tokens": 101}', "max_output_tokens_exceeded"),
        (b'{"n": 3}', "max_choices_exceeded"),
        (b'{"prompt": "%s"}' % (b"x" * 9000), "context_length_exceeded"),
        (b"[]", "invalid_body"),
    ):
        answer = await client.send(path, body)
        assert (answer.status, answer.json["error"]["code"]) == (400, code)
        assert answer.json["error"]["type"] == "invalid_request_error"
    assert blue.requests == 0
    assert (await client.send(path, b'{"max_tokens": 100, "n": 2}')).status == 200
    assert (await client.send(path, b'{"a": 1}')).status == 200
    assert "content-length: 36" in blue.heads[-1]  # {"a": 1,"max_completion_tokens":100}


async def test_a_dead_colour_costs_no_more_than_what_was_on_its_way(
    engine: StartEngine, serving: StartPod
) -> None:
    """What was sent to a dead engine is not sent again; five clients can have five such requests."""
    blues = [await engine(f"blue{n}") for n in range(3)]
    greens = [await engine(f"green{n}") for n in range(2)]
    told = intent(
        1,
        colour("b", 100, *(blue.address for blue in blues)),
        colour("g", 0, *(green.address for green in greens)),
        queue=Queue(),
    )
    pod = await serving(told)
    await pod.healthy(*(double.address for double in (*blues, *greens)))
    load = Load(pod)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(load.requests())
        await load.sent_at_least(200)
        await asyncio.gather(*(blue.kill() for blue in blues))
        await load.sent_at_least(load.sent + 500)
        load.stop = True

    assert len(load.failures) <= 5, load.failures
    assert sum(green.requests for green in greens) >= 450


async def test_no_change_of_an_intent_touches_the_listener(engine: StartEngine, serving: StartPod) -> None:
    blue, green = await engine("blue"), await engine("green")
    blue.hold = asyncio.Event()
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)
    stream = asyncio.create_task(pod.client().chat(stream=True))

    async def stream_runs() -> bool:
        return blue.active == 1

    await until(stream_runs)
    both = (colour("b", 50, blue.address), colour("g", 50, green.address))
    changes: list[Intent] = [
        intent(2, *both),
        intent(3, *both, limits=Limits(max_request_bytes=5000, max_header_bytes=5000)),
        intent(4, *both, limits=Limits(max_output_tokens=10, max_choices=1, max_context_tokens=99)),
        intent(5, *both, limits=Limits(requests_per_minute_per_key=9, concurrent_per_key=9)),
        intent(6, *both, queue=Queue(max_waiting=7, hold_seconds=7)),
        intent(7, *both, long_context=LongContext(threshold_tokens=9, max_concurrent=9)),
        intent(8, *both, affinity_header="x-session-id"),
        intent(9, *both, preview=on_preview(green, "*")),
        intent(10, *both, allowed_sources=["127.0.0.0/8"]),
        intent(11, *both, allowed_paths=PATHS[:2]),
        intent(12, *both, timeouts=Timeouts(first_byte_seconds=99, idle_seconds=9)),
        intent(13, *both, audit=False, retry_after_seconds=3, drain_seconds=7),
        intent(14, Colour(revision="g", weight=100, endpoints=both[1].endpoints)),
    ]

    for change in changes:
        pod.api.put(change)
        ack = await pod.ack(change.generation)
        assert (ack.generation, ack.rejected) == (change.generation, "")

    assert await listener_counts(pod) == {"added": 1, "modified": 0, "removed": 0, "draining": 0}
    assert not stream.done()
    blue.hold.set()
    assert (await stream).complete


async def listener_counts(pod: Pod) -> dict[str, int]:
    text = (await pod.client(9901).get("/stats?filter=listener_manager")).body.decode()
    names = r"(?:listener_(added|modified|removed)|total_listeners_(draining)): (\d+)"
    return {counted or draining: int(number) for counted, draining, number in re.findall(names, text)}


async def test_ten_rollouts_under_load_fail_nothing(engine: StartEngine, serving: StartPod) -> None:
    async def revision(number: int) -> list[EngineDouble]:
        doubles = [await engine(f"r{number}-a"), await engine(f"r{number}-b")]
        for double in doubles:
            double.chunk_seconds = CHUNK_SECONDS
        return doubles

    old = await revision(0)
    pod = await serving(intent(1, colour("r0", 100, *(double.address for double in old)), queue=Queue()))
    await pod.healthy(*(double.address for double in old))
    load, generation = Load(pod), 1

    async def put(*colours: Colour) -> None:
        nonlocal generation
        generation += 1
        pod.api.put(intent(generation, *colours, queue=Queue()))
        assert (await pod.ack(generation)).generation == generation

    async with asyncio.TaskGroup() as tasks:
        for _ in range(STREAMS):
            tasks.create_task(load.streams())
        for _ in range(WORKERS):
            tasks.create_task(load.requests())
        for number in range(1, 11):
            new = await revision(number)
            before, after = [d.address for d in old], [d.address for d in new]
            blue, green = f"r{number - 1}", f"r{number}"
            await put(colour(blue, 100, *before), colour(green, 0, *after))
            await pod.healthy(*before, *after)
            for share in (1, 10, 50, 100):
                await put(colour(blue, 100 - share, *before), colour(green, share, *after))
                await load.sent_at_least(load.sent + REQUESTS_PER_STEP)

            async def nothing_runs(addresses: list[str] = before) -> bool:
                hosts = (await pod.ack()).hosts
                return not any(host.active_requests for host in hosts if host.address in addresses)

            await until(nothing_runs)
            await put(colour(green, 100, *after))
            for double in old:
                await double.kill()
            old = new
        load.stop = True

    assert load.failures == []
    assert load.sent >= 10 * 4 * REQUESTS_PER_STEP
    assert load.streamed >= STREAMS
    assert (await listener_counts(pod))["modified"] == 0
