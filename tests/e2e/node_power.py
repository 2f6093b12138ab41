"""A node that loses its power with everything on it, and gets it back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from moe_operator.runtime.kube import NODE

from e2e.cluster import lifecycle, nodes
from e2e.cluster.command import run
from e2e.cluster.progress import Progress
from e2e.kind.bring_up import cluster_spec
from tests.e2e.world import World

Obj = dict[str, Any]


async def power_off(node: str) -> None:
    """Every process of the node is gone at once; its disk stays."""
    await asyncio.to_thread(run, "docker", "kill", node)


async def power_on(world: World, node: str) -> None:
    """Start the node and wait until it can be used as before: wired, Ready, with its GPUs."""
    folders, since = world.backend.folders, datetime.now(UTC).replace(microsecond=0)
    spec = cluster_spec(folders)
    await asyncio.to_thread(lifecycle.start_again, spec, (node,), folders, Progress())

    async def whole() -> bool:
        # Until the kubelet has registered again the Node is a memory, and registering takes its GPUs away.
        found = await world.kube.get(NODE, None, node)
        if not nodes.is_ready(found) or last_heartbeat(found) < since:
            return False
        listed = list((await world.kube.list(NODE)).items)
        return (
            await asyncio.to_thread(nodes.pretend_gpus, world.site.record.client, spec.topology, listed) == 0
        )

    await world.poll(whole, f"{node} is back with its GPUs")


def last_heartbeat(node: Obj) -> datetime:
    """When the node's kubelet last reported its state."""
    ready = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
    return datetime.fromisoformat(ready["lastHeartbeatTime"])
