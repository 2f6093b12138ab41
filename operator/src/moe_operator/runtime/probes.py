"""Questions to pods: resolver, stagers, engine leaders, gateway agents.

Every question is bounded in time and in bytes, follows no redirect and uses no proxy. A pod that does
not answer, or answers nonsense, is data (``error``), never an exception: a deployment is judged by what
its pods say, and saying nothing is an answer too.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from moe_operator.api.intent import Ack
from moe_operator.api.manifest import Manifest, StageProgress
from moe_operator.api.names import PORT_ENGINE_HTTP, PORT_GATEWAY_AGENT, PORT_STAGE_PROGRESS
from moe_operator.reconcile.snapshot import GatewayProbe, LeaderProbe, ResolverProbe

ERROR_MAX = 512  # characters of a pod's own words that are kept
PROMPT = "1, 2, 3,"
COMPLETION_TOKENS = 4
# Requests in flight, per engine: vLLM and SGLang name it differently; one sample per engine core.
RUNNING = re.compile(rb"^(?:vllm:num_requests_running|sglang:num_running_reqs)(?:\{[^}]*\})?\s+(\S+)", re.M)

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """Seconds and bytes a probe may cost."""

    connect_seconds: float = 2.0
    answer_seconds: float = 3.0
    completion_seconds: float = 20.0  # the first one after a start compiles kernels
    ack_wait_seconds: float = 2.0
    manifest_bytes: int = 16 << 20  # 20,000 files
    answer_bytes: int = 4 << 20
    concurrency: int = 64


@dataclass(frozen=True, slots=True)
class _Answer:
    """HTTP status and body, or why there is none (status 0)."""

    status: int
    body: bytes = b""
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.error

    @property
    def words(self) -> str:
        """What went wrong, in the pod's words where it had any; "" when nothing did."""
        if self.error or self.ok:
            return self.error
        said = self.body.decode(errors="replace").strip()
        return f"HTTP {self.status}: {said}"[:ERROR_MAX] if said else f"HTTP {self.status}"


