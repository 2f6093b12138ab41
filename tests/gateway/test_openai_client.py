"""The official ``openai`` client, unchanged, against the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from moe_operator.api.intent import Limits

from tests.gateway.chat_double import MODEL, WORDS, ChatDouble
from tests.gateway.conftest import StartPod
from tests.gateway.pod import Pod, colour, intent, loopback

ASK: Any = [{"role": "user", "content": "count"}]
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
TEXT = "".join(WORDS)


@pytest.fixture
async def chat() -> AsyncIterator[ChatDouble]:
    double = await ChatDouble(loopback()).start()
    yield double
    await double.stop()


@pytest.fixture
async def gateway(chat: ChatDouble, serving: StartPod) -> Pod:
    limits = Limits(max_output_tokens=1000, max_request_bytes=10_000)
    pod = await serving(intent(1, colour("b", 100, chat.address), limits=limits))
    await pod.healthy(chat.address)
    return pod


def url(pod: Pod) -> str:
    return f"http://{pod.address}:8080/v1"


@pytest.fixture
async def client(gateway: Pod) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url(gateway), api_key="sk-any") as made:
        yield made


async def test_asynchronous(client: openai.AsyncOpenAI, chat: ChatDouble) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=ASK, temperature=0)
    assert answer.choices[0].message.content == TEXT
    assert answer.usage is not None and answer.usage.total_tokens == 8
    assert answer._request_id
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert chat.asked == [
        {
            "messages": ASK,
            "model": MODEL,
            "temperature": 0,
            "max_completion_tokens": 1000,
        }  # the gateway's limit
    ]


async def test_streaming(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 3


async def test_tools(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS)
    (call,) = answer.choices[0].message.tool_calls or []
    assert (call.type, call.function.name if call.type == "function" else "") == ("function", "add")


async def test_synchronous(gateway: Pod) -> None:
    def ask() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=url(gateway), api_key="sk-any") as client:
            whole = client.chat.completions.create(model=MODEL, messages=ASK)
            parts = client.chat.completions.create(model=MODEL, messages=ASK, stream=True)
            return whole.choices[0].message.content, "".join(
                chunk.choices[0].delta.content or "" for chunk in parts if chunk.choices
            )

    assert await asyncio.to_thread(ask) == (TEXT, TEXT)


async def test_errors_become_the_clients_own(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist") as engines:
        await client.chat.completions.create(model="other", messages=ASK)
    assert engines.value.param == "model"

    with pytest.raises(openai.BadRequestError, match="allows 1000") as ours:
        await client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1001)
    assert (ours.value.code, ours.value.type) == ("max_output_tokens_exceeded", "invalid_request_error")
    assert ours.value.request_id

    with pytest.raises(openai.NotFoundError) as closed:
        await client.embeddings.create(model=MODEL, input="x")
    assert closed.value.code == "path_not_allowed"

    with pytest.raises(openai.APIStatusError) as large:
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x" * 20_000}]
        )
    assert (large.value.status_code, large.value.code) == (413, "request_too_large")


async def test_its_retries_outlast_a_short_outage(
    gateway: Pod, client: openai.AsyncOpenAI, chat: ChatDouble
) -> None:
    await chat.stop()
    gateway.api.put(intent(2, colour("b", 100, chat.address), retry_after_seconds=1))
    await gateway.ack(2)
    await gateway.healthy()
    patient = client.with_options(max_retries=30)
    asking = asyncio.create_task(patient.chat.completions.create(model=MODEL, messages=ASK))
    with pytest.raises(openai.InternalServerError) as refused:
        await client.with_options(max_retries=0).chat.completions.create(model=MODEL, messages=ASK)
    assert (refused.value.status_code, refused.value.code) == (503, "no_engine_available")
    assert refused.value.response.headers["retry-after"] == "1"

    await chat.start()

    assert (await asking).choices[0].message.content == TEXT
