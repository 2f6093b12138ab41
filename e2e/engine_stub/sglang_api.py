"""SGLang's HTTP surface: flat errors, all nulls in stream frames, and a /health that generates a token."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from hmac import compare_digest
from typing import Any

from .chat_protocol import DONE, Asked, BadRequest, parse_chat, parse_completion, parse_json, sse
from .exposition import CONTENT_TYPE
from .faults import Faults
from .generation import EngineDead, Generator, Job, Step
from .http_server import Cut, Request, Response, json_response
from .settings import Settings
from .sglang_metrics import SglangMetrics

HEALTH_ANSWERS = 1.0  # seconds before the probe looks for its token
HEALTH_TIMEOUT = 20.0
EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}
Route = Callable[[Request], Awaitable[Response]]


class Status(Enum):
    """What the server says of itself."""

    STARTING = "Starting"
    UP = "Up"
    EXITING = "GracefulExit"


@dataclass(slots=True)
class SglangApi:
    """Answers requests of one SGLang server."""

    name: str
    model_path: str
    context_length: int
    api_key: str | None
    weight_version: str
    settings: Settings
    generator: Generator
    faults: Faults
    metrics: SglangMetrics | None
    status: Status = Status.STARTING
    server_info: dict[str, Any] = field(default_factory=dict)
    _routes: dict[str, dict[str, Route]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        get, post = "GET", "POST"
        self._routes = {
            "/health": {get: self._health},
            "/health_generate": {get: self._health},
            "/ping": {get: self._ok, post: self._ok},
            "/ready": {get: self._ready},
            "/v1/models": {get: self._models},
            "/model_info": {get: self._model_info},
            "/get_model_info": {get: self._model_info},
            "/server_info": {get: self._server_info},
            "/get_server_info": {get: self._server_info},
            "/v1/loads": {get: self._loads},
            "/metrics": {get: self._metrics},
            "/tokenize": {post: self._tokenize},
            "/v1/tokenize": {post: self._tokenize},
            "/v1/chat/completions": {post: self._chat},
            "/v1/completions": {post: self._completion},
            "/generate": {post: self._native},
        }

    async def __call__(self, request: Request) -> Response:
        """Answer one request; what goes wrong becomes an error body."""
        if self.api_key and request.path.startswith("/v1"):
            given = request.headers.get("authorization", "")
            if not compare_digest(given, f"Bearer {self.api_key}"):
                return json_response({"error": "Unauthorized"}, 401)
        if request.path.startswith("/v1/models/"):
            return self._one_model(request.path.removeprefix("/v1/models/"))
        methods = self._routes.get(request.path)
        if methods is None:
            return json_response({"detail": "Not Found"}, 404)
        if request.method not in methods:
            return json_response({"detail": "Method Not Allowed"}, 405)
        try:
            return await methods[request.method](request)
        except BadRequest as error:
            return _error(error.message, error.kind, error.param, error.status)
        except EngineDead:
            return _error("Internal server error", "InternalServerError", None, 500)

    async def _ok(self, _: Request) -> Response:
        return Response(200)

    async def _ready(self, _: Request) -> Response:
        return Response(200 if self.status is Status.UP else 503)

    async def _health(self, request: Request) -> Response:
        """Generates one token, so a hanging engine is noticed after ``HEALTH_TIMEOUT``."""
        if self.faults.active("F35") is not None:
            return Response(200)
        if self.status is not Status.UP or self.generator.dead:
            return Response(503)
        if (self.faults.active("F30") or {}).get("variant") == "health503":
            return Response(503)
        await asyncio.sleep(self.settings.scaled(HEALTH_ANSWERS))
        until = time.monotonic() + self.settings.scaled(HEALTH_TIMEOUT - HEALTH_ANSWERS)
        while self.generator.hangs:
            self.generator.on_submit()  # its token is a step that does not come back
            if time.monotonic() >= until or request.gone.is_set():
                return Response(503)
            await asyncio.sleep(0.05)
        return Response(200)

    @property
    def _served(self) -> str:
        return str((self.faults.active("F41") or {}).get("served_id", self.name))

    @property
    def _limit(self) -> int:
        return int((self.faults.active("F41") or {}).get("max_model_len", self.context_length))

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._served, "object": "model", "created": int(time.time()), "owned_by": "sglang",
            "root": self._served, "parent": None, "max_model_len": self._limit,
        }  # fmt: skip

    async def _models(self, _: Request) -> Response:
        return json_response({"object": "list", "data": [self._card()]})

    def _one_model(self, name: str) -> Response:
        if name == self._served:
            return json_response(self._card())
        error = {
            "message": f"The model '{name}' does not exist", "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }  # fmt: skip
        return json_response({"error": error}, 404)

    async def _model_info(self, _: Request) -> Response:
        wrong = self.faults.active("F41") or {}
        return json_response(
            {
                "model_path": self.model_path,
                "tokenizer_path": self.model_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": wrong.get("weight_version", self.weight_version),
                "served_model_name": self._served,
                "disaggregation_mode": "null",
            }
        )

    async def _server_info(self, _: Request) -> Response:
        return json_response({**self.server_info, "version": self.settings.sglang_version})

    async def _loads(self, _: Request) -> Response:
        load = {
            "dp_rank": 0,
            "num_running_reqs": len(self.generator.running),
            "num_waiting_reqs": len(self.generator.waiting),
        }
        return json_response({"loads": [load], "version": self.settings.sglang_version})

    async def _metrics(self, _: Request) -> Response:
        if self.metrics is None:
            return json_response({"detail": "Not Found"}, 404)
        return Response(200, self.metrics.page(), {"content-type": CONTENT_TYPE})

    async def _tokenize(self, request: Request) -> Response:
        tokens = self.generator.tokenizer.encode(str(parse_json(request.body).get("prompt", "")))
        return json_response({"tokens": tokens, "count": len(tokens), "max_model_len": self._limit})

    async def _chat(self, request: Request) -> Response:
        asked = parse_chat(parse_json(request.body), self.generator.tokenizer, self._limit)
        return await self._generate(request, asked, chat=True)

    async def _completion(self, request: Request) -> Response:
        asked = parse_completion(parse_json(request.body), self.generator.tokenizer, self._limit)
        return await self._generate(request, asked, chat=False)

    async def _native(self, request: Request) -> Response:
        body = parse_json(request.body)
        sampling = body.get("sampling_params") or {}
        plain = {"prompt": body.get("text", ""), "max_tokens": sampling.get("max_new_tokens", 128)}
        asked = parse_completion({**sampling, **plain}, self.generator.tokenizer, self._limit)
        job = self._job(request, asked, os.urandom(16).hex())
        text, reason = "", ""
        async for step in self.generator.run(job):
            text, reason = text + step.text, step.finish_reason or reason
        meta = {
            "id": job.id, "finish_reason": {"type": reason}, "prompt_tokens": job.prompt_tokens,
            "weight_version": self.weight_version, "completion_tokens": job.generated, "cached_tokens": 0,
        }  # fmt: skip
        return json_response({"text": text, "meta_info": meta})

    def _job(self, request: Request, asked: Asked, name: str) -> Job:
        if self.status is Status.STARTING:
            raise BadRequest("The server is starting.", None, "ServiceUnavailableError", 503)
        count = len(self.generator.tokenizer.encode(asked.prompt))
        job = Job(name, asked.prompt, count, asked.sampling, asked.n, request.gone)
        if self.metrics and asked.stream:
            self.metrics.streaming.add(name)
        return job

    async def _generate(self, request: Request, asked: Asked, *, chat: bool) -> Response:
        if asked.model and asked.model not in {self._served, "default"}:
            message = f"The model '{asked.model}' does not exist"
            raise BadRequest(message, "model", "NotFoundError", 404)
        self.generator.check_alive()
        job = self._job(request, asked, os.urandom(16).hex())
        reply = _Reply(job, self._served, int(time.time()), chat)
        if asked.stream:
            return Response(200, self._stream(job, asked, reply), EVENT_STREAM)
        texts, ends = dict.fromkeys(range(asked.n), ""), dict.fromkeys(range(asked.n), Step(0, ""))
        async for step in self.generator.run(job):
            texts[step.index] += step.text
            ends[step.index] = step
        return json_response(reply.whole(texts, ends))

    async def _stream(self, job: Job, asked: Asked, reply: _Reply) -> AsyncIterator[bytes]:
        if reply.chat:
            for index in range(asked.n):
                yield sse(reply.frame(Step(index, ""), role="assistant"))
        sent = 0
        try:
            async for step in self.generator.run(job):
                yield sse(reply.frame(step))
                sent += 1
                truncate = self.faults.active("F47")
                if truncate is not None and sent == int(truncate.get("after_chunks", 1)):
                    raise Cut
            if asked.include_usage:
                yield sse({**reply.head(stream=True), "choices": [], "usage": reply.usage})
        except EngineDead:
            error = {"message": "Internal server error", "type": "InternalServerError", "code": 500}
            yield sse({"error": {**error, "object": "error", "param": None}})
        yield DONE


@dataclass(slots=True)
class _Reply:
    job: Job
    model: str
    created: int
    chat: bool

    @property
    def usage(self) -> dict[str, Any]:
        prompt, made = self.job.prompt_tokens, self.job.generated
        return {
            "prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made,
            "prompt_tokens_details": None, "reasoning_tokens": 0,
        }  # fmt: skip

    def head(self, *, stream: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self.chat else "text_completion"
        return {"id": self.job.id, "object": kind, "created": self.created, "model": self.model}

    def frame(self, step: Step, role: str | None = None) -> dict[str, Any]:
        delta = {"role": role, "content": step.text, "reasoning_content": None, "tool_calls": None}
        choice: dict[str, Any] = {"index": step.index}
        choice |= {"delta": delta} if self.chat else {"text": step.text}
        choice |= {"logprobs": None, "finish_reason": step.finish_reason, "matched_stop": step.stop_reason}
        return {**self.head(stream=True), "choices": [choice], "usage": None}

    def whole(self, texts: dict[int, str], ends: dict[int, Step]) -> dict[str, Any]:
        choices = []
        for index, text in texts.items():
            message = {
                "role": "assistant",
                "content": text,
                "reasoning_content": None,
                "tool_calls": None,
            }
            choice: dict[str, Any] = {"index": index}
            choice |= {"message": message} if self.chat else {"text": text}
            end = ends[index]
            choice |= {
                "logprobs": None,
                "finish_reason": end.finish_reason,
                "matched_stop": end.stop_reason,
            }
            choices.append(choice)
        return {
            **self.head(stream=False), "choices": choices, "usage": self.usage,
            "metadata": {"weight_version": "default"},
        }  # fmt: skip


def _error(message: str, kind: str, param: str | None, code: int) -> Response:
    body = {"object": "error", "message": message, "type": kind, "param": param, "code": code}
    return json_response(body, code)
