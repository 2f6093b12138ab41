from __future__ import annotations

import httpx
import pytest
from moe_operator.api.names import LABEL_RANK
from moe_operator.runtime.kube import DEPLOYMENT, KINDS, MOE_DEPLOYMENT, POD

from tests.deployments.site import Site, moe_deployment

CHILDREN = ("Pod", "Service", "ConfigMap", "Deployment", "ReplicaSet", "ControllerRevision", "Job", "Role",
            "RoleBinding", "ServiceAccount")  # fmt: skip


def left(site: Site) -> dict[str, list[str]]:
    api = site.sandbox.kube.api
    kinds = [kind for kind in KINDS if kind.kind in CHILDREN]
    found = {k.kind: [o["metadata"]["name"] for o in api.list(k, "default").items] for k in kinds}
    return {kind: names for kind, names in found.items() if names}


async def test_kimi_k3_on_four_nodes_sits_where_its_status_says_and_answers(site: Site) -> None:
    engine = {"type": "vLLM", "image": "stub:blue", "maxModelLen": 131072}
    await site.apply(moe_deployment("k3", "kimi-k3", nodes=4, engine=engine))
    await site.until(lambda: site.stable("k3"), "k3 is stable")
    placed = {r["rank"]: r["node"] for r in site.status("k3")["placement"][0]["ranks"]}
    bound = {int(p["metadata"]["labels"][LABEL_RANK]): p["spec"]["nodeName"] for p in site.pods()}
    assert bound == placed
    assert len(set(bound.values())) == 4
    async with httpx.AsyncClient(base_url=site.gateway_url("k3"), timeout=30) as client:
        models = (await client.get("/v1/models")).json()
        answer = await client.post(
            "/v1/completions", json={"model": "k3", "prompt": "Hello", "max_tokens": 4}
        )
    assert [m["id"] for m in models["data"]] == ["k3"]
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"]


async def kill_nothing(site: Site) -> None:
    return None


async def kill_the_engine(site: Site) -> None:
    site.sandbox.kill(site.engine(1)["metadata"]["name"], "engine")


async def kill_the_gateway(site: Site) -> None:
    await site.sandbox.kube.delete(DEPLOYMENT, "default", "dsv31-gateway")
    for pod in site.pods("gateway"):
        await site.sandbox.kube.delete(POD, "default", pod["metadata"]["name"], grace_seconds=0)


@pytest.mark.parametrize("disaster", [kill_nothing, kill_the_engine, kill_the_gateway])
async def test_deleting_leaves_nothing_whatever_is_dead(site: Site, disaster: object) -> None:
    await site.apply(moe_deployment())
    await site.until(site.stable, "it is stable")
    await disaster(site)  # type: ignore[operator]
    await site.sandbox.kube.delete(MOE_DEPLOYMENT, "default", "dsv31")
    await site.until(lambda: not site.exists(), "the finalizer is gone")
    await site.until(lambda: not left(site), "nothing is left of it")
    await site.until(lambda: not site.sandbox.running(), "no process is left")
