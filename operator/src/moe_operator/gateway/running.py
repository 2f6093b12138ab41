"""The agent of a running gateway pod: its parts, wired together."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from moe_operator.api.intent import Intent
from moe_operator.gateway.accounting import Accounting
from moe_operator.gateway.address import Address
from moe_operator.gateway.admin import Admin
from moe_operator.gateway.admission import Admission
from moe_operator.gateway.agent import Agent
from moe_operator.gateway.drain import Drain
from moe_operator.gateway.listen import listening
from moe_operator.gateway.service import Service
from moe_operator.gateway.site import room_beside
from moe_operator.gateway.store import Store
from moe_operator.gateway.validate import find_envoy
from moe_operator.gateway.waiting_room import WaitingRoom
from moe_operator.gateway.watch import ApiServer, WatchState, follow

_log = logging.getLogger(__name__)


async def serve(
    xds: Path, mounted: Path, api: ApiServer, config_map: str, admin: Address, listen: Address, own: Address
) -> None:
    """Follow the intent and answer for Envoy until cancelled; OSError when an address is taken.

    ``listen`` is for everybody, ``own`` for the pod itself.
    """
    watch = WatchState()
    async with Admin(admin) as envoy:
        store = Store(xds.absolute())
        admission, accounting = Admission(store), Accounting(store)

        async def before_routes(intent: Intent) -> tuple[str, ...]:
            accounting.adopt(intent)
            return await admission.adopt(intent)

        room_address = room_beside(admin)
        agent = Agent(store, envoy, find_envoy(), room_address, before_routes, admission.in_force)
        room = WaitingRoom(lambda: agent.intent, agent.engines_ready)
        sources = (accounting.metrics, admission.metrics, room.metrics)
        service = Service(agent, envoy, Drain(envoy), watch, sources)
        async with (
            listening(listen, service.handle),
            listening(own, service.handle_own_pod),
            room.open(room_address),
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(agent.keep_settled())
            tasks.create_task(admission.keep_fresh())
            tasks.create_task(accounting.listen())
            tasks.create_task(accounting.keep_settled())
            tasks.create_task(follow(api, config_map, mounted, agent.offer, watch))
            _log.info("agent started", extra={"fields": {"listen": str(listen), "api": api.url}})
