from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest
from moe_operator.api.intent import Ack
from moe_operator.api.manifest import Manifest, StageProgress
from moe_operator.reconcile.snapshot import GatewayProbe, LeaderProbe, ResolverProbe
from moe_operator.runtime.probes import ProbeLimits, Probes, running_requests

Handler = Callable[[httpx.Request], httpx.Response]
MANIFEST = Manifest(source="https://models.example/kimi", files=[])
PROGRESS = StageProgress(phase="Pulling", bytes_total=10, bytes_done=4)
VLLM_METRICS = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="kimi"} 3.0
vllm:num_requests_running{engine="1",model_name="kimi"} 4.0
vllm:num_requests_waiting{engine="0",model_name="kimi"} 9.0
"""


def probes(handler: Handler, **limits: float) -> Probes:
    def over_the_wire(request: httpx.Request) -> httpx.Response:
        answer = handler(request)
        if not isinstance(answer.stream, httpx.ByteStream):
            return answer
        return httpx.Response(answer.status_code, headers=answer.headers, stream=Whole(answer.content))

    return Probes(ProbeLimits(**limits), transport=httpx.MockTransport(over_the_wire))  # type: ignore[arg-type]


@dataclass
class Whole(httpx.AsyncByteStream):
    """A body that has not been read yet, as the network brings it."""

    body: bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.body


def pages(**by_path: httpx.Response | Exception) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        answer = by_path.get(request.url.path.strip("/").replace("/", "_"), httpx.Response(404))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handler


def wire(model: Manifest | StageProgress | Ack) -> httpx.Response:
    return httpx.Response(200, text=model.model_dump_json(by_alias=True))


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (pages(manifest=wire(MANIFEST)), ResolverProbe(manifest=MANIFEST)),
        (pages(manifest=httpx.Response(503), progress=wire(PROGRESS)), ResolverProbe(progress=PROGRESS)),
        (pages(manifest=httpx.Response(503)), ResolverProbe()),
        (
            pages(manifest=httpx.Response(500, text="bug"), progress=wire(PROGRESS)),
            ResolverProbe(progress=PROGRESS, error="HTTP 500: bug"),
        ),
        (
            pages(manifest=httpx.ConnectError("refused"), progress=httpx.ConnectError("refused")),
            ResolverProbe(error="ConnectError: refused"),
        ),
    ],
)
async def test_a_resolver_tells_the_manifest_or_how_far_it_is(
    handler: Handler, expected: ResolverProbe
) -> None:
    asking = probes(handler)
    assert await asking.resolver("10.0.0.1") == expected
    await asking.aclose()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"schema": "moe.manifest/v9"}', b"\xff\xfe", b'{"source": "x", "files": 3}']
)
async def test_nonsense_for_a_manifest_is_an_error_in_words(body: bytes) -> None:
    asking = probes(pages(manifest=httpx.Response(200, content=body)))
    answer = await asking.resolver("10.0.0.1")
    assert answer.manifest is None
    assert answer.error.startswith("not a Manifest: ")
    await asking.aclose()


@pytest.mark.parametrize(
    "answer", [httpx.Response(200, text="soon"), httpx.Response(404), httpx.ReadError("reset")]
)
async def test_a_stager_that_does_not_say_how_far_it_is_says_nothing(
    answer: httpx.Response | Exception,
) -> None:
    asking = probes(pages(progress=answer))
    assert await asking.progress("10.0.0.1") is None
    await asking.aclose()


def engine(**other: httpx.Response | Exception) -> Handler:
    usual: dict[str, httpx.Response | Exception] = {
        "health": httpx.Response(200),
        "v1_models": httpx.Response(200, json={"object": "list", "data": [{"id": "kimi"}]}),
        "metrics": httpx.Response(200, content=VLLM_METRICS),
        "v1_completions": httpx.Response(200, json={"choices": [{"text": " 4, 5"}]}),
    }
    return pages(**(usual | other))


@pytest.mark.parametrize(
    ("handler", "model", "expected"),
    [
        (engine(), "", LeaderProbe(True, ("kimi",), None, "", 7)),
        (engine(), "kimi", LeaderProbe(True, ("kimi",), " 4, 5", "", 7)),
        (
            engine(v1_completions=httpx.Response(200, json={"choices": [{"text": ""}]})),
            "kimi",
            LeaderProbe(True, ("kimi",), "", "", 7),
        ),
        (
            engine(v1_completions=httpx.Response(404, text="The model `kimi` does not exist.")),
            "kimi",
            LeaderProbe(True, ("kimi",), None, "HTTP 404: The model `kimi` does not exist.", 7),
        ),
        (
            engine(v1_completions=httpx.Response(200, json={"choices": []})),
            "kimi",
            LeaderProbe(True, ("kimi",), None, 'not a completion: {"choices":[]}', 7),
        ),
        (
            engine(health=httpx.Response(503, text="engine dead")),
            "kimi",  # not asked: a sick engine would only keep us waiting
            LeaderProbe(False, ("kimi",), None, "HTTP 503: engine dead", 7),
        ),
        (
            engine(metrics=httpx.Response(404), v1_models=httpx.Response(200, text="[]")),
            "",
            LeaderProbe(True, None, None, "", None),
        ),
        (
            lambda request: (_ for _ in ()).throw(httpx.ConnectError("refused", request=request)),
            "kimi",
            LeaderProbe(False, None, None, "ConnectError: refused", None),
        ),
    ],
)
async def test_a_leader_answers_or_is_quoted(handler: Handler, model: str, expected: LeaderProbe) -> None:
    asking = probes(handler)
    assert await asking.leader("10.0.0.1", completion_of=model) == expected
    await asking.aclose()


async def test_the_completion_is_short_and_names_the_model() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"choices": [{"text": "x"}]})

    asking = probes(handler)
    await asking.leader("10.0.0.1", completion_of="kimi")
    posted = [r for r in seen if r.method == "POST"]
    assert [str(r.url) for r in posted] == ["http://10.0.0.1:8000/v1/completions"]
    body = json.loads(posted[0].content)
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("kimi", 4, 0)
    await asking.aclose()


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (VLLM_METRICS, 7),
        (b'sglang:num_running_reqs{model_name="kimi"} 2.0\n', 2),
        (b"sglang:num_running_reqs 2\n", 2),
        (b'vllm:num_requests_running{engine="0"} NaN\n', None),
        (b'vllm:num_requests_running{engine="0"} many\n', None),
        (b"# vllm:num_requests_running is not here\n", None),
        (b"", None),
    ],
)
def test_running_requests_are_summed_over_engine_cores(page: bytes, expected: int | None) -> None:
    assert running_requests(page) == expected


async def test_a_gateway_is_asked_to_wait_for_a_generation() -> None:
    seen: list[httpx.URL] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return wire(Ack(generation=7))

    asking = probes(handler)
    assert await asking.gateway("g", "10.0.0.1", wait_generation=7) == GatewayProbe("g", Ack(generation=7))
    assert await asking.gateway("g", "fd00::1") == GatewayProbe("g", Ack(generation=7))
    assert [str(url) for url in seen] == [
        "http://10.0.0.1:9902/ack?wait_generation=7&timeout=2",
        "http://[fd00::1]:9902/ack",
    ]
    await asking.aclose()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(500, text="no envoy"), "HTTP 500: no envoy"),
        (httpx.Response(307, headers={"location": "http://169.254.169.254/"}), "HTTP 307"),
        (httpx.Response(200, text="{}"), "not a Ack: generation: Field required"),
        (httpx.RemoteProtocolError("cut"), "RemoteProtocolError: cut"),
    ],
)
async def test_a_gateway_that_answers_nonsense_is_quoted(
    answer: httpx.Response | Exception, error: str
) -> None:
    asking = probes(pages(ack=answer))
    assert await asking.gateway("g", "10.0.0.1") == GatewayProbe("g", None, error)
    await asking.aclose()


async def test_words_of_a_pod_are_cut() -> None:
    asking = probes(pages(ack=httpx.Response(500, text="x" * 100_000)))
    assert len((await asking.gateway("g", "10.0.0.1")).error) == 512
    await asking.aclose()


@dataclass
class Endless(httpx.AsyncByteStream):
    sent: int = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.sent += 1024
            yield b"x" * 1024


async def test_an_endless_answer_is_cut_off() -> None:
    stream = Endless()
    asking = probes(lambda _: httpx.Response(200, stream=stream), answer_bytes=64 * 1024)
    answer = await asking.gateway("g", "10.0.0.1")
    assert answer.error == "answer of more than 65536 bytes"
    assert stream.sent <= 66 * 1024
    await asking.aclose()


async def test_a_compressed_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b"{" + b" " * 10_000_000)

    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Whole(bomb), headers={"content-encoding": "gzip"})

    asking = probes(handler)
    assert (await asking.gateway("g", "10.0.0.1")).error.startswith("not a Ack")
    await asking.aclose()


async def test_silence_ends_after_its_time() -> None:
    silence = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silence.wait()
        writer.close()

    server = await asyncio.start_server(never, "127.70.0.1", 9902)
    asking = Probes(ProbeLimits(answer_seconds=0.05))
    answer = await asking.gateway("g", "127.70.0.1")
    assert (answer.ack, bool(answer.error)) == (None, True)
    silence.set()
    await asking.aclose()
    server.close()
    await server.wait_closed()


async def test_a_port_where_nobody_listens_is_an_answer() -> None:
    asking = Probes()
    assert (await asking.leader("127.70.0.2")).healthy is False
    await asking.aclose()