class Probes:
    """Asks pods over HTTP; one per process, closed with ``aclose``."""

    def __init__(self, limits: ProbeLimits | None = None, transport: httpx.AsyncBaseTransport | None = None):
        self._limits = limits or ProbeLimits()
        self._slots = asyncio.Semaphore(self._limits.concurrency)
        self._client = httpx.AsyncClient(
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            headers={"accept-encoding": "identity", "user-agent": "moe-operator"},
            # A pod's address may belong to another pod a second later: no connection is kept.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def aclose(self) -> None:
        """Close the client; probes in flight fail."""
        await self._client.aclose()

    async def resolver(self, ip: str) -> ResolverProbe:
        """The manifest if the resolver knows it, else how far it is."""
        base = _base(ip, PORT_STAGE_PROGRESS)
        answer = await self._get(f"{base}/manifest", max_bytes=self._limits.manifest_bytes)
        if answer.ok:
            manifest, error = _parse(Manifest, answer)
            return ResolverProbe(manifest=manifest, error=error)
        progress = await self.progress(ip)
        return ResolverProbe(progress=progress, error="" if answer.status == 503 else answer.words)

    async def progress(self, ip: str) -> StageProgress | None:
        """How far a stager is; None when it does not say."""
        answer = await self._get(f"{_base(ip, PORT_STAGE_PROGRESS)}/progress")
        return _parse(StageProgress, answer)[0] if answer.ok else None

    async def leader(self, ip: str, *, completion_of: str = "") -> LeaderProbe:
        """Health, models and running requests of an engine; a short completion of a model if one is named."""
        base = _base(ip, PORT_ENGINE_HTTP)
        health, models, metrics = await asyncio.gather(
            self._get(f"{base}/health"), self._get(f"{base}/v1/models"), self._get(f"{base}/metrics")
        )
        text, error = None, health.words
        if completion_of and health.ok:
            text, error = await self._completion(base, completion_of)
        return LeaderProbe(
            healthy=health.ok,
            served_models=_model_ids(models),
            completion=text,
            error=error,
            running=running_requests(metrics.body) if metrics.ok else None,
        )

    async def gateway(self, pod: str, ip: str, *, wait_generation: int = -1) -> GatewayProbe:
        """What the agent of a gateway pod runs; waits a little for ``wait_generation`` when it is given."""
        params: dict[str, str] = {}
        seconds = self._limits.answer_seconds
        if wait_generation >= 0:
            wait = self._limits.ack_wait_seconds
            params = {"wait_generation": str(wait_generation), "timeout": f"{wait:g}"}
            seconds += wait
        answer = await self._get(f"{_base(ip, PORT_GATEWAY_AGENT)}/ack", params=params, seconds=seconds)
        if not answer.ok:
            return GatewayProbe(pod, error=answer.words)
        ack, error = _parse(Ack, answer)
        return GatewayProbe(pod, ack, error)

    async def _completion(self, base: str, model: str) -> tuple[str | None, str]:
        asked = {"model": model, "prompt": PROMPT, "max_tokens": COMPLETION_TOKENS, "temperature": 0}
        answer = await self._ask(
            "POST", f"{base}/v1/completions", json=asked, seconds=self._limits.completion_seconds
        )
        if not answer.ok:
            return None, answer.words
        text = _completion_text(answer.body)
        return (text, "") if text is not None else (None, f"not a completion: {_words(answer.body)}")

    async def _get(self, url: str, *, max_bytes: int = 0, seconds: float = 0.0, **options: Any) -> _Answer:
        return await self._ask("GET", url, max_bytes=max_bytes, seconds=seconds, **options)

    async def _ask(
        self, method: str, url: str, *, max_bytes: int = 0, seconds: float = 0.0, **options: Any
    ) -> _Answer:
        limit = max_bytes or self._limits.answer_bytes
        total = seconds or self._limits.answer_seconds
        timeout = httpx.Timeout(total, connect=self._limits.connect_seconds)
        body = bytearray()
        async with self._slots:
            try:
                async with (
                    asyncio.timeout(total),
                    self._client.stream(method, url, timeout=timeout, **options) as response,
                ):
                    async for chunk in response.aiter_raw():
                        body += chunk
                        if len(body) > limit:
                            return _Answer(0, error=f"answer of more than {limit} bytes")
            except TimeoutError:
                return _Answer(0, error=f"no answer within {total:g} s")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                return _Answer(0, error=f"{type(error).__name__}: {error}"[:ERROR_MAX])
        return _Answer(response.status_code, bytes(body))


def running_requests(metrics: bytes) -> int | None:
    """Requests in flight according to an engine's metrics page, over all its cores; None if not said."""
    values = [_number(sample) for sample in RUNNING.findall(metrics)]
    known = [value for value in values if value is not None]
    return int(sum(known)) if known else None


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _base(ip: str, port: int) -> str:
    host = f"[{ip}]" if ":" in ip else ip
    return f"http://{host}:{port}"


def _parse(model: type[M], answer: _Answer) -> tuple[M | None, str]:
    try:
        return model.model_validate_json(answer.body), ""
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return None, f"not a {model.__name__}: {where}: {first['msg']}"[:ERROR_MAX]


def _model_ids(answer: _Answer) -> tuple[str, ...] | None:
    page = _json(answer.body) if answer.ok else None
    models = page.get("data") if isinstance(page, dict) else None
    if not isinstance(models, list):
        return None
    return tuple(str(m["id"]) for m in models if isinstance(m, dict) and "id" in m)


def _completion_text(body: bytes) -> str | None:
    page = _json(body)
    try:
        text = page["choices"][0]["text"]
    except (KeyError, IndexError, TypeError):
        return None
    return text if isinstance(text, str) else None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _words(body: bytes) -> str:
    return body[:ERROR_MAX].decode(errors="replace")
