"""What is told about requests: the line on standard output, and the numbers of the agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from moe_operator.api.intent import Intent, Keys, Limits
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.engine_double import EngineDouble
from tests.gateway.pod import Pod, colour, intent, until
from tests.gateway.secret import Mount, api_key, entry

ALICE = api_key("alice")
PROMPT = "what the client asks is nobody's business"


@pytest.fixture
def secret(tmp_path: Path) -> Mount:
    mount = Mount(tmp_path / "keys")
    mount.write(alice=entry(ALICE))
    return mount


@pytest.fixture
async def blue(engine: StartEngine) -> EngineDouble:
    double = await engine("blue")
    double.usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    return double


def keyed(generation: int, secret: Mount, blue: EngineDouble, **changes: Any) -> Intent:
    keys = Keys(directory=str(secret.directory))
    return intent(generation, colour("b", 100, blue.address), keys=keys, **changes)


async def lines(pod: Pod, count: int) -> list[dict[str, Any]]:
    """The log once it has so many lines."""

    async def there() -> bool:
        return len(pod.access_log()) >= count

    await until(there)
    return pod.access_log()


async def test_a_line_says_who_asked_for_what_and_what_it_took(
    serving: StartPod, blue: EngineDouble, secret: Mount
) -> None:
    pod = await serving(keyed(1, secret, blue))
    await pod.healthy(blue.address)
    client = pod.client()
    hello = {"authorization": f"Bearer {ALICE}"}

    answer = await client.chat(PROMPT, **hello)
    assert (await client.chat(PROMPT, stream=True, **hello)).complete
    await client.chat(PROMPT, authorization="Bearer sk-wrong-key")
    await client.get("/metrics?token=sk-secret", **hello)

    whole, streamed, refused, elsewhere = await lines(pod, 4)
    for line in (whole, streamed):
        assert (line["key_id"], line["model"], line["revision"]) == ("alice", "kimi", "b")
        assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat/completions", 200)
        assert (line["prompt_tokens"], line["completion_tokens"]) == (11, 7)
        assert 0 <= line["queue_ms"] <= line["ttft_ms"] <= line["duration_ms"]
        assert line["refused"] is None
    assert whole["request_id"] == answer.headers["x-request-id"]
    assert (refused["status"], refused["key_id"], refused["refused"]) == (401, None, "invalid_api_key")
    assert (elsewhere["status"], elsewhere["key_id"], elsewhere["path"]) == (404, "alice", "/metrics")


async def test_no_prompt_and_no_key_is_in_any_log_or_file(
    serving: StartPod, blue: EngineDouble, secret: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    pod = await serving(keyed(1, secret, blue, limits=Limits(concurrent_per_key=5)))
    await pod.healthy(blue.address)
    client = pod.client()
    await client.chat(PROMPT, authorization=f"Bearer {ALICE}")
    await client.chat(PROMPT, authorization="Bearer sk-wrong-key")
    await client.chat(PROMPT, x_api_key=ALICE, stream=True)
    await lines(pod, 3)

    written = {path: path.read_text() for path in pod.directory.rglob("*") if path.is_file()}
    written[Path("agent's log")] = caplog.text + str([record.__dict__ for record in caplog.records])
    written[Path("metrics")] = (await pod.client(9902).get("/metrics")).body.decode()
    written[Path("config dump")] = (await pod.client(9901).get("/config_dump")).body.decode()
    assert len(written) > 10
    for what in (PROMPT, ALICE, "sk-wrong-key"):
        assert [str(path) for path, text in written.items() if what in text] == []


async def test_the_log_can_be_switched_off_and_the_numbers_stay(
    serving: StartPod, blue: EngineDouble, secret: Mount
) -> None:
    pod = await serving(keyed(1, secret, blue, audit=False))
    await pod.healthy(blue.address)
    client, hello = pod.client(), {"authorization": f"Bearer {ALICE}"}
    await client.chat(**hello)

    pod.api.put(keyed(2, secret, blue))
    await pod.ack(2)
    await client.chat(**hello)

    assert len(await lines(pod, 1)) == 1
    await until(lambda: shows(pod, "moe_gateway_client_requests_total", 2, key="alice", code="2xx"))


async def numbers(pod: Pod) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = (await pod.client(9902).get("/metrics")).body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def shows(pod: Pod, name: str, value: float, **labels: str) -> bool:
    """Whether the one series that has these labels, and maybe others, has this value."""
    found = [
        each
        for (series, having), each in (await numbers(pod)).items()
        if series == name and labels.items() <= dict(having).items()
    ]
    return found == [value]


async def test_numbers_by_colour_and_key(
    serving: StartPod, blue: EngineDouble, secret: Mount, engine: StartEngine
) -> None:
    pod = await serving(keyed(1, secret, blue))
    await pod.healthy(blue.address)
    client, hello = pod.client(), {"authorization": f"Bearer {ALICE}"}
    for stream in (False, True, True):
        assert (await client.chat(stream=stream, **hello)).status == 200
    await client.chat()

    mine = {"revision": "b", "key": "alice"}
    await until(lambda: shows(pod, "moe_gateway_client_requests_total", 3, **mine, code="2xx"))
    await until(lambda: shows(pod, "moe_gateway_rejected_total", 1, reason="missing_api_key", key=""))
    seen = await numbers(pod)
    labels = frozenset(mine.items())
    assert seen["moe_gateway_time_to_first_token_seconds_count", labels] == 3
    assert seen["moe_gateway_request_duration_seconds_count", labels] == 3
    assert seen["moe_gateway_client_failures_total", labels] == 0
    assert seen["moe_gateway_tokens_total", labels | {("kind", "prompt")}] == 33
    assert seen["moe_gateway_tokens_total", labels | {("kind", "completion")}] == 21
    assert seen["moe_gateway_keys", frozenset()] == 1
    assert seen["moe_gateway_held", frozenset()] == 0
    assert seen["moe_gateway_records_unread_total", frozenset()] == 0


async def test_running_and_broken_streams_are_seen(
    serving: StartPod, blue: EngineDouble, secret: Mount
) -> None:
    pod = await serving(keyed(1, secret, blue))
    await pod.healthy(blue.address)
    blue.hold = asyncio.Event()
    mine = {"revision": "b", "key": "alice"}
    streams = [
        asyncio.create_task(pod.client().chat(stream=True, authorization=f"Bearer {ALICE}")) for _ in range(3)
    ]
    await until(lambda: shows(pod, "moe_gateway_in_flight", 3, **mine))

    await blue.kill()

    broken = await asyncio.gather(*streams, return_exceptions=True)
    assert all(isinstance(each, Exception) for each in broken)
    await until(lambda: shows(pod, "moe_gateway_client_failures_total", 3, **mine))
    await until(lambda: shows(pod, "moe_gateway_in_flight", 0, **mine))


async def test_envoy_never_waits_for_the_agent_and_nothing_is_lost_meanwhile(
    serving: StartPod, blue: EngineDouble, secret: Mount
) -> None:
    pod = await serving(keyed(1, secret, blue))
    await pod.healthy(blue.address)
    client, hello = pod.client(), {"authorization": f"Bearer {ALICE}"}
    await pod.stop_agent()

    for _ in range(50):
        assert (await client.chat(**hello)).status == 200

    pod.start_agent()
    await until(pod.agent_listens)
    await until(lambda: shows(pod, "moe_gateway_client_requests_total", 50, key="alice", code="2xx"))
    lost = "envoy_access_logs_fluentd_agent_entries_lost_total"
    assert (await numbers(pod))[lost, frozenset()] == 0


async def test_trace_context_travels_on_unchanged(serving: StartPod, blue: EngineDouble) -> None:
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    await pod.client().chat(traceparent=trace, tracestate="vendor=1")

    assert f"traceparent: {trace}" in blue.heads[-1]
    assert "tracestate: vendor=1" in blue.heads[-1]
    assert (await lines(pod, 1))[-1]["traceparent"] == trace


async def test_spans_leave_by_otlp_where_an_address_is_given(pod: Pod, blue: EngineDouble) -> None:
    """The collector is a socket that speaks just enough HTTP/2: settings, and nothing more."""
    received = bytearray()

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("000000040000000000"))
        while data := await reader.read(65536):
            received.extend(data)
        writer.close()

    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with await asyncio.start_server(collect, pod.address, 4317) as collector:
        first = intent(1, colour("b", 100, blue.address), otlp_endpoint=f"{pod.address}:4317")
        pod.prepare(first)
        pod.api.put(first)
        await pod.start()
        await pod.healthy(blue.address)
        await pod.client().chat(traceparent=f"00-{trace_id}-{parent}-01")

        async def exported() -> bool:
            return bytes.fromhex(trace_id) in received

        await until(exported)
        collector.close()
        await pod.stop()
    assert bytes.fromhex(parent) in received  # the client's span is the parent of ours
    assert f"traceparent: 00-{trace_id}-" in blue.heads[-1]
    assert parent not in blue.heads[-1]  # and ours is the parent of the engine's
