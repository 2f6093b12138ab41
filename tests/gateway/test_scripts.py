"""The proxy's Lua scripts, run by the same LuaJIT outside of Envoy."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lupa import luajit21 as lua
from moe_operator.gateway.key_filter import SHA256, closed, key_filter
from moe_operator.gateway.keys import keyring
from moe_operator.gateway.usage_filter import usage_filter

RUNTIME = lua.LuaRuntime(encoding=None)
RUNTIME.execute(SHA256)
DIGEST = RUNTIME.globals()[b"sha256"]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_sha256(text: bytes) -> None:
    assert DIGEST(text).decode() == sha256(text).hexdigest()


@pytest.mark.parametrize("length", [0, 55, 56, 63, 64, 65, 119, 120, 1000])
def test_sha256_at_the_edges_of_its_blocks(length: int) -> None:
    assert DIGEST(b"x" * length).decode() == sha256(b"x" * length).hexdigest()


class Chunk:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def length(self) -> int:
        return len(self.data)

    def getBytes(self, start: int, size: int) -> bytes:
        return self.data[start : start + size]


class Handle:
    """As much of Envoy's stream handle as our scripts use."""

    def __init__(self, headers: dict[str, str], body: list[bytes] | None = None) -> None:
        self.sent = {name.encode(): value.encode() for name, value in headers.items()}
        self.body = body or []
        self.metadata: dict[tuple[str, str], Any] = {}
        self.answer: tuple[int, bytes] | None = None
        self.routed = False

    @property
    def seen(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent.items()}

    def headers(self) -> Any:
        return self

    def get(self, name: bytes) -> bytes | None:
        return self.sent.get(name)

    def replace(self, name: bytes, value: bytes) -> None:
        self.sent[name] = value

    def remove(self, name: bytes) -> None:
        self.sent.pop(name, None)

    def streamInfo(self) -> Any:
        return self

    def dynamicMetadata(self) -> Any:
        return self

    def set(self, space: bytes, key: bytes, value: Any) -> None:
        self.metadata[space.decode(), key.decode()] = value.decode() if isinstance(value, bytes) else value

    def respond(self, headers: Any, body: bytes) -> None:
        self.answer = int(headers[b":status"]), body

    def clearRouteCache(self) -> None:
        self.routed = True

    def bodyChunks(self) -> Any:
        chunks: Iterator[Chunk] = iter([Chunk(data) for data in self.body])
        return lambda *_: next(chunks, None)


def run(filter_config: dict[str, Any], function: str, handle: Handle) -> Handle:
    runtime = lua.LuaRuntime(encoding=None)
    runtime.execute(b"adapt = function(object) return setmetatable({}, {__index = function(_, name)"
                    b" return function(_, ...) local r = object[name](...)"
                    b" if name == 'headers' or name == 'streamInfo' or name == 'dynamicMetadata' then"
                    b" return adapt(object) end"
                    b" if name == 'bodyChunks' then return function() local c = r()"
                    b" return c and adapt(c) end end"
                    b" return r end end}) end")  # fmt: skip
    runtime.execute(filter_config["default_source_code"]["inline_string"])
    names = runtime.globals()
    names[function.encode()](names[b"adapt"](handle))
    return handle


KEYS = keyring(
    {
        **{f"team-{n}": sha256(f"sk-{n}".encode()).hexdigest() for n in range(99)},
        "old": sha256(b"sk-old").hexdigest() + ",expires=2020-01-01T00:00:00Z",
        "young": sha256(b"sk-young").hexdigest() + ",expires=2199-01-01T00:00:00Z",
    }
)
FILTER = key_filter(KEYS, {f"team-{n}": n for n in range(99)})


