"""vLLM's HTTP surface: every route that clients, probes and scrapers use."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any

from .chat_protocol import (
    DONE,
    EVENT_STREAM,
    Asked,
    BadRequest,
    Reply,
    error_body,
    parse_chat,
    parse_completion,
    parse_json,
    sse,
)
from .exposition import CONTENT_TYPE
from .faults import Faults
from .generation import EngineDead, Generator, Job, Step
from .http_server import Cut, Request, Response, json_response
from .vllm_log import log
from .vllm_metrics import VllmMetrics

GUARDED = ("/v1", "/v2", "/inference", "/cohere")  # what --api-key protects
NOT_SERVED = (
    "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions/batch",
    "/generative_scoring", "/invocations", "/inference/v1/generate",
)  # fmt: skip
SERVER_ERROR = "The server had an error while processing your request."
Route = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True)
class VllmApi:
    """Answers requests with the help of one :class:`Generator`."""

    names: list[str]
    root: str
    max_model_len: int
    version: str
    api_keys: tuple[str, ...]
    generator: Generator
    metrics: VllmMetrics
    faults: Faults
    process: str = "APIServer"
    loading: bool = False  # F35: HTTP is up before the weights are
    echo_request_ids: bool = False
    load: int = 0
    fingerprint: str = ""
    _routes: dict[str, dict[str, Route]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fingerprint = f"vllm-{self.version}-{self.generator.identity[-8:]}"
        self._routes = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/load": {"GET": self._load},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            **{path: {"POST": self._not_served} for path in NOT_SERVED},
        }

    async def __call__(self, request: Request) -> Response:
        """Answer one request; what goes wrong becomes an error body."""
        began = time.monotonic()
        response = await self._guarded(request)
        size = len(response.body) if isinstance(response.body, bytes) else 0
        self.metrics.http.answered(
            request.path, request.method, response.status, (len(request.body), size), time.monotonic() - began
        )
        return response

    async def _guarded(self, request: Request) -> Response:
        if not self._allowed(request):
            return json_response({"error": "Unauthorized"}, 401)
        methods = self._routes.get(request.path)
        if methods is None:
            return json_response({"detail": "Not Found"}, 404)
        route = methods.get(request.method)
        if route is None:
            refused = json_response({"detail": "Method Not Allowed"}, 405)
            refused.headers["allow"] = ", ".join(methods)
            return refused
        self.load += 1
        try:
            return await route(request)
        except BadRequest as error:
            return json_response(
                error_body(error.message, error.kind, error.param, error.status), error.status
            )
        except EngineDead:
            return json_response(error_body(SERVER_ERROR, "InternalServerError", None, 500), 500)
        finally:
            self.load -= 1

    def _allowed(self, request: Request) -> bool:
        if not self.api_keys or not request.path.startswith(GUARDED):
            return True
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and any(compare_digest(key, one) for one in self.api_keys)

    async def _health(self, _: Request) -> Response:
        dead, hang = self.faults.active("F36"), self.faults.active("F30") or {}
        ill = self.generator.dead or hang.get("variant") == "health503"
        ill = ill or (dead is not None and int(dead.get("health", 503)) == 503)
        return Response(503 if ill else 200)

    async def _load(self, _: Request) -> Response:
        return json_response({"server_load": max(0, self.load - 1)})

    async def _version(self, _: Request) -> Response:
        return json_response({"version": self.version})

    async def _metrics(self, _: Request) -> Response:
        return Response(200, self.metrics.page(), {"content-type": CONTENT_TYPE})

    async def _models(self, _: Request) -> Response:
        created = int(time.time())
        cards = [self._card(name, created) for name in self._served]
        return json_response({"object": "list", "data": cards})

    def _card(self, name: str, created: int) -> dict[str, Any]:
        permission = {
            "id": f"modelperm-{os.urandom(8).hex()}", "object": "model_permission", "created": created,
            "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
            "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False,
            "organization": "*", "group": None, "is_blocking": False,
        }  # fmt: skip
        return {
            "id": name, "object": "model", "created": created, "owned_by": "vllm", "root": self.root,
            "parent": None, "max_model_len": self._limit, "permission": [permission],
        }  # fmt: skip

    @property
    def _served(self) -> list[str]:
        wrong = self.faults.active("F41") or {}
        return [wrong["served_id"]] if "served_id" in wrong else self.names

    @property
    def _limit(self) -> int:
        wrong = self.faults.active("F41") or {}
        return int(wrong.get("max_model_len", self.max_model_len))

    async def _tokenize(self, request: Request) -> Response:
        body = parse_json(request.body)
        self._known(str(body.get("model") or ""))
        if "messages" in body:
            text = parse_chat({**body, "max_tokens": 1}, self.generator.tokenizer, self._limit).prompt
        elif isinstance(body.get("prompt"), str):
            text = body["prompt"]
        else:
            raise BadRequest(
                "1 validation error:\n  Field required: body.prompt", "body.prompt", "Bad Request"
            )
        tokens = self.generator.tokenizer.encode(text)
        shown = [self.generator.tokenizer.decode([token]) for token in tokens]
        strings = shown if body.get("return_token_strs") else None
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": self._limit,
                "tokens": tokens,
                "token_strs": strings,
            }
        )

    async def _detokenize(self, request: Request) -> Response:
        body = parse_json(request.body)
        self._known(str(body.get("model") or ""))
        try:
            return json_response({"prompt": self.generator.tokenizer.decode(body["tokens"])})
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(str(error), "tokens") from None

    async def _not_served(self, request: Request) -> Response:
        message = f"{request.path} is not served by this engine stub"
        return json_response(error_body(message, "NotImplementedError", None, 501), 501)

    async def _chat(self, request: Request) -> Response:
        return await self._generate(
            request,
            parse_chat(parse_json(request.body), self.generator.tokenizer, self._limit),
            f"chatcmpl-{self._request_id(request)}",
        )

    async def _completion(self, request: Request) -> Response:
        return await self._generate(
            request,
            parse_completion(parse_json(request.body), self.generator.tokenizer, self._limit),
            f"cmpl-{self._request_id(request)}",
        )

    def _request_id(self, request: Request) -> str:
        return request.headers.get("x-request-id") or os.urandom(8).hex()

    def _known(self, model: str) -> None:
        if model and model not in self._served:
            message = f"The model `{model}` does not exist. Valid aliases: {', '.join(self._served)}."
            log(
                self.process,
                "serving.py:274",
                f"Error with model error=ErrorInfo(message='{message}', type='NotFoundError', "
                "param='model', code=404)",
                "ERROR",
            )
            raise BadRequest(message, "model", "NotFoundError", 404)

    async def _generate(self, request: Request, asked: Asked, request_id: str) -> Response:
        self._known(asked.model)
        if self.loading:
            raise BadRequest("The engine is still loading the model.", None, "ServiceUnavailableError", 503)
        self.generator.check_alive()
        count = len(self.generator.tokenizer.encode(asked.prompt))
        job = Job(request_id, asked.prompt, count, asked.sampling, asked.n, request.gone)
        reply = Reply(request_id, self._served[0], self.fingerprint, count, request_id.startswith("chat"))
        headers = {}
        if self.echo_request_ids:
            headers["x-request-id"] = self._request_id(request)
        if asked.stream:
            return Response(200, self._stream(job, asked, reply), EVENT_STREAM | headers)
        texts = dict.fromkeys(range(asked.n), asked.prompt if asked.echo else "")
        ends: dict[int, Step] = {}
        async for step in self.generator.run(job):
            reply.completion_tokens += step.finish_reason != "abort"
            texts[step.index] += step.text
            if step.finish_reason:
                ends[step.index] = step
        answer = json_response(reply.whole(texts, ends))
        answer.headers |= headers
        return answer

    async def _stream(self, job: Job, asked: Asked, reply: Reply) -> AsyncIterator[bytes]:
        if reply.chat:
            for frame in reply.opening(asked.n):
                yield sse(frame)
        sent, open_choices = 0, asked.n
        try:
            async for step in self.generator.run(job):
                open_choices -= step.finish_reason is not None
                last = not open_choices and not asked.include_usage
                yield sse(reply.frame(step, last=last, usage=asked.continuous_usage))
                sent += 1
                if await self._disturbed(sent, job):
                    yield sse(error_body(SERVER_ERROR, "InternalServerError", None, 500))
                    yield DONE
                    return
            if asked.include_usage:
                yield sse(reply.usage_frame())
        except EngineDead:
            yield sse(error_body(SERVER_ERROR, "InternalServerError", None, 500))
        yield DONE

    async def _disturbed(self, sent: int, job: Job) -> bool:
        """Stream faults after ``sent`` frames: True asks for an error frame."""
        if _due(self.faults.active("F47"), sent):
            raise Cut
        stall = self.faults.active("F49")
        if stall is not None and _due(stall, sent):
            await self.generator.pace(job, self.faults.scale * float(stall.get("s", 3600)))
        return _due(self.faults.active("F48"), sent)


def _due(params: dict[str, Any] | None, sent: int) -> bool:
    return params is not None and sent == int(params.get("after_chunks", 1))
