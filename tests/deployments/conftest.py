"""Whole deployments in the sandbox: the real operator, stager, Envoy and agent, and the engine stub."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from moe_operator.sandbox.images import Images
from moe_operator.sandbox.objects import Key
from moe_operator.sandbox.run import Sandbox, SandboxConfig

from e2e.checkpoints import build
from tests.deployments.site import Site

RANGE = IPv4Network("127.96.0.0/12")
ROOT = Path(__file__).parents[2]
STUB = f"env PYTHONPATH={ROOT} {sys.executable} -m e2e.engine_stub vllm serve"


def images(**others: str) -> Images:
    """``stub:…`` is the engine stub; ``others``: image → command."""
    return Images.parse([f"stub={STUB}", *(f"{name}={command}" for name, command in others.items())])


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory behind the claim ``checkpoints``: two synthetic checkpoints."""
    path = tmp_path_factory.mktemp("checkpoints")
    for name in ("deepseek-v3.1", "kimi-k3"):
        build(name, path / name)
    return path


@asynccontextmanager
async def built(state: Path, checkpoints: Path) -> AsyncIterator[Site]:
    """Four H20 nodes; images ``stub:…`` are the engine stub."""
    config = SandboxConfig(
        images=images(),
        claims={Key("default", "checkpoints"): checkpoints},
        state_dir=state,
        loopback=RANGE,
    )
    async with Sandbox(config) as sandbox:
        yield Site(sandbox)


@pytest.fixture
async def site(tmp_path: Path, checkpoints: Path) -> AsyncIterator[Site]:
    """A sandbox of the test's own."""
    async with built(tmp_path / "state", checkpoints) as site:
        yield site
