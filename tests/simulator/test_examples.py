"""Every example is accepted, finds its nodes on the machines it is meant for, and serves from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from moe_operator.api import structural
from moe_operator.api.crd import custom_resource_definition
from moe_operator.api.spec import MoEDeployment
from moe_operator.runtime.kube import NODE

from tests.golden import assert_golden
from tests.simulator.world import World, facts

Obj = dict[str, Any]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "manifests" / "examples"
GOLDEN = Path(__file__).parent / "golden"
SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@dataclass(frozen=True)
class Site:
    """Where an example is meant to run, and what it finds at its source."""

    nodes: str
    config: str
    size: int
    layout: str


DEEPSEEK_BYTES = 688_574_632_767
SITES = {
    "kimi-k3-4x8-h20": Site("h20-4x8", "kimi-k3", 1_560_860_324_864, "TP8·DP4·EP32 on 4×8"),
    "deepseek-v3.1-2x8-h20": Site("h20-4x8", "deepseek-v3.1", DEEPSEEK_BYTES, "TP8·DP2·EP16 on 2×8"),
    "qwen3-235b-1x8-h100": Site("h100-2x8", "qwen3-235b-a22b-fp8", 236_445_455_360, "TP8·EP8 on 1×8"),
    "deepseek-r1-gb200-nvl72": Site("gb200-nvl72-2x36", "deepseek-r1", DEEPSEEK_BYTES, "TP4·DP4·EP16 on 4×4"),
    "deepseek-v3.1-sglang-2x8-h200": Site("h200-2x8", "deepseek-v3.1", DEEPSEEK_BYTES, "TP8·DP2·EP16 on 2×8"),
}


def example(name: str) -> Obj:
    return dict(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()))


async def served(name: str) -> tuple[World, Obj]:
    site, obj = SITES[name], example(name)
    world = await World(site.nodes).build()
    source = obj["spec"]["model"]["source"]
    world.kubelet.manifests[source] = facts(source, site.config, site.size)
    await world.apply(obj)
    await world.until(lambda: world.stable(obj["metadata"]["name"]))
    return world, obj


def test_every_example_has_a_site() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(SITES)


@pytest.mark.parametrize("name", SITES)
def test_the_schema_takes_every_word_of_it(name: str) -> None:
    obj = example(name)
    assert structural.prune(SCHEMA, obj) == obj, "nothing in it is unknown"
    assert structural.violations(SCHEMA, structural.default(SCHEMA, obj)) == []
    MoEDeployment.parse(obj)


@pytest.mark.parametrize("name", SITES)
async def test_it_serves_from_whole_nodes_of_its_own_with_the_planned_layout(name: str) -> None:
    world, obj = await served(name)
    status = world.status(obj["metadata"]["name"])
    assert status["plan"]["layout"]["summary"] == SITES[name].layout
    replicas, nodes = obj["spec"].get("replicas", 1), obj["spec"]["accelerators"]["nodes"]
    assert status["readyReplicas"] == replicas
    ranks = [r for p in status["placement"] for r in p["ranks"]]
    assert len({r["node"] for r in ranks}) == len(ranks) == replicas * nodes
    bound = {p["metadata"]["name"]: p["spec"]["nodeName"] for p in world.engine_pods()}
    assert sorted(bound.values()) == sorted(r["node"] for r in ranks)


async def test_the_rack_example_stays_inside_one_clique() -> None:
    world, obj = await served("deepseek-r1-gb200-nvl72")
    [placement] = world.status(obj["metadata"]["name"])["placement"]
    cliques = {
        n["metadata"]["labels"]["nvidia.com/gpu.clique"]
        for n in world.api.list(NODE).items
        if n["metadata"]["name"] in {r["node"] for r in placement["ranks"]}
    }
    assert cliques == {placement["domain"]}


@pytest.mark.parametrize("name", SITES)
async def test_its_ranks_start_with_these_command_lines(name: str) -> None:
    world, obj = await served(name)
    [revision] = {p["revision"] for p in world.status(obj["metadata"]["name"])["placement"]}
    pods = sorted(
        (p for p in world.engine_pods() if p["metadata"]["labels"]["moe-operator.io/replica"] == "0"),
        key=lambda p: int(p["metadata"]["labels"]["moe-operator.io/rank"]),
    )
    assert_golden(
        GOLDEN / f"{name}.yaml",
        {
            "revision": revision,
            "ranks": [
                {"command": [*engine["command"], *engine["args"]], "env": engine["env"]}
                for engine in (p["spec"]["containers"][0] for p in pods)
            ],
        },
    )
