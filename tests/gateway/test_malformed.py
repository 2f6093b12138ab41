"""The corpus of malformed requests against the real Envoy: right status, no bypass, no crash."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter

from moe_operator.api.intent import Limits, Queue, Timeouts
from moe_operator.gateway.request_headers import ENVOYS, OURS

from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.malformed import Malformed, corpus
from tests.gateway.pod import PATHS, Pod, colour, intent

AT_ONCE = 16
DEADLINE = 60.0
SILENT = 0  # in place of a status: neither an answer nor an end
ALLOWED = re.compile(rf"(get|head|post|options) ({'|'.join(map(re.escape, PATHS))})(\?\S*)? http/1\.1\r\n")


async def ask(pod: Pod, data: bytes) -> list[tuple[int, bytes]]:
    """Every answer on one connection: (status, the rest of it)."""
    reader, writer = await asyncio.open_connection(pod.address, 8080)
    writer.write(data)
    try:
        async with asyncio.timeout(DEADLINE):
            received = await _everything(reader)
    except TimeoutError:
        return [(SILENT, b"")]
    finally:
        writer.close()
    found = re.split(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*\r\n", received)
    return [(int(status), rest) for status, rest in zip(found[1::2], found[2::2], strict=True)]


async def _everything(reader: asyncio.StreamReader) -> bytes:
    """Until the gateway closes, or has answered and waits for more."""
    received = b""
    while True:
        try:
            async with asyncio.timeout(1.0 if received else None):
                chunk = await reader.read(1 << 16)
        except TimeoutError:
            return received
        except ConnectionError:
            return received
        if not chunk:
            return received
        received += chunk


def flaw(case: Malformed, answers: list[tuple[int, bytes]]) -> str:
    """What is wrong with the first answer; empty when nothing is."""
    status = answers[0][0] if answers else None
    if status not in case.statuses:
        return f"{status}, not one of {case.statuses}"
    if status is None or status < 400 or b"content-type: application/json" not in answers[0][1]:
        return "" if status is None or status < 400 else f"{status} is not JSON: {answers[0][1]!r}"
    error = json.loads(answers[0][1].partition(b"\r\n\r\n")[2])["error"]
    return "" if error.keys() == {"message", "type", "param", "code"} else f"odd shape {error}"


async def test_the_corpus(engine: StartEngine, serving: StartPod) -> None:
    cases = corpus()
    assert len(cases) >= 200
    blue = await engine("blue")
    told = intent(
        1,
        colour("b", 100, blue.address),
        limits=Limits(max_request_bytes=64 << 10, max_header_bytes=64 << 10),
        queue=Queue(max_waiting=0, hold_seconds=0),
        timeouts=Timeouts(first_byte_seconds=2, idle_seconds=2),
    )
    pod = await serving(told)
    await pod.healthy(blue.address)
    envoy, gate = pod.processes["envoy"], asyncio.Semaphore(AT_ONCE)
    seen: Counter[int | None] = Counter()

    async def one(case: Malformed) -> str:
        async with gate:
            answers = await ask(pod, case.data)
        seen[answers[0][0] if answers else None] += 1
        wrong = flaw(case, answers)
        return f"{case.name}: {wrong}" if wrong else ""

    flaws = [found for found in await asyncio.gather(*map(one, cases)) if found]

    assert not flaws, "\n".join(flaws)
    assert [head for head in blue.heads if not ALLOWED.match(head)] == []
    assert envoy.returncode is None
    assert (await pod.client().get("/v1/models")).status == 200
    assert {400, 404, 405, 408, 413, 431} <= seen.keys()


async def test_a_refusal_names_its_request_and_says_why(engine: StartEngine, serving: StartPod) -> None:
    blue = await engine("blue")
    limits = Limits(max_request_bytes=1024, max_header_bytes=4096)
    pod = await serving(intent(1, colour("b", 100, blue.address), limits=limits))
    await pod.healthy(blue.address)
    client = pod.client()

    nowhere = await client.get("/metrics", x_request_id="mine")
    assert (nowhere.status, nowhere.json["error"]["code"]) == (404, "path_not_allowed")
    assert nowhere.headers["x-request-id"] == "mine"
    assert nowhere.headers["content-type"] == "application/json"
    for answer, status, code in (
        (await client.delete("/v1/models"), 405, "method_not_allowed"),
        (await client.send("/v1/chat/completions", b"x" * 2000), 413, "request_too_large"),
        (await client.get("/v1/models", x_moe_revision_preview="g"), 403, "preview_refused"),
        (await client.get("/v1/models", x_long="a" * 5000), 431, "headers_too_large"),
    ):
        assert (answer.status, answer.json["error"]["code"]) == (status, code)
        assert len(answer.headers["x-request-id"]) == 36
    assert blue.requests == 0


async def test_a_client_cannot_speak_as_the_gateway_or_to_envoy(
    engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)
    spoofed = (*OURS, *ENVOYS)

    await pod.client().get("/v1/models", **{name.replace("-", "_"): "7" for name in spoofed})

    (head,) = blue.heads
    assert [name for name in spoofed if f"\r\n{name}: 7" in head] == []


async def test_only_networks_that_are_allowed_get_an_answer(engine: StartEngine, serving: StartPod) -> None:
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address), allowed_sources=["10.0.0.0/8", "fd00::/8"]))
    await pod.healthy(blue.address)

    spoofed = await pod.client().get("/v1/models", x_forwarded_for="10.1.1.1")
    assert (spoofed.status, spoofed.json["error"]["code"]) == (403, "source_not_allowed")
    assert (await pod.client().get("/-/ready")).status == 200  # the kubelet is no client

    allowed = ["10.0.0.0/8", "127.0.0.0/8"]
    pod.api.put(intent(2, colour("b", 100, blue.address), allowed_sources=allowed))
    await pod.ack(2)
    assert (await pod.client().get("/v1/models")).status == 200
