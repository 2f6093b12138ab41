"""The plan in the operator: what it decides reaches pods, records and status, and is kept."""

from __future__ import annotations

from typing import Any

import pytest
from moe_operator.api.names import LABEL_REVISION
from moe_operator.api.spec import MoEDeployment
from moe_operator.planning.plan import Layout
from moe_operator.resources.manifest_config_map import manifest_of
from moe_operator.rollout.revision import record, recorded, revision_of
from moe_operator.runtime.kube import CONFIG_MAP, CONTROLLER_REVISION, JOB, POD

from tests.simulator.world import World, facts, moe_deployment

Obj = dict[str, Any]
K3 = "https://models.example/kimi-k3"
DSV31 = "https://models.example/dsv31"


@pytest.fixture
async def world() -> World:
    world = await World("h20-4x8").build()
    world.kubelet.manifests[K3] = facts(K3, "kimi-k3", 1_560_860_324_864)
    world.kubelet.manifests[DSV31] = facts(DSV31, "deepseek-v3.1", 688_000_000_000)
    return world


def kimi(**spec: Any) -> Obj:
    accelerators = {"product": "NVIDIA-H20", "nodes": 4}
    return moe_deployment(**{"model": {"source": K3}, "accelerators": accelerators, **spec})


def engine_args(world: World) -> list[list[str]]:
    return [pod["spec"]["containers"][0]["args"] for pod in world.engine_pods()]


def value_of(args: list[str], flag: str) -> str | None:
    return args[args.index(flag) + 1] if flag in args else None


async def test_an_engine_is_told_the_length_that_fits_where_the_models_own_does_not(world: World) -> None:
    await world.apply(kimi())
    await world.until(lambda: world.stable("k3"))
    planned = world.status("k3")["plan"]["maxModelLen"]
    assert 100_000 < planned < 1_048_576
    assert {value_of(args, "--max-model-len") for args in engine_args(world)} == {str(planned)}


async def test_an_engine_that_can_take_the_models_own_length_is_told_nothing(world: World) -> None:
    await world.apply(moe_deployment())
    await world.until(lambda: world.stable("k3"))
    assert world.status("k3")["plan"]["maxModelLen"] == 163_840
    assert {value_of(args, "--max-model-len") for args in engine_args(world)} == {None}


async def test_what_the_resolver_of_an_earlier_source_says_is_not_taken_for_the_new_one(world: World) -> None:
    await world.apply(moe_deployment(accelerators={"product": "NVIDIA-H20", "nodes": 4}))
    await world.until(lambda: bool(world.api.list(JOB).items))
    world.operator_up = False
    for _ in range(5):
        await world.step()
    await world.edit("k3", lambda s: s["model"].update(source=K3))
    world.operator_up = True
    await world.until(lambda: world.stable("k3"))
    assert world.status("k3")["model"]["source"] == K3
    manifests = [
        manifest_of(o) for o in world.api.list(CONFIG_MAP).items if "manifest" in o["metadata"]["name"]
    ]
    assert [m.source for m in manifests] == [K3]
    assert not world.api.list(JOB, labels="app.kubernetes.io/component=resolver").items


async def test_what_the_user_asked_for_is_what_the_engine_is_told(world: World) -> None:
    engine = {"type": "vLLM", "image": "vllm:blue", "maxModelLen": 8192}
    await world.apply(kimi(engine=engine))
    await world.until(lambda: world.stable("k3"))
    assert {value_of(args, "--max-model-len") for args in engine_args(world)} == {"8192"}


async def test_the_status_shows_the_memory_of_a_rank_and_what_it_allows(world: World) -> None:
    await world.apply(kimi())
    await world.until(lambda: world.stable("k3"))
    plan = world.status("k3")["plan"]
    assert plan["verdict"] == "Fits" and plan["layout"]["summary"] == "TP8·DP4·EP32 on 4×8"
    rows = {row["name"]: float(row["gibibytes"]) for row in plan["perRank"]}
    assert rows["routed experts"] == 42.1 and rows["KV cache"] > 10
    assert plan["concurrency"] == 4
    assert any("±4 GiB" in said for said in plan["assumptions"])
    assert any("PRECISION_WEIGHT_ONLY" in said for said in plan["assumptions"])


async def test_a_group_restarts_with_the_length_on_its_record(world: World) -> None:
    await world.apply(kimi())
    await world.until(lambda: world.stable("k3"))
    [record] = world.api.list(CONTROLLER_REVISION).items
    before, uids = engine_args(world), {p["metadata"]["uid"] for p in world.engine_pods()}
    assert str(record["data"]["modelLen"]) == value_of(before[0], "--max-model-len")
    victim = world.engine_pods()[1]["metadata"]
    await world.user.delete(POD, victim["namespace"], victim["name"])
    await world.until(lambda: uids.isdisjoint(p["metadata"]["uid"] for p in world.engine_pods()))
    await world.until(lambda: world.stable("k3"))
    assert engine_args(world) == before
    assert [r["metadata"]["uid"] for r in world.api.list(CONTROLLER_REVISION).items] == [
        record["metadata"]["uid"]
    ]


def test_a_planned_length_is_in_the_record_and_in_the_hash_and_its_absence_in_neither() -> None:
    spec = MoEDeployment.parse(moe_deployment()).spec
    layout = Layout(8, 1, 2, True, 2, 8)
    plain, shortened = revision_of(spec, layout, "v", "m"), revision_of(spec, layout, "v", "m", 534_960)
    assert plain.hash != shortened.hash
    assert "modelLen" not in record(plain) and record(shortened)["modelLen"] == 534_960
    for revision in (plain, shortened):
        obj = {
            "metadata": {"labels": {LABEL_REVISION: revision.hash}},
            "data": record(revision),
            "revision": 3,
        }
        [found] = recorded([obj]).values()
        assert (found.layout, found.model_len, found.hash) == (layout, revision.model_len, revision.hash)


async def test_an_edit_that_cannot_work_is_refused_in_the_engines_words_and_blue_serves_on(
    world: World,
) -> None:
    await world.apply(kimi())
    await world.until(lambda: world.stable("k3"))
    serving, pods = world.status("k3")["activeRevision"], {p["metadata"]["uid"] for p in world.engine_pods()}

    def ask_too_much(spec: Obj) -> None:
        spec["engine"]["maxModelLen"] = 1_048_576
        spec["parallelism"] = {"tensor": 8, "data": 4, "expert": True, "decodeContext": 1}

    await world.edit("k3", ask_too_much)
    await world.until(lambda: world.condition("k3", "PlanAccepted")["status"] == "False")
    plan = world.status("k3")["plan"]
    assert plan["verdict"] == "Refused"
    assert [r["code"] for r in plan["refusals"]] == ["KV_CACHE_TOO_SMALL"]
    said = plan["refusals"][0]["message"]
    assert "To serve at least one request with the model's max seq len (1048576)" in said
    assert world.status("k3")["activeRevision"] == serving and world.is_ready("k3")
    assert {p["metadata"]["uid"] for p in world.engine_pods()} == pods

    def take_it_back(spec: Obj) -> None:
        del spec["engine"]["maxModelLen"], spec["parallelism"]

    await world.edit("k3", take_it_back)
    await world.until(lambda: world.condition("k3", "PlanAccepted")["status"] == "True")
    assert world.status("k3")["plan"]["verdict"] == "Fits"
    assert {p["metadata"]["uid"] for p in world.engine_pods()} == pods
