"""The proxy's limits on one request: the script alone, in the LuaJIT that Envoy embeds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lupa import luajit21 as lua
from moe_operator.api.intent import Intent, Limits, LongContext
from moe_operator.gateway.request_limits import LUA, SCRIPT, metadata

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
RUNTIME = lua.LuaRuntime(encoding=None)
RUNTIME.execute(SCRIPT)
JUDGE = RUNTIME.globals()[b"envoy_on_request"]
WITH_METHOD = RUNTIME.eval("function(t, replace) return setmetatable(t, {__index = {replace = replace}}) end")


def header_table(sent: dict[bytes, bytes], replace: Any) -> Any:
    return WITH_METHOD(RUNTIME.table_from(sent), replace)


class Body:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def length(self) -> int:
        return len(self.data)

    def getBytes(self, start: int, size: int) -> bytes:
        return self.data[start : start + size]

    def setBytes(self, data: bytes) -> int:
        self.data = data
        return len(data)


class Handle:
    """As much of Envoy's stream handle as the script uses."""

    def __init__(self, body: bytes | None, numbers: dict[str, Any]) -> None:
        self.content = Body(body) if body is not None else None
        self.numbers = numbers
        self.replaced: dict[str, str] = {}
        self.rerouted = False
        self.status, self.answer = 0, b""
        self.sent = header_table({b":path": b"/v1/chat/completions", b"x-a": b"1"}, self._replace)

    def _replace(self, _: Any, name: bytes, value: bytes) -> None:
        self.replaced[name.decode()] = value.decode()

    def headers(self) -> Any:
        return self.sent

    def metadata(self) -> Any:
        values = {k.encode(): v.encode() if isinstance(v, str) else v for k, v in self.numbers.items()}
        self.lent = RUNTIME.table_from(values)
        return self.lent

    def body(self) -> Any:
        for name in list(self.lent):
            self.lent[name] = None  # Envoy's objects do not outlive a wait
        return self.content

    def respond(self, headers: Any, body: bytes) -> None:
        self.status, self.answer = int(headers[b":status"]), body

    def clearRouteCache(self) -> None:
        self.rerouted = True

    @property
    def code(self) -> str:
        return str(json.loads(self.answer)["error"]["code"]) if self.answer else ""


def judge(body: bytes | None, path: str = CHAT, lane: LongContext | None = None, **limits: int) -> Handle:
    told = Intent(generation=1, model="kimi", limits=Limits(**limits), long_context=lane)
    handle = Handle(body, metadata(told, path).get(LUA, {}))
    JUDGE(handle)
    return handle


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (body(max_tokens=100), ""),
        (body(max_tokens=101), "max_output_tokens_exceeded"),
        (body(max_completion_tokens=1e9), "max_output_tokens_exceeded"),
        (body(max_output_tokens=101), "max_output_tokens_exceeded"),
        (body(min_tokens=101), "max_output_tokens_exceeded"),
        (body(max_tokens="101"), "max_output_tokens_exceeded"),  # Pydantic reads it as a number
        (body(max_tokens="1_0_1"), "max_output_tokens_exceeded"),
        (body(max_tokens="much"), "invalid_body"),
        (body(max_tokens=[1]), "invalid_body"),
        (body(max_tokens=None, n=2), ""),
        (body(n=3), "max_choices_exceeded"),
        (body(best_of=3), "max_choices_exceeded"),
        (body(messages=[{"n": 99, "max_tokens": 9999}], tools={"max_tokens": 9999}), ""),
        (body(messages='{"max_tokens": 9999}'), ""),
        (b'{"max_tokens": 1, "max_tokens": 101}', "max_output_tokens_exceeded"),  # the last one counts
        (b'{"max_tokens": 101, "max_tokens": 1}', "max_output_tokens_exceeded"),
        (b'{"max\\u005ftokens": 101}', "invalid_body"),
        (b'{"a": "\\"", "max_tokens": 101}', "max_output_tokens_exceeded"),
        (b'{"a": "\\\\", "max_tokens": 101}', "max_output_tokens_exceeded"),
        (b'{"a": {"b": "}"}, "max_tokens": 101}', "max_output_tokens_exceeded"),
        (b' \r\n\t{ "max_tokens"\n:\t101 }', "max_output_tokens_exceeded"),
        (b"{}", ""),
        (b" { } ", ""),
        (b"", "invalid_body"),
        (b"[]", "invalid_body"),
        (b"null", "invalid_body"),
        (b"{", "invalid_body"),
        (b'{"a"', "invalid_body"),
        (b'{"a":', "invalid_body"),
        (b'{"a":1', "invalid_body"),
        (b'{"a":1,', "invalid_body"),
        (b'{"a":"', "invalid_body"),
        (b'{"a":[', "invalid_body"),
        (b'{"a":"\\', "invalid_body"),
        (b"{1:2}", "invalid_body"),
        (b'{"a" "b"}', "invalid_body"),
        (json.dumps({"max_tokens": 101}).encode("utf-16"), "invalid_body"),
        (json.dumps({"max_tokens": 101}).encode("utf-16-le"), "invalid_body"),
        (json.dumps({"max_tokens": 101}).encode("utf-32"), "invalid_body"),
        (json.dumps({"max_tokens": 101}).encode("utf-8-sig"), "invalid_body"),
    ],
)
def test_what_is_asked_for(sent: bytes, code: str) -> None:
    handle = judge(sent, max_output_tokens=100, max_choices=2)
    assert (handle.code, handle.status) == (code, 400 if code else 0)


