"""Envoy's admin interface over loopback: read state, start a drain."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Self

import httpx

from moe_operator.gateway import readback
from moe_operator.gateway.address import Address
from moe_operator.gateway.readback import Host, Reading, Subscriptions

TIMEOUT_SECONDS = 2.0
EXPORTED_STATS = (
    r"^(http\.ingress\.(downstream_rq_(active|total|time|xx|.xx|idle_timeout)|downstream_cx_(active|total))"
    r"|cluster\.all\.(upstream_rq_(active|total|time|xx|.xx|retry.*|pending_.*|timeout|cancelled)"
    r"|upstream_cx_(active|connect_fail|none_healthy)|membership_(healthy|total)|lb_.*panic"
    r"|outlier_detection\.ejections_active|circuit_breakers\.default\.remaining_.*|update_rejected)"
    r"|(cluster_manager\.cds|http\.ingress\.rds\.gateway|listener_manager\.lds)\.update_rejected"
    r"|extension_config_discovery\.http_filter\.moe\..*\.(update_rejected|config_fail)"
    r"|sds\..*\.(update_rejected|key_rotation_failed)|listener\..*\.expiration_unix_time_seconds"
    r"|access_logs\.fluentd\.agent\.entries_lost"
    r"|listener_manager\.listener_modified|server\.(memory_allocated|uptime|live))"
)


class EnvoyAway(Exception):
    """Envoy's admin interface did not answer: not started yet, restarting or gone."""


class Admin:
    """One Envoy, asked over HTTP; every method raises :class:`EnvoyAway` when it does not answer."""

    def __init__(self, address: Address) -> None:
        self._http = httpx.AsyncClient(base_url=f"http://{address}", timeout=TIMEOUT_SECONDS, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def read(self) -> Reading:
        """Liveness, versions, endpoints and weights."""
        state, subscriptions = await asyncio.gather(self.state(), self.subscriptions())
        # after the versions: what is told of a version is never from before it
        hosts, endpoints = await asyncio.gather(
            self.hosts(), self._json("/config_dump?include_eds&resource=dynamic_endpoint_configs")
        )
        return Reading(state == "LIVE", subscriptions, hosts, readback.weights(endpoints))

    async def hosts(self) -> tuple[Host, ...]:
        """Every engine that Envoy knows."""
        return readback.hosts(await self._json("/clusters?format=json"))

    async def state(self) -> str:
        """``LIVE``, ``DRAINING``, ``PRE_INITIALIZING`` or ``INITIALIZING``."""
        return (await self._ask("GET", "/ready")).text.strip()

    async def subscriptions(self) -> Subscriptions:
        """Which versions Envoy runs and how often it has refused one."""
        return readback.subscriptions(await self._text("/stats", filter=readback.SUBSCRIPTION_FILTER))

    async def active_requests(self) -> int:
        """Requests that clients are waiting for or reading right now."""
        values = readback.stats(await self._text("/stats", filter=f"^{readback.ACTIVE_REQUESTS}$"))
        return int(values.get(readback.ACTIVE_REQUESTS, "0"))

    async def prometheus(self) -> str:
        """Envoy's own metrics that matter here, in Prometheus' text format."""
        return await self._text("/stats/prometheus", filter=EXPORTED_STATS)

    async def start_draining(self) -> None:
        """Fail the readiness answer and ask clients to close; the listener stays open."""
        await self._ask("POST", "/healthcheck/fail")
        await self._ask("POST", "/drain_listeners?graceful&skip_exit")

    async def _text(self, path: str, **params: str) -> str:
        return (await self._ask("GET", path, params=params)).raise_for_status().text

    async def _json(self, path: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(await self._text(path))
        return value

    async def _ask(self, method: str, path: str, params: dict[str, str] | None = None) -> httpx.Response:
        try:
            return await self._http.request(method, path, params=params or None)
        except httpx.HTTPError as error:
            raise EnvoyAway(f"{method} {path}: {error!r}") from error
