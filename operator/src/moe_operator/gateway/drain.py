"""Let a gateway end without a client noticing.

Envoy stops looking ready and asks keep-alive clients to close, but goes on accepting: endpoints of a
Service disappear from the nodes a little later than the pod is told to go. Done when no request is in
flight and that grace has passed, or when the time for draining is over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx

from moe_operator.gateway.address import Address
from moe_operator.gateway.admin import Admin, EnvoyAway

LOOK_SECONDS = 0.2
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Drained:
    """How a drain ended: ``cut`` requests were still in flight."""

    cut: int
    envoy_gone: bool = False


class Drain:
    """At most one drain per life of the pod; whoever asks again waits for the same one."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._task: asyncio.Task[Drained] | None = None

    @property
    def started(self) -> bool:
        """Whether this gateway is on its way out."""
        return self._task is not None

    async def finish(self, limit: float, grace: float) -> Drained:
        """Drain for at least ``grace`` and at most ``limit`` seconds; the first caller's numbers count."""
        if self._task is None:
            self._task = asyncio.create_task(self._drain(limit, grace))
        return await asyncio.shield(self._task)

    async def _drain(self, limit: float, grace: float) -> Drained:
        clock = asyncio.get_running_loop().time
        start = clock()
        try:
            await self._admin.start_draining()
            while True:
                active = await self._admin.active_requests()
                passed = clock() - start
                if passed >= limit or (active == 0 and passed >= grace):
                    return Drained(cut=active)
                await asyncio.sleep(LOOK_SECONDS)
        except EnvoyAway:
            return Drained(cut=0, envoy_gone=True)


def ask(agent: Address) -> str:
    """Ask the agent of this pod to drain and wait until it has; its answer as JSON. httpx.HTTPError if none.

    Without a time limit of its own: the kubelet's grace period is the limit of a preStop hook.
    """
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    answer = httpx.post(f"http://{agent}/drain", timeout=timeout, trust_env=False)
    return answer.raise_for_status().text
