from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from moe_operator.runtime import json_log


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    quiet = {name: logging.getLogger(name).level for name in json_log.QUIET}
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in quiet.items():
        logging.getLogger(name).setLevel(before)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_line_is_one_json_object(stream: io.StringIO) -> None:
    json_log.configure("info", stream)
    log = logging.getLogger("moe_operator.test")
    log.info("two\nlines with ünïcode and \x00", extra={"key": "ns/kimi", "generation": 4})
    log.debug("not asked for")
    log.warning("%d retries", 3, extra={"wake_after_s": 1.5})
    first, second = lines(stream)
    assert first.pop("time").endswith("Z")  # type: ignore[attr-defined]
    assert first == {
        "level": "info",
        "logger": "moe_operator.test",
        "event": "two\nlines with ünïcode and \x00",
        "key": "ns/kimi",
        "generation": 4,
    }
    assert (second["event"], second["wake_after_s"]) == ("3 retries", 1.5)


def test_an_exception_is_part_of_its_line(stream: io.StringIO) -> None:
    json_log.configure("info", stream)
    try:
        raise ValueError("token=hunter2hunter2")
    except ValueError as error:
        logging.getLogger("x").error("failed", exc_info=error)
    (line,) = lines(stream)
    assert "ValueError" in str(line["exception"])
    assert "hunter2" not in str(line)


def test_what_libraries_hang_onto_records_is_not_written(stream: io.StringIO) -> None:
    json_log.configure("info", stream)
    logging.getLogger("kopf.objects").warning("retrying", extra={"k8s_ref": {"spec": "private"}})
    assert "private" not in stream.getvalue()
    assert lines(stream)[0]["event"] == "retrying"


def test_the_chatter_of_libraries_is_quiet(stream: io.StringIO) -> None:
    json_log.configure("info", stream)
    for name in ("httpx", "kopf.objects"):
        logging.getLogger(name).info("one line per request")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer SECRETSECRET",
        "authorization: basic SECRETSECRET==",
        "clone https://user:SECRETSECRET@models.example/x",
        "GET /x?X-Amz-Signature=SECRETSECRET&y=1",
        'refused {"api_key": "SECRETSECRET"}',
        "hf_SECRETSECRETSECRETSECRET is not allowed",
        "password: SECRETSECRET",
        "HF_TOKEN=SECRETSECRET moestage",
    ],
)
def test_credentials_are_replaced_in_events_and_errors(stream: io.StringIO, text: str) -> None:
    json_log.configure("info", stream)
    logging.getLogger("x").error(text, extra={"error": text})
    assert "SECRETSECRET" not in stream.getvalue()
    assert "[redacted]" in str(lines(stream)[0]["event"])


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens 4 is below 8",
        "container stage: AUTH: the source answered 401",
        "tokens per second fell to 12",
        "https://models.example/org/model@rev is not reachable",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert json_log.redact(text) == text
