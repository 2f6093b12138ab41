from __future__ import annotations

from collections.abc import AsyncIterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from moe_operator.sandbox.container import Timing
from moe_operator.sandbox.images import Images
from moe_operator.sandbox.objects import Key
from moe_operator.sandbox.run import Sandbox, SandboxConfig

RANGE = IPv4Network("127.60.0.0/14")
QUICK = Timing(
    restart_backoff=0.2,
    restart_backoff_max=1.0,
    image_backoff=0.2,
    image_backoff_max=0.4,
    config_retry=0.1,
    volume_retry=0.1,
)
IMAGES = Images.parse(["sh=sh", "python=python3", "broken=/no/such/command"])


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The directory behind the claim ``models``."""
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture
async def sandbox(tmp_path: Path, models: Path) -> AsyncIterator[Sandbox]:
    """Four H20 nodes, images ``sh`` and ``python``, an impatient kubelet."""
    config = SandboxConfig(
        images=IMAGES,
        claims={Key("default", "models"): models},
        state_dir=tmp_path / "state",
        loopback=RANGE,
        timing=QUICK,
        operator=False,
    )
    async with Sandbox(config) as running:
        yield running
