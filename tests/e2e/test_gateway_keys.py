"""API keys on a real cluster: the kubelet brings the Secret, `kubectl moe keys` says when it is in force."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import httpx
from moe_operator.runtime.kube import SECRET

from e2e.cluster.command import run
from tests.e2e.gateway_traffic import NAME, slow_tokens, traffic, whole
from tests.e2e.world import World

Obj = dict[str, Any]
KEYS = "gateway-keys"
PROGRAM = Path(sys.executable).parent / "kubectl-moe"
FRESH_ASKS = 8  # each over a connection of its own, so that both pods are asked


async def keys(world: World, *arguments: str) -> str:
    """``kubectl moe keys …`` as a user of this cluster."""
    record = world.site.record
    path = os.pathsep.join((str(Path(record.kubectl).parent), os.environ["PATH"]))
    env = {"KUBECONFIG": record.kubeconfig, "PATH": path}
    return await asyncio.to_thread(run, PROGRAM, "keys", *arguments, env=env)


async def refresh(world: World) -> str:
    """Seconds until every gateway pod goes by the Secret, as the command tells."""
    said = await keys(world, "refresh", "-n", world.namespace, NAME)
    found = re.search(r"every gateway pod goes by Secret \S+ after (\S+) s", said)
    assert found, said
    return found[1]


async def hold(world: World, **entries: str) -> None:
    """Have the Secret hold these keys and no others; ``id="key"``, dots of an id as two underscores."""
    sums = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in entries.items()}
    data = {name.replace("__", "."): base64.b64encode(each.encode()).decode() for name, each in sums.items()}
    meta = {"name": KEYS, "namespace": world.namespace}
    await world.apply({"apiVersion": "v1", "kind": SECRET.kind, "metadata": meta, "data": data})


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def ask(world: World, headers: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(base_url=await world.url(NAME), timeout=60, trust_env=False) as client:
        body = {"model": NAME, "prompt": "Hello", "max_tokens": 1}
        return await client.post("/v1/completions", json=body, headers=headers)


async def answers(world: World, headers: dict[str, str]) -> set[int]:
    return {(await ask(world, headers)).status_code for _ in range(FRESH_ASKS)}


def refused(answer: httpx.Response) -> str:
    """The code of a 401 as OpenAI's clients read it."""
    assert answer.status_code == 401
    assert answer.headers["x-request-id"]
    assert answer.headers["www-authenticate"].startswith("Bearer")
    error = answer.json()["error"]
    assert error["message"]
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    return str(error["code"])


async def test_keys_are_rotated_under_load_without_a_failure(world: World, figures: dict[str, str]) -> None:
    made = await keys(world, "create", "alice", "--secret", KEYS)
    shown = re.search(r"key, shown this once: +(\S+)", made)
    assert shown, made
    old, new = shown[1], "moe-a-second-value-of-the-same-client"
    await hold(world, alice=old)
    asked_for = {"spec": {"gateway": {"auth": {"secretRef": {"name": KEYS}}}}}
    await world.serve(slow_tokens(world, asked_for))
    first = await refresh(world)
    await whole(world)  # the pods that knew no keys are gone
    assert refused(await ask(world, {})) == "missing_api_key"
    assert refused(await ask(world, bearer("moe-of-nobody"))) == "invalid_api_key"

    async with traffic(world, bearer(old)) as flow:
        pods = await world.uids(NAME, "gateway")
        await hold(world, alice=old, alice__2=new)
        added = await refresh(world)
        assert await answers(world, bearer(new)) == {200}
        flow.use(bearer(new))
        await flow.more()
        await hold(world, alice__2=new)
        removed = await refresh(world)
        assert await answers(world, bearer(old)) == {401}
        await flow.more()
        tally = await flow.finish()
    assert await world.uids(NAME, "gateway") == pods, "no pod was replaced for it"
    figures["gateway: keys rotated"] = (
        f"{flow.figure(tally)}; in force after {first}, {added} and {removed} s"
    )
    assert tally.complaints() == []


async def test_a_revoked_key_opens_nothing_once_the_command_has_ended(world: World) -> None:
    await hold(world, alice="moe-alice", bob="moe-bob")
    await world.serve(slow_tokens(world, {"spec": {"gateway": {"auth": {"secretRef": {"name": KEYS}}}}}))
    await whole(world)
    await refresh(world)
    assert await answers(world, bearer("moe-alice")) == {200}
    said = await keys(world, "revoke", "-n", world.namespace, NAME, "alice")
    assert await answers(world, bearer("moe-alice")) == {401}
    assert await answers(world, bearer("moe-bob")) == {200}
    assert "every gateway pod goes by" in said
