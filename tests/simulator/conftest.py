from __future__ import annotations

from copy import deepcopy

import pytest

from tests.simulator.scenes import fresh_world, serving_world
from tests.simulator.world import World

_BUILT: dict[str, World] = {}


@pytest.fixture
async def fresh() -> World:
    """An empty cluster of 4×8 H20."""
    return await fresh_world()


@pytest.fixture
async def served() -> World:
    """4×8 H20 on which ``k3`` serves from two nodes; built once, every test gets its own copy."""
    if "served" not in _BUILT:
        _BUILT["served"] = await serving_world()
    return deepcopy(_BUILT["served"])
