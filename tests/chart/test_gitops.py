"""What Argo CD and Flux make of MoEDeployments in every state, and what they are told to install."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml
from lupa.lua51 import LuaRuntime  # Argo CD runs Lua 5.1
from moe_operator.api import names

from e2e.chart import render
from tests.simulator.scenes import DSV31, fresh_world, serving_world
from tests.simulator.world import World, facts, moe_deployment

Obj = dict[str, Any]
GITOPS = render.REPOSITORY / "manifests" / "gitops"


def documents(path: str) -> list[Obj]:
    return [d for d in yaml.safe_load_all((GITOPS / path).read_text(encoding="utf-8")) if d]


def document(path: str, kind: str) -> Obj:
    (found,) = (d for d in documents(path) if d.get("kind") == kind)
    return dict(found)


def argo_health(obj: Obj) -> tuple[str, str]:
    """Status and message by the Lua in argocd-cm.yaml."""
    (patch,) = documents("argocd/argocd-cm.yaml")
    script = patch["data"][f"resource.customizations.health.{names.GROUP}_{names.KIND}"]
    lua = LuaRuntime()
    check = lua.execute(f"return function(obj)\n{script}\nend")
    answer = check(lua.table_from(obj, recursive=True))
    return str(answer["status"]), str(answer["message"])


def flux_status(obj: Obj) -> str:
    """Status by healthCheckExprs, in Flux's order: generation, failed, current."""
    (rules,) = document("flux/models.yaml", "Kustomization")["spec"]["healthCheckExprs"]
    assert (rules["apiVersion"], rules["kind"]) == (names.API_VERSION, names.KIND)
    if (obj.get("status") or {}).get("observedGeneration") != obj["metadata"]["generation"]:
        return "InProgress"
    for word, expression in (("Failed", rules["failed"]), ("Current", rules["current"])):
        if cel.evaluate(expression, {"status": obj["status"], "metadata": obj["metadata"]}):
            return word
    return "InProgress"


def health(world: World, name: str = "k3") -> tuple[str, str]:
    obj = world.deployment(name)
    return argo_health(obj)[0], flux_status(obj)


async def test_an_object_that_nobody_has_read_is_not_healthy() -> None:
    world = await fresh_world()
    await world.apply(moe_deployment())
    assert health(world) == ("Progressing", "InProgress")
    assert argo_health(world.deployment("k3"))[1] == "the operator has not read this generation yet"


async def test_a_deployment_is_progressing_until_it_serves() -> None:
    world = await fresh_world()
    await world.apply(moe_deployment())
    seen = set()
    while not world.stable("k3"):
        await world.step()
        if not world.is_ready("k3"):
            seen.add(health(world))
    await world.settle()
    assert seen == {("Progressing", "InProgress")}
    assert health(world) == ("Healthy", "Current")


async def test_an_edit_is_progressing_until_the_new_revision_serves() -> None:
    world = await serving_world()
    old = world.status("k3")["activeRevision"]
    await world.edit("k3", lambda spec: spec["engine"].update(image="vllm:green"))
    seen = [health(world)]
    while not (world.stable("k3") and world.status("k3")["activeRevision"] != old):
        seen.append(health(world))
        await world.step()
    await world.settle()
    assert set(seen) == {("Progressing", "InProgress")}
    assert health(world) == ("Healthy", "Current")


async def test_a_spec_that_cannot_work_fails_at_once_with_the_operators_words() -> None:
    world = await fresh_world()
    world.kubelet.manifests[DSV31] = facts(DSV31, "deepseek-v3.1", 2_000_000_000_000)
    await world.apply(moe_deployment())
    await world.until(lambda: world.condition("k3", "Stalled").get("status") == "True")
    assert health(world) == ("Degraded", "Failed")
    assert argo_health(world.deployment("k3"))[1] == world.condition("k3", "Stalled")["message"]


async def test_what_was_said_of_an_older_generation_does_not_count() -> None:
    world = await serving_world()
    world.operator_up = False
    await world.edit("k3", lambda spec: spec["engine"].update(image="vllm:green"))
    assert health(world) == ("Progressing", "InProgress")


async def test_a_deployment_on_its_way_out_is_progressing() -> None:
    world = await serving_world()
    world.operator_up = False
    await world.delete("k3")
    assert argo_health(world.deployment("k3")) == ("Progressing", "being deleted")


def test_a_paused_rollout_is_suspended_and_a_stalled_one_degraded() -> None:
    def obj(**true: str) -> Obj:
        conditions = [{"type": k, "status": "True", "message": m} for k, m in true.items()]
        status = {"observedGeneration": 3, "conditions": conditions}
        return {"metadata": {"generation": 3}, "status": status}

    assert argo_health(obj(Ready="serves", RolloutPaused="asked to")) == ("Suspended", "asked to")
    assert argo_health(obj(Ready="serves", RolloutPaused="x", Stalled="why")) == ("Degraded", "why")
    assert argo_health(obj(Degraded="one group of two")) == ("Degraded", "one group of two")
    assert argo_health(obj()) == ("Progressing", "")


@pytest.mark.parametrize(
    "values",
    [
        document("argocd/operator.yaml", "Application")["spec"]["source"]["helm"]["valuesObject"],
        document("flux/operator.yaml", "HelmRelease")["spec"]["values"],
    ],
    ids=["argocd", "flux"],
)
def test_the_values_are_ones_that_the_chart_takes(values: Obj) -> None:
    (deployment,) = (o for o in render.objects(values) if o["kind"] == "Deployment")
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.startswith("registry.example.org/moe-operator:")


def test_chart_paths_and_versions_are_those_of_this_repository() -> None:
    about = render.chart_yaml()
    application = document("argocd/operator.yaml", "Application")["spec"]["source"]
    release = document("flux/operator.yaml", "HelmRelease")["spec"]["chart"]["spec"]
    source = document("flux/operator.yaml", "GitRepository")["spec"]
    for path in (application["path"], release["chart"]):
        assert render.REPOSITORY / path == render.CHART
    assert application["targetRevision"] == source["ref"]["tag"] == f"v{about['version']}"


def test_models_and_operator_are_apart_and_models_are_never_pruned() -> None:
    assert document("argocd/models.yaml", "Application")["spec"]["syncPolicy"]["automated"]["prune"] is False
    assert document("flux/models.yaml", "Kustomization")["spec"]["prune"] is False


def test_every_file_is_yaml_of_known_kinds() -> None:
    kinds = {str(p.relative_to(GITOPS)): [d.get("kind") for d in documents(str(p))] for p in _files()}
    assert kinds == {
        "argocd/argocd-cm.yaml": [None],
        "argocd/operator.yaml": ["Application"],
        "argocd/models.yaml": ["Application"],
        "flux/operator.yaml": ["Namespace", "GitRepository", "HelmRelease"],
        "flux/models.yaml": ["GitRepository", "Kustomization"],
    }


def _files() -> Iterator[Path]:
    return (path for path in GITOPS.rglob("*") if path.is_file())
