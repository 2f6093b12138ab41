"""``make demo``: the demo in a sandbox that lives as long as it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from ipaddress import IPv4Network
from pathlib import Path

from moe_operator.sandbox.loopback import DEFAULT_RANGE

from e2e.checkpoints import build

from .backend import Backend, Supplies
from .demo import CHECKPOINT, Demo, demo_object
from .replace_revision import Wish
from .sandbox_backend import sandbox_backend

NEXT_IMAGE = "moe-operator/engine-stub:0.33.1"
NEXT = (
    "make demo KEEP=1                        the same, and the cluster stays up to look around",
    "make demo-kind                          the same on a real Kubernetes on this machine",
    ".venv/bin/moe-operator sandbox --help   your own MoEDeployments on this machine",
    "make test                               everything that is checked before a change goes in",
    "docs/getting-started.md                 what you have just seen, step by step",
)


def sandbox_demo(clients: int, requests: int) -> Demo:
    """The demo of ``make demo``."""
    return Demo(demo_wish(clients, requests), demo_cluster, lambda _: NEXT)


def demo_wish(clients: int, requests: int) -> Wish:
    """What is asked of the sandbox."""
    return Wish(demo_object(), NEXT_IMAGE, clients, requests)


@contextlib.asynccontextmanager
async def demo_cluster(wish: Wish, loopback: IPv4Network = DEFAULT_RANGE) -> AsyncIterator[Backend]:
    """A sandbox with what the wish needs."""
    images = (wish.deployment["spec"]["engine"]["image"], wish.next_image)
    with tempfile.TemporaryDirectory(prefix="moe-demo-") as directory:
        await asyncio.to_thread(build, CHECKPOINT, Path(directory, CHECKPOINT))
        async with sandbox_backend(Supplies(images, Path(directory)), loopback) as backend:
            yield backend
