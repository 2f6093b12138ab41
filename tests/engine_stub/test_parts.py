"""The small parts: command lines, tokens, faults, the text of metrics, and the HTTP server at its edges."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.engine_stub.__main__ import recognize
from e2e.engine_stub.admin import bound_socket
from e2e.engine_stub.exposition import Family, labels, number, render, steps_to
from e2e.engine_stub.faults import Fault, FaultError, Faults, parse_faults
from e2e.engine_stub.http_server import Request, Response, Server
from e2e.engine_stub.parallel import Parallel
from e2e.engine_stub.settings import Misuse, Settings
from e2e.engine_stub.sglang_flags import parse as parse_sglang
from e2e.engine_stub.tokens import Sampling, Tokenizer, answer
from e2e.engine_stub.vllm_flags import parse as parse_vllm

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("argv", "engine", "rest"),
    [
        ("vllm serve M --port 1", "vllm", "serve M --port 1"),
        ("serve M", "vllm", "serve M"),
        ("sglang --model-path M", "sglang", "--model-path M"),
        ("sglang serve --model-path M", "sglang", "--model-path M"),
        ("python3 -m sglang.launch_server --model-path M", "sglang", "--model-path M"),
        ("-m sglang.launch_server --model-path M", "sglang", "--model-path M"),
        ("/usr/bin/python3.12 -m sglang.launch_server --model-path M", "sglang", "--model-path M"),
        ("--model-path M", "sglang", "--model-path M"),
    ],
)
def test_every_spelling_of_an_entry_point(argv, engine, rest):
    assert recognize(argv.split()) == (engine, rest.split())


def test_anything_else_is_not_an_engine():
    with pytest.raises(ValueError, match="expected 'vllm serve MODEL"):
        recognize(["bash"])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("-tp 8 -pp 2 --nnodes 2 --node-rank 1", Parallel(8, 2, 1, False, 2, 1)),
        ("--tensor_parallel_size=8 --nnodes 1", Parallel(8)),
        ("-tp=8 -dp=4 -dpl=1 -dpr=3 -ep", Parallel(8, 1, 4, True, 4, 3)),
        ("--data-parallel-size 4 --data-parallel-size-local 4", Parallel(1, 1, 4)),
    ],
)
def test_vllm_flags_describe_the_group(flags, expected):
    assert parse_vllm(["serve", "M", *flags.split()]).parallel == expected


def test_sglang_flags_describe_the_same_group_in_their_own_terms():
    flags = "--model-path M --tp-size 32 --attn-dp-size 4 --ep-size 32 --nnodes 4 --node-rank 2"
    parallel = parse_sglang(flags.split()).parallel
    assert parallel == Parallel(8, 1, 4, True, 4, 2, pipeline_outermost=True)
    assert [rank.number for rank in parallel.local_ranks] == list(range(16, 24))
    assert {rank.data for rank in parallel.local_ranks} == {2}


@pytest.mark.parametrize("size", [512, 129_280])
def test_text_survives_the_tokenizer_and_every_word_is_one_token(size):
    tokenizer = Tokenizer(size)
    text = "Grüße, 世界! \n\t"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert all(len(tokenizer.encode(word)) == 1 for word in tokenizer.words)


def test_an_answer_is_a_function_of_its_question():
    words = Tokenizer(129_280).words
    asked = Sampling(max_tokens=50, ignore_eos=True)
    assert answer(words, "a", asked) == answer(words, "a", asked) != answer(words, "b", asked)
    assert len(answer(words, "a", asked).pieces) == 50


@pytest.mark.parametrize(
    "text",
    [
        "{}", "[1]", '[{"id": "F99"}]', '[{"id": "F30", "rank": 0}]', "not json",
        '[{"id": "F30", "phase": "lunch"}]', '[{"id": "F30", "trigger": {"later": 1}}]',
        '[{"id": "F30", "trigger": {"first_n_starts": 2}}]',
    ],
)  # fmt: skip
def test_faults_that_cannot_be_understood(text):
    with pytest.raises(FaultError):
        parse_faults(text)


def test_time_triggers_are_scaled_and_end():
    now = [100.0]
    fault = Fault.parse({"id": "F30", "trigger": {"after_s": 100, "duration_s": 100}})
    faults = Faults(0, 0.1, (fault,), clock=lambda: now[0])
    seen = []
    for now[0] in (100.0, 109.9, 110.0, 119.9, 120.0):
        seen.append(faults.active("F30") is not None)
    assert seen == [False, False, True, True, False]


def test_starts_are_counted_in_the_file(tmp_path):
    entry = {"id": "F30", "trigger": {"first_n_starts": 2, "counter_file": str(tmp_path / "n")}}
    holds = [Faults(0, 1.0, (Fault.parse(entry),)).active("F30") is not None for _ in range(3)]
    assert holds == [True, True, False]


def test_numbers_are_written_as_scrapers_expect():
    written = [number(value) for value in (0, 1, 0.1, 1_048_576, 1796004719.5, float("inf"))]
    assert written == ["0.0", "1.0", "0.1", "1.048576e+06", "1.7960047195e+09", "+Inf"]


def test_token_buckets_end_at_the_context():
    assert steps_to(1024) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def test_label_values_are_escaped_and_buckets_add_up():
    family = Family("f", "histogram", "Help.", (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        family.add(labels(b='x"y', a="1"), value)
    page = render([family]).decode()
    assert 'f_bucket{a="1",b="x\\"y",le="1.0"} 2.0' in page
    assert 'f_bucket{a="1",b="x\\"y",le="+Inf"} 4.0' in page
    assert 'f_sum{a="1",b="x\\"y"} 12.0' in page


async def exchange(*sent: bytes) -> bytes:
    """What an echoing server answers to ``sent``, part by part."""

    async def echo(request: Request) -> Response:
        return Response(200, json.dumps([request.method, request.path, request.body.decode()]).encode())

    server = Server(echo, lambda request, status: None)
    sock = bound_socket("127.0.0.1", 0)
    await server.listen(sock)
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    for part in sent:
        writer.write(part)
        await writer.drain()
    async with asyncio.timeout(10):
        received = await reader.read()
    writer.close()
    await writer.wait_closed()
    await server.close()
    return received


CLOSE = b"connection: close\r\n"


async def test_two_requests_in_one_packet_are_answered_in_turn():
    got = await exchange(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n" + CLOSE + b"\r\n")
    assert got.count(b"HTTP/1.1 200 OK") == 2
    assert got.index(b'"/a"') < got.index(b'"/b"')


async def test_a_body_may_come_in_parts_and_in_chunks():
    head = b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n" + CLOSE + b"\r\n"
    got = await exchange(head + b"3\r\nab", b"c\r\n2\r\nde\r\n", b"0\r\n\r\n")
    assert b'["POST", "/x", "abcde"]' in got


@pytest.mark.parametrize(
    "bad",
    [
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000,
    ],
)
async def test_malformed_requests_are_400_and_end_the_connection(bad):
    assert (await exchange(bad)).startswith(b"HTTP/1.1 400 Bad Request")


def test_settings_come_from_variables_of_the_same_name():
    given = {"STUB_TIME_SCALE": "0.5", "STUB_GPUS": "8", "STUB_ADMIN_PORT": "", "STUB_FAULTS_FILE": "/x"}
    settings = Settings.from_environment(given)
    assert (settings.scaled(10), settings.gpus, settings.admin_port) == (5.0, 8, None)
    assert settings.faults_file == Path("/x")
    with pytest.raises(Misuse, match="STUB_GPUS"):
        Settings.from_environment({"STUB_GPUS": "many"})


@pytest.mark.parametrize("engine", ["vllm_serve", "sglang_serve"])
def test_the_stub_needs_the_standard_library_only(engine):
    """A small image, a fast start, and no knowledge of who runs it."""
    program = f"import sys, json, e2e.engine_stub.{engine}; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, '.'); {program}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    roots = {name.split(".")[0] for name in json.loads(ran.stdout)}
    outside = {name for name in roots - set(sys.stdlib_module_names) if not name.startswith(("_", "e2e"))}
    assert outside <= {"sitecustomize", "usercustomize"}
