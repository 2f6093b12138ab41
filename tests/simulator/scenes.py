"""Worlds in which scenarios begin."""

from __future__ import annotations

from typing import Any

from tests.simulator.world import EverythingGoes, World, facts, moe_deployment

DSV31 = "https://models.example/dsv31"


async def fresh_world(preset: str = "h20-4x8") -> World:
    """An empty cluster that can reach DeepSeek V3.1."""
    world = await World(preset, admission=EverythingGoes()).build()
    world.kubelet.manifests[DSV31] = facts(DSV31, "deepseek-v3.1", 688_000_000_000)
    return world


async def serving(world: World, **spec: Any) -> None:
    """One deployment, ``k3``, that serves and has come to rest."""
    await world.apply(moe_deployment(**spec))
    await world.until(lambda: world.stable("k3"))
    await world.settle()


async def serving_world(preset: str = "h20-4x8", **spec: Any) -> World:
    """A cluster in which ``k3`` serves."""
    world = await fresh_world(preset)
    await serving(world, **spec)
    return world
