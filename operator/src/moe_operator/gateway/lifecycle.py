"""A gateway pod's two moments beside Envoy: before it starts, and while it runs."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from pydantic import ValidationError

from moe_operator.api.intent import Intent
from moe_operator.gateway.admin import Admin
from moe_operator.gateway.agent import Agent
from moe_operator.gateway.drain import Drain
from moe_operator.gateway.listen import listening
from moe_operator.gateway.render import Address, Site, render_intent, render_site
from moe_operator.gateway.service import Service
from moe_operator.gateway.store import Store
from moe_operator.gateway.validate import find_envoy
from moe_operator.gateway.watch import ApiServer, WatchState, follow

_log = logging.getLogger(__name__)


def prepare(xds: Path, mounted: Path, listen: Address, admin: Address) -> None:
    """Write everything Envoy needs to start.

    An intent that is missing or unreadable is no reason not to start: the gateway then answers 503 until
    the agent finds a good one.
    """
    xds.mkdir(parents=True, exist_ok=True)
    site, store = Site(str(xds.absolute()), listen, admin), Store(xds.absolute())
    store.put(render_site(site))
    intent = _read(mounted)
    if store.generation() < (intent.generation if intent else 0):
        store.put(render_intent(intent, site.xds))
    # else the directory outlived a restart of the pod and knows better


def _read(path: Path) -> Intent | None:
    try:
        return Intent.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        _log.warning("mounted intent is unusable", extra={"fields": {"error": str(error)}})
        return None


async def serve(
    xds: Path, mounted: Path, api: ApiServer, config_map: str, admin: Address, listen: Address
) -> None:
    """Follow the intent and answer for Envoy until cancelled; OSError when ``listen`` is taken."""
    watch = WatchState()
    async with Admin(admin) as envoy:
        agent = Agent(Store(xds.absolute()), envoy, find_envoy())
        service = Service(agent, envoy, Drain(envoy), watch)
        async with listening(listen, service.handle), asyncio.TaskGroup() as tasks:
            tasks.create_task(agent.keep_settled())
            tasks.create_task(follow(api, config_map, mounted, agent.offer, watch))
            _log.info("agent started", extra={"fields": {"listen": str(listen), "api": api.url}})
