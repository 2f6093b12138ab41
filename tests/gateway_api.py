"""HTTPRoutes of Gateway API, as clusters serve them: the published CRD, for as long as a test needs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import yaml
from moe_operator.runtime.kube import CRD, HTTP_ROUTE, ApiError, Kube, Obj

FILE = Path(__file__).parent / "data" / "gateway-api" / "httproutes.yaml"
DEADLINE = 60.0
POLL = 0.05


@cache
def http_route_crd() -> Obj:
    """The CRD, byte for byte the project's (see tests/data/gateway-api/SOURCE.md)."""
    crd: Obj = yaml.load(FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return crd


@asynccontextmanager
async def http_routes(kube: Kube) -> AsyncIterator[None]:
    """Have the API server serve HTTPRoutes; a server that did before goes on serving them afterwards."""
    there = await _served(kube)
    if not there:
        await kube.create(http_route_crd())
        await _until_served(kube, True)
    try:
        yield
    finally:
        if not there:
            await kube.delete(CRD, None, http_route_crd()["metadata"]["name"])
            await _until_served(kube, False)


async def _until_served(kube: Kube, wanted: bool) -> None:
    async with asyncio.timeout(DEADLINE):
        while await _served(kube) is not wanted:
            await asyncio.sleep(POLL)


async def _served(kube: Kube) -> bool:
    try:
        await kube.list(HTTP_ROUTE)
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return True
