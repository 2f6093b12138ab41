"""``/healthz``, ``/readyz`` and ``/metrics`` of the operator.

Alive means that the event loop answers. Ready means that this process does its part: it watches, or it
stands by for the one that does. A process that lost its part (lease, watches, CRD) ends instead of
reporting unhealthy, so there is nothing else for ``/healthz`` to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from aiohttp import web

from moe_operator.runtime.metrics import CONTENT_TYPE


class Phase(Enum):
    """Where the operator's process is in its life; ``value`` is what ``/readyz`` says."""

    STARTING = "starting: the API server has not answered yet"
    STANDBY = "standing by: another operator holds the lease"
    WATCHING = "watching"
    STOPPING = "stopping"

    @property
    def ready(self) -> bool:
        """Whether ``/readyz`` is 200."""
        return self in {Phase.STANDBY, Phase.WATCHING}


@dataclass(slots=True)
class Vitals:
    """The phase; written by the app, read by the health server."""

    phase: Phase = Phase.STARTING


class HealthServer:
    """Answers on ``host:port``; port 0 takes a free one (see ``address``)."""

    def __init__(self, host: str, port: int, vitals: Vitals, exposition: Callable[[], bytes]) -> None:
        self._host = host
        self._port = port
        self._vitals = vitals
        self._exposition = exposition
        self._runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=0.5)

    async def start(self) -> None:
        """Listen; OSError when the address is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def stop(self) -> None:
        """Stop listening and close connections."""
        await self._runner.cleanup()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port, *_ = self._runner.addresses[0]
        return str(host), int(port)

    def _application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        phase = self._vitals.phase
        return web.Response(status=200 if phase.ready else 503, text=f"{phase.value}\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._exposition(), headers={"Content-Type": CONTENT_TYPE})
