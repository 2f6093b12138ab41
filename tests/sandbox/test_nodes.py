from __future__ import annotations

import pytest
from moe_operator.hardware.nodes import GpuNode, unusable
from moe_operator.runtime.kube import NODE
from moe_operator.sandbox import nodes
from moe_operator.sandbox.api import MemoryApi, MemoryKube
from moe_operator.sandbox.nodes import PRESETS, build_nodes, node_status

NOW = 1_800_000_000.0


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_nodes_that_the_operator_can_use(preset: str) -> None:
    built = build_nodes(preset)
    assert len(built) == PRESETS[preset].count
    assert len({n["metadata"]["name"] for n in built}) == len(built)
    for made in built:
        read = GpuNode.from_node({**made, "status": node_status(made, "127.60.0.2", NOW)}, "nvidia.com/gpu")
        assert unusable(read) == ""
        assert read.product == PRESETS[preset].machine.product
        assert read.allocatable == PRESETS[preset].machine.gpus
        assert read.memory_mib > 80_000


def cliques(preset: str) -> list[str]:
    return [n["metadata"]["labels"].get("nvidia.com/gpu.clique", "") for n in build_nodes(preset)]


def test_only_racks_have_cliques() -> None:
    assert set(cliques("h20-4x8")) == {""}
    assert len(set(cliques("gb200-nvl72"))) == 1
    two = cliques("gb200-nvl72-2x36")
    assert [two.count(c) for c in sorted(set(two))] == [9, 9]
    assert {c.rpartition(".")[0] for c in two} == {cliques("gb200-nvl72-2x36")[0].rpartition(".")[0]}


def test_eight_machines_hang_on_two_leaves() -> None:
    leaves = [n["metadata"]["labels"]["fabric.topograph.run/tier-0"] for n in build_nodes("h20-8x8")]
    assert leaves == ["leaf-0"] * 4 + ["leaf-1"] * 4


async def test_a_heartbeat_is_written_when_it_is_news_or_old() -> None:
    kube = MemoryKube(MemoryApi(clock=lambda: NOW))
    assert await nodes.register(kube, "h20-2x8") == ("h20-0", "h20-1")

    async def beat(after: float) -> str:
        await nodes.heartbeat(kube, NOW + after, lambda name: f"127.60.0.{name[-1]}")
        return (await kube.list(NODE)).resource_version

    first = await beat(0)
    assert await beat(10) == first
    assert await beat(299) == first
    assert await beat(300) != first
    made = await kube.get(NODE, None, "h20-1")
    assert {a["type"]: a["address"] for a in made["status"]["addresses"]} == {
        "InternalIP": "127.60.0.1",
        "Hostname": "h20-1",
    }
