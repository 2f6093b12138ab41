"""The gateway of a whole deployment in the sandbox: keys from a Secret, pods that change without a sound."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from moe_operator.api.names import ANNOTATION_REFRESH_KEYS
from moe_operator.gateway.keys import keyring
from moe_operator.runtime.kube import POD, SECRET

from tests.deployments.site import GATEWAY_PORT, Obj, Site, moe_deployment

QUESTION = {"model": "dsv31", "prompt": "Hi", "max_tokens": 2}


def secret(**keys: str) -> Obj:
    """``id="key"`` as the Secret that a gateway reads."""
    sums = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in keys.items()}
    meta = {"name": "keys", "namespace": "default"}
    return {"apiVersion": "v1", "kind": SECRET.kind, "metadata": meta, "stringData": sums}


async def status_of(site: Site, key: str = "") -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=site.gateway_url(), timeout=30) as client:
        return (await client.post("/v1/completions", json=QUESTION, headers=headers)).status_code


@asynccontextmanager
async def clients(site: Site, number: int = 4) -> AsyncIterator[Counter[int | str]]:
    """Clients that keep asking, one request after the other; counts what they got."""
    seen: Counter[int | str] = Counter()
    stop = asyncio.Event()

    async def ask() -> None:
        while not stop.is_set():
            try:
                seen[await status_of(site)] += 1
            except httpx.HTTPError as error:
                seen[repr(error)] += 1

    tasks = [asyncio.create_task(ask()) for _ in range(number)]
    try:
        yield seen
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def test_keys_of_a_secret_open_the_gateway_and_changes_of_it_are_taken_up(site: Site) -> None:
    gateway = {"service": {"port": GATEWAY_PORT}, "auth": {"secretRef": {"name": "keys"}}}
    deployment = moe_deployment(gateway=gateway)
    await site.apply(deployment)
    await site.until(site.stable, "it is stable before there is any key")
    assert await status_of(site) == await status_of(site, "first") == 401, "closed without its Secret"
    assert "it has none: nobody gets in" in site.condition("GatewayReady")["message"]
    pods = site.uids("gateway")
    await site.apply(secret(alice="first"))
    await until_status(site, "first", 200)
    await site.apply(secret(alice="second"))
    deployment["metadata"]["annotations"] = {ANNOTATION_REFRESH_KEYS: "now"}
    await site.apply(deployment)
    wanted = keyring(secret(alice="second")["stringData"]).digest
    await site.until(lambda: site.status()["gateway"]["keysDigest"] == wanted, "the second key is in force")
    answers = [(await status_of(site, "first"), await status_of(site, "second")) for _ in range(4)]
    assert set(answers) == {(401, 200)}, "from then on in every pod"
    assert site.uids("gateway") == pods, "no pod was restarted for it"
    assert "API keys of Secret keys are asked for" in site.condition("GatewayReady")["message"]


async def until_status(site: Site, key: str, status: int) -> None:
    """Every gateway pod has noticed when many answers in a row agree: the Service takes turns."""
    async with asyncio.timeout(60):
        in_row = 0
        while in_row < 6:
            in_row = in_row + 1 if await status_of(site, key) == status else 0


async def test_gateway_pods_are_replaced_and_deleted_without_a_failed_request(site: Site) -> None:
    await site.apply(moe_deployment())
    await site.until(site.stable, "it is stable")
    before = site.uids("gateway")
    async with clients(site) as seen:
        rollout = {"drainSeconds": 60}  # part of the pods' template
        await site.apply(moe_deployment(rollout=rollout))
        await site.until(lambda: not before & site.uids("gateway"), "every gateway pod is a new one")
        await site.until(site.stable, "it is stable again")
        victim = site.pods("gateway")[0]["metadata"]
        await site.sandbox.kube.delete(POD, "default", victim["name"])
        await site.until(lambda: victim["uid"] not in site.uids("gateway"), "the deleted pod is gone")
        await site.until(lambda: len(site.uids("gateway")) == 2 and site.stable(), "it has a successor")
    assert set(seen) == {200} and seen[200] > 20, seen
