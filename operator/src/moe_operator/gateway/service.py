"""The agent's HTTP faces: one for kubelets, Prometheus and the operator, one for its own pod alone.

Draining is asked for on loopback, so that only the pod itself (its preStop hook) can take it out of service.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus

from moe_operator.gateway import metrics
from moe_operator.gateway.admin import Admin, EnvoyAway
from moe_operator.gateway.agent import Agent
from moe_operator.gateway.drain import Drain
from moe_operator.gateway.listen import JSON, BadRequest, Request, Response
from moe_operator.gateway.metrics import Numbers, Source
from moe_operator.gateway.watch import WatchState

MAX_WAIT_SECONDS = 60.0
DEFAULT_DRAIN_GRACE_SECONDS = 5.0

Route = Callable[[Request], Awaitable[Response]]


class Service:
    """What the agent answers."""

    def __init__(
        self,
        agent: Agent,
        admin: Admin,
        drain: Drain,
        watch: WatchState,
        sources: Sequence[Source] = (),
    ) -> None:
        self._agent = agent
        self._admin = admin
        self._drain = drain
        self._watch = watch
        self._sources = sources  # of metrics
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/ack"): self._ack,
            ("GET", "/healthz"): self._healthz,
            ("GET", "/readyz"): self._readyz,
            ("GET", "/metrics"): self._metrics,
        }
        self._own_routes: dict[tuple[str, str], Route] = {("POST", "/drain"): self._finish}

    async def handle(self, request: Request) -> Response:
        """Answer anybody."""
        return await _routed(self._routes, request)

    async def handle_own_pod(self, request: Request) -> Response:
        """Answer what runs in the same pod."""
        return await _routed(self._own_routes, request)

    async def _ack(self, request: Request) -> Response:
        generation = int(_number(request, "wait_generation", -1))
        timeout = min(MAX_WAIT_SECONDS, _number(request, "timeout", MAX_WAIT_SECONDS))
        ack = await self._agent.ack_of(generation, timeout) if generation >= 0 else await self._agent.ack()
        return Response(ack.model_dump_json(by_alias=True), content_type=JSON)

    async def _healthz(self, _: Request) -> Response:
        return Response("ok\n")

    async def _readyz(self, _: Request) -> Response:
        ack = await self._agent.ack()
        why_not = (
            "draining" if self._drain.started
            else "Envoy is not live" if not ack.envoy_live
            else "no intent applied" if ack.generation < 0
            else ""
        )  # fmt: skip
        if why_not:
            return Response(f"{why_not}\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return Response("ok\n")

    async def _metrics(self, _: Request) -> Response:
        reading = await self._agent.read()
        try:
            envoy_text = await self._admin.prometheus()
        except EnvoyAway:
            envoy_text = ""
        numbers = Numbers(
            reading=reading,
            generation=self._agent.applied(reading),
            received_generation=self._agent.received_generation,
            rejections=self._agent.rejections,
            watch_connected=self._watch.connected,
            watch_failures=self._watch.failures,
            draining=self._drain.started,
        )
        return Response(metrics.exposition(numbers, self._sources, envoy_text))

    async def _finish(self, request: Request) -> Response:
        limit = _number(request, "limit", self._agent.drain_seconds)
        grace = _number(request, "grace", DEFAULT_DRAIN_GRACE_SECONDS)
        drained = await self._drain.finish(limit, grace)
        return Response(json.dumps(asdict(drained)), content_type=JSON)


async def _routed(routes: Mapping[tuple[str, str], Route], request: Request) -> Response:
    route = routes.get((request.method, request.path))
    if route is None:
        return Response("not found\n", HTTPStatus.NOT_FOUND)
    return await route(request)


def _number(request: Request, name: str, default: float) -> float:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        raise BadRequest(f"{name}={text!r} is not a number") from None
