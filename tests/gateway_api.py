"""Gateway API and its inference extension: the published CRDs, for as long as a test needs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import yaml
from moe_operator.runtime.kube import CRD, HTTP_ROUTE, INFERENCE_POOL, ApiError, Kind, Kube, Obj

DATA = Path(__file__).parent / "data" / "gateway-api"
PUBLISHED = (HTTP_ROUTE, INFERENCE_POOL)
DEADLINE = 60.0
POLL = 0.05


@cache
def published_crd(kind: Kind) -> Obj:
    """The CRD, byte for byte its project's (see tests/data/gateway-api/SOURCE.md)."""
    text = (DATA / f"{kind.plural}.yaml").read_text(encoding="utf-8")
    crd: Obj = yaml.load(text, yaml.CSafeLoader)
    return crd


@asynccontextmanager
async def gateway_api(kube: Kube, kind: Kind) -> AsyncIterator[None]:
    """Have the API server serve ``kind``; a server that did before goes on serving it afterwards."""
    there = await _served(kube, kind)
    if not there:
        await kube.create(published_crd(kind))
        await _until_served(kube, kind, True)
    try:
        yield
    finally:
        if not there:
            await kube.delete(CRD, None, published_crd(kind)["metadata"]["name"])
            await _until_served(kube, kind, False)


async def _until_served(kube: Kube, kind: Kind, wanted: bool) -> None:
    async with asyncio.timeout(DEADLINE):
        while await _served(kube, kind) is not wanted:
            await asyncio.sleep(POLL)


async def _served(kube: Kube, kind: Kind) -> bool:
    try:
        await kube.list(kind)
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return True