@pytest.mark.parametrize("number", range(99))
def test_every_key_is_found(number: int) -> None:
    handle = run(FILTER, "envoy_on_request", Handle({"authorization": f"Bearer sk-{number}"}))
    assert handle.answer is None
    assert handle.seen == {"x-moe-key-id": f"team-{number}", "x-moe-slot": str(number)}
    assert handle.metadata == {("moe.client", "key"): f"team-{number}"}
    assert handle.routed


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, b"missing_api_key"),
        ({"authorization": ""}, b"missing_api_key"),
        ({"authorization": "Basic sk-1"}, b"missing_api_key"),
        ({"authorization": "Bearer"}, b"missing_api_key"),
        ({"authorization": "Bearer sk-1 sk-2"}, b"missing_api_key"),
        ({"authorization": "Bearer nobody"}, b"invalid_api_key"),
        ({"authorization": "Bearer " + "x" * 100_000}, b"invalid_api_key"),
        ({"authorization": f"Bearer {sha256(b'sk-1').hexdigest()}"}, b"invalid_api_key"),
        ({"x-api-key": "nobody", "x-moe-key-id": "team-1"}, b"invalid_api_key"),
        ({"authorization": "Bearer sk-old"}, b"expired_api_key"),
    ],
)
def test_everybody_else_is_refused(headers: dict[str, str], code: bytes) -> None:
    handle = run(FILTER, "envoy_on_request", Handle(headers))
    assert handle.answer is not None
    assert handle.answer[0] == 401
    assert b'"code": "' + code + b'"' in handle.answer[1]
    assert handle.metadata == {("moe.client", "refused"): code.decode()}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "bearer  sk-young"},
        {"x-api-key": "sk-young"},
    ],
)
def test_other_spellings(headers: dict[str, str]) -> None:
    handle = run(FILTER, "envoy_on_request", Handle(headers))
    assert handle.answer is None
    assert handle.seen["x-moe-key-id"] == "young"


def test_the_key_travels_on_only_where_it_is_asked_for() -> None:
    forwarding = key_filter(KEYS, None, forward=True)
    handle = run(forwarding, "envoy_on_request", Handle({"authorization": "Bearer sk-1"}))
    assert handle.seen == {"authorization": "Bearer sk-1", "x-moe-key-id": "team-1"}


def test_who_comes_before_keys_are_known_is_told_to_come_back() -> None:
    handle = run(closed(), "envoy_on_request", Handle({"authorization": "Bearer sk-1"}))
    assert handle.answer is not None
    assert handle.answer[0] == 503
    assert b'"code": "no_engine_available"' in handle.answer[1]


def test_an_empty_secret_opens_nothing() -> None:
    handle = run(key_filter(keyring({}), None), "envoy_on_request", Handle({"authorization": "Bearer sk-1"}))
    assert handle.answer is not None
    assert handle.answer[0] == 401


LAST = b'data: {"choices":[],"usage":{"prompt_tokens":11,"total_tokens":31,"completion_tokens":20,' \
       b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'  # fmt: skip
TOKEN = b'data: {"choices":[{"delta":{"content":"\\"usage\\":{\\"prompt_tokens\\":666}"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
SSE, JSON = {"content-type": "text/event-stream; charset=utf-8"}, {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "body", "told"),
    [
        (SSE, [TOKEN, TOKEN + LAST, DONE], {"prompt": 11, "completion": 20, "cached": 4}),
        (SSE, [LAST[:50], LAST[50:60], LAST[60:] + DONE], {"prompt": 11, "completion": 20, "cached": 4}),
        (SSE, [TOKEN] * 20 + [DONE], {"events": 20}),
        (SSE, [TOKEN * 3], {"events": 3}),
        (SSE, [], {}),
        (JSON, [b'{"usage":{"prompt_tokens": 7, "completion_tokens": 2}}'], {"prompt": 7, "completion": 2}),
        (JSON, [b"{" + b" " * 50_000, b'"usage": {"input_tokens": 7, "output_tokens": 2}}'],
         {"prompt": 7, "completion": 2}),
        (JSON, [b'{"choices":[{"text":"\\"usage\\":{\\"prompt_tokens\\":666}"}],"usage":null}'], {}),
        (JSON, [b'{"usage":{"prompt_tokens":5,"total_tokens":5}}'], {"prompt": 5}),
        ({"content-type": "text/plain"}, [b'{"usage":{"prompt_tokens":5}}'], {}),
        ({}, [b'{"usage":{"prompt_tokens":5}}'], {}),
    ],
)  # fmt: skip
def test_usage_is_read_from_the_end_of_an_answer(
    headers: dict[str, str], body: list[bytes], told: dict[str, int]
) -> None:
    handle = run(usage_filter()["typed_config"], "envoy_on_response", Handle(headers, body))
    assert {key: value for (_, key), value in handle.metadata.items() if key != "events"} == {
        key: value for key, value in told.items() if key != "events"
    }
    if "events" in told:
        assert handle.metadata["moe.usage", "events"] == told["events"]
