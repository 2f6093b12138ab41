"""Log lines as vLLM and uvicorn print them: ``(Process pid=1) LEVEL date [file:line] message``."""

from __future__ import annotations

import os
import sys
from http import HTTPStatus
from time import localtime, strftime

from .http_server import Request

BANNER = (
    "",
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
    "  █▄█▀ █     █     █     █  model   {model}",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
    "",
)
ROUTES = (
    "/openapi.json, Methods: HEAD, GET", "/docs, Methods: HEAD, GET",
    "/docs/oauth2-redirect, Methods: HEAD, GET", "/redoc, Methods: HEAD, GET", "/load, Methods: GET",
    "/version, Methods: GET", "/kv_event_sources, Methods: GET", "/health, Methods: GET",
    "/metrics, Methods: GET", "/tokenize, Methods: POST", "/detokenize, Methods: POST",
    "/v1/models, Methods: GET", "/v1/systemone, Methods: POST", "/ping, Methods: GET",
    "/ping, Methods: POST", "/invocations, Methods: POST", "/v1/chat/completions, Methods: POST",
    "/v1/chat/completions/batch, Methods: POST", "/v1/responses, Methods: POST",
    "/v1/responses/{response_id}, Methods: GET", "/v1/responses/{response_id}/cancel, Methods: POST",
    "/v1/completions, Methods: POST", "/v1/messages, Methods: POST",
    "/v1/messages/count_tokens, Methods: POST", "/generative_scoring, Methods: POST",
    "/scale_elastic_ep, Methods: POST", "/is_scaling_elastic_ep, Methods: POST",
    "/v1/chat/completions/render, Methods: POST", "/v1/messages/render, Methods: POST",
    "/v1/completions/render, Methods: POST", "/v1/responses/render, Methods: POST",
    "/v1/chat/completions/derender, Methods: POST", "/v1/completions/derender, Methods: POST",
    "/inference/v1/generate, Methods: POST", "/inference/v1/abort_requests, Methods: POST",
)  # fmt: skip


def say(line: str) -> None:
    """One line on standard output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def log(process: str, place: str, message: str, level: str = "INFO") -> None:
    """One log line of a process of the engine; ``place`` is the real engine's file and line."""
    say(
        f"({process} pid={os.getpid()}) {level} {strftime('%m-%d %H:%M:%S', localtime())} [{place}] {message}"
    )


def traceback(process: str, place: str, error: str) -> None:
    """An exception inside a process of the engine: each line with the prefix, the error last."""
    log(process, place, "Traceback (most recent call last):", "ERROR")
    for line in error.split("\n"):
        log(process, place, line, "ERROR")


def crash(error: str) -> None:
    """An exception that ends the API server: an ordinary traceback."""
    say("Traceback (most recent call last):")
    say(error)


def banner(process: str, version: str, model: str) -> None:
    """The logo with version and model."""
    for line in BANNER:
        log(process, "api_utils.py:347", line.format(version=version, model=model))


def access(request: Request, status: int) -> None:
    """uvicorn's access log."""
    phrase = HTTPStatus(status).phrase
    say(f'INFO:     {request.peer} - "{request.method} {request.path} HTTP/1.1" {status} {phrase}')


def progress(done: int, total: int, elapsed: float) -> None:
    """The progress bar of loading, which only the first worker prints."""
    percent, rate = done * 100 // total, f"{done / elapsed:.2f}it/s" if elapsed > 0 and done else "?it/s"
    clock = f"{int(elapsed) // 60:02d}:{int(elapsed) % 60:02d}"
    left = "?" if not done else "00:00"
    say(
        f"Loading safetensors checkpoint shards: {percent:3d}% Completed | {done}/{total} "
        f"[{clock}<{left}, {rate}]"
    )