LIMITED = ["max_tokens", "max_completion_tokens", "n"]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LIMITED, "a"]), inner),
    max_leaves=8,
)
limited = {"max_tokens": st.integers(0, 200), "n": st.integers(0, 4)}
objects = st.fixed_dictionaries({}, optional={"a": values, '"b': values, **limited, "z": values})


@settings(max_examples=300, deadline=None)
@given(objects, st.sampled_from([None, 1]), st.booleans())
def test_any_object_is_read_as_an_engine_reads_it(value: Any, indent: int | None, ascii_only: bool) -> None:
    sent = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    handle = judge(sent, COMPLETIONS, max_output_tokens=100, max_choices=2)
    escaped = any("\\" in json.dumps(key) for key in value)
    too_much, too_many = value.get("max_tokens", 0) > 100, value.get("n", 0) > 2
    expected = (
        "invalid_body" if escaped
        else "max_output_tokens_exceeded" if too_much
        else "max_choices_exceeded" if too_many
        else ""
    )  # fmt: skip
    assert handle.code == expected


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_no_bytes_break_the_script(sent: bytes) -> None:
    judge(b'{"a": ' + sent, max_output_tokens=100, max_context_tokens=5)
    judge(sent, max_output_tokens=100)


@pytest.mark.parametrize(
    ("path", "sent", "received"),
    [
        (CHAT, b"{}", b'{"max_completion_tokens":100}'),
        (CHAT, b'{"a": 1 } ', b'{"a": 1 ,"max_completion_tokens":100}'),
        (CHAT, b'{"max_tokens": null}', b'{"max_tokens": null,"max_completion_tokens":100}'),
        (RESPONSES, b'{"a": 1}', b'{"a": 1,"max_output_tokens":100}'),
        (CHAT, b'{"max_tokens": 7}', b'{"max_tokens": 7}'),
        (COMPLETIONS, b'{"a": 1}', b'{"a": 1}'),  # engines answer 16 tokens there
    ],
)
def test_an_answer_without_a_limit_gets_the_gateways(path: str, sent: bytes, received: bytes) -> None:
    handle = judge(sent, path, max_output_tokens=100)
    assert handle.content is not None
    assert handle.content.data == received
    assert handle.replaced.get("content-length", str(len(sent))) == str(len(received))


def test_the_context_is_the_estimated_prompt_and_the_answer_without_images() -> None:
    image = {"image_url": {"url": "data:image/png;base64," + "A" * 4000}}
    sent = body(messages=["x" * 400, image], max_tokens=50)
    prompt = -(-(len(sent) - len(json.dumps(image["image_url"]["url"]))) // 4)
    assert judge(sent, max_context_tokens=prompt + 50).code == ""
    handle = judge(sent, max_context_tokens=prompt + 49)
    assert handle.code == "context_length_exceeded"
    assert f"{prompt} tokens of prompt" in handle.answer.decode()
    assert judge(sent, max_context_tokens=2 * prompt + 50, bytes_per_token=2).code == ""


def test_a_long_prompt_goes_to_its_own_pool() -> None:
    lane = LongContext(threshold_tokens=100, max_concurrent=1)
    short, long = judge(body(prompt="x" * 300), lane=lane), judge(body(prompt="x" * 500), lane=lane)
    assert (short.rerouted, short.replaced) == (False, {})
    assert (long.rerouted, long.replaced) == (True, {"x-moe-lane": "long"})


def test_large_headers_are_refused_before_the_body_is_looked_at() -> None:
    handle = judge(None, max_header_bytes=20)
    assert (handle.status, handle.code) == (431, "headers_too_large")


def test_where_no_limit_needs_the_body_it_is_not_looked_at() -> None:
    assert judge(b"not json").code == ""


def test_a_request_without_a_body_passes() -> None:
    assert judge(None, max_output_tokens=100).status == 0
