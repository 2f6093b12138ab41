from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from moe_operator.checkpoint.model_facts import Checkpoint, checkpoint_from_config
from moe_operator.engines.known import ENGINES
from moe_operator.hardware.catalogue import CATALOGUE
from moe_operator.planning.plan import Layout, Pinned, Plan, Request
from moe_operator.planning.planner import fewest_nodes, plan

CONFIGS = Path(__file__).parents[2] / "e2e" / "checkpoints" / "data"
MIB = 1 << 20
GIB = 1 << 30
BYTES = {
    "kimi-k3": 1_560_860_324_864,
    "deepseek-v3.1": 688_574_632_767,
    "deepseek-r1": 688_574_632_767,
    "qwen3-235b-a22b": 470_187_269_120,
    "qwen3-235b-a22b-fp8": 236_445_455_360,
}


def model(name: str) -> Checkpoint:
    return checkpoint_from_config(json.loads((CONFIGS / f"{name}.config.json").read_text()), BYTES[name])


def request(
    name: str = "deepseek-v3.1",
    product: str = "NVIDIA-H20",
    nodes: int | None = 2,
    pinned: Pinned | None = None,
    engine: str = "vLLM",
    **changes: Any,
) -> Request:
    gpu = CATALOGUE[product]
    base = Request(
        engine=engine,
        checkpoint=model(name),
        pinned=pinned or Pinned(),
        nodes=nodes,
        gpus_per_node=gpu.nvlink_gpus,
        domain_gpus=gpu.nvlink_gpus,
        gpu_memory_bytes=gpu.memory_mib * MIB,
        memory_utilization=0.92,
    )
    return replace(base, **changes)


def planned(asked: Request) -> Plan:
    return plan(asked, ENGINES[asked.engine].rules)


def codes(answer: Plan) -> list[str]:
    return [r.code for r in answer.refusals]


@pytest.mark.parametrize(
    ("name", "product", "nodes", "layout"),
    [
        ("kimi-k3", "NVIDIA-H20", 4, "TP8·DP4·EP32 on 4×8"),
        ("deepseek-v3.1", "NVIDIA-H20", 2, "TP8·DP2·EP16 on 2×8"),
        ("deepseek-r1", "NVIDIA-GB200", 4, "TP4·DP4·EP16 on 4×4"),
        ("qwen3-235b-a22b-fp8", "NVIDIA-H100-80GB-HBM3", 1, "TP8·EP8 on 1×8"),
        ("deepseek-v3.1", "NVIDIA-H200", 1, "TP8·EP8 on 1×8"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_published_models_get_the_layouts_people_run(
    name: str, product: str, nodes: int, layout: str, engine: str
) -> None:
    answer = planned(request(name, product, nodes, engine=engine))
    assert answer.refusals == () and answer.verdict == "Fits"
    assert str(answer.layout) == layout


@pytest.mark.parametrize(
    ("name", "product", "nodes"),
    [
        ("kimi-k3", "NVIDIA-H20", 3),  # 1,453.7 GiB over 703.5 GiB a node
        ("deepseek-v3.1", "NVIDIA-H20", 1),
        ("deepseek-v3.1", "NVIDIA-H100-80GB-HBM3", 2),
        ("qwen3-235b-a22b-fp8", "NVIDIA-H100-80GB-HBM3", 1),
        ("kimi-k3", "NVIDIA-GB200", 3),
    ],
)
def test_omitted_nodes_are_the_fewest_whose_gpus_hold_the_weights(
    name: str, product: str, nodes: int
) -> None:
    asked = request(name, product, None)
    assert fewest_nodes(asked) == nodes
    assert planned(asked).layout.nodes == nodes  # type: ignore[union-attr]
    if nodes > 1:
        assert "WEIGHTS_EXCEED_MEMORY" in codes(planned(replace(asked, nodes=nodes - 1)))


@pytest.mark.parametrize(
    ("asked", "code", "words", "fix"),
    [
        (
            request(pinned=Pinned(tensor=8, data=1, pipeline=1)),
            "LAYOUT_GPU_MISMATCH",
            "tensor 8 × pipeline 1 × data 1 = 8 ranks, but 2 node(s) × 8 GPUs = 16",
            "data: 2",
        ),
        (
            request(pinned=Pinned(tensor=3)),
            "LAYOUT_GPU_MISMATCH",
            "= 15 ranks, but 2 node(s) × 8 GPUs = 16",
            "choose tensor × pipeline × data = 16",
        ),
        (
            request(pinned=Pinned(tensor=16)),
            "TP_BEYOND_NVLINK_DOMAIN",
            "tensor parallel 16 is wider than the NVLink domain of 8 GPUs",
            "tensor: 8 or less",
        ),
        (
            request(gpus_per_node=6, domain_gpus=6, pinned=Pinned(tensor=4, data=3)),
            "RANK_STRADDLES_NODES",
            "a data-parallel rank of 4 GPUs does not divide a node of 6",
            "choose tensor × pipeline among [1, 2, 3, 6]",
        ),
        (
            request(nodes=3, pinned=Pinned(tensor=4, pipeline=3, data=2)),
            "RANK_STRADDLES_NODES",
            "a rank of 12 GPUs does not fill whole nodes of 8",
            "multiple of 8",
        ),
        (
            request(nodes=4, pinned=Pinned(tensor=8, pipeline=2, data=2)),
            "DP_OF_SPANNING_RANKS",
            "data parallel 2 of ranks that span 2 nodes each",
            "use replicas instead",
        ),
        (
            request("kimi-k3", nodes=2),
            "WEIGHTS_EXCEED_MEMORY",
            "1,453.7 GiB of weights over 16 GPUs".replace(",", ""),
            "nodes: 3 or more",
        ),
        (
            request(gpus_per_node=6, domain_gpus=6, pinned=Pinned(tensor=6, data=2)),
            "HEADS_NOT_DIVISIBLE",
            "Total number of attention heads (128) must be divisible by tensor parallel size (6).",
            "tensor: 2",
        ),
        (
            request(checkpoint=replace(model("deepseek-v3.1"), kv_heads=12)),
            "KV_HEADS_NOT_DIVISIBLE",
            "12 KV heads neither divide nor are divided by tensor parallel size 8",
            "tensor: 4",
        ),
        (
            request(checkpoint=replace(model("deepseek-v3.1"), routed_experts=0), pinned=Pinned(expert=True)),
            "EXPERT_PARALLEL_WITHOUT_EXPERTS",
            "has no routed experts",
            "parallelism.expert: false",
        ),
        (
            request(balanced_experts=True, redundant_experts=5),
            "EXPERTS_NOT_DIVISIBLE",
            "256 experts + 5 redundant over EP 16",
            "redundantExperts: 16",
        ),
        (
            request(engine="SGLang", redundant_experts=5),
            "EXPERTS_NOT_DIVISIBLE",
            "261 experts (routed 256 + redundant 5) must be divisible by ep_size 16",
            "redundantExperts: 16",
        ),
        (
            request(max_model_len=200_000),
            "MAX_MODEL_LEN_TOO_LONG",
            "User-specified max_model_len (200000) is greater than the derived max_model_len",
            "maxModelLen: 163840 or less",
        ),
        (
            request(pinned=Pinned(decode_context=3)),
            "DCP_NOT_DIVISIBLE",
            "tp_size=8 must be divisible by dcp_size=3.",
            "a divisor of tensor",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else "",
)
def test_what_cannot_start_is_refused_with_numbers_and_a_fix(
    asked: Request, code: str, words: str, fix: str
) -> None:
    answer = planned(asked)
    assert answer.verdict == "Refused"
    found = [r for r in answer.refusals if r.code == code]
    assert found, codes(answer)
    assert words in found[0].message
    assert fix in found[0].fix


def test_all_that_is_wrong_is_said_at_once() -> None:
    assert codes(planned(request("kimi-k3", nodes=1, pinned=Pinned(tensor=16)))) == [
        "LAYOUT_GPU_MISMATCH",
        "TP_BEYOND_NVLINK_DOMAIN",
        "WEIGHTS_EXCEED_MEMORY",
    ]


def test_a_domain_that_may_be_left_lets_tensor_parallelism_span_nodes() -> None:
    answer = planned(request(pinned=Pinned(tensor=16), domain_gpus=None))
    assert answer.refusals == () and "TP16" in str(answer.layout)
    assert any("Preferred" in said for said in answer.assumptions)


def test_pipeline_over_nodes_is_kept_when_pinned() -> None:
    answer = planned(request(pinned=Pinned(pipeline=2)))
    assert answer.layout == Layout(8, 2, 1, True, 2, 8)


def test_expert_parallelism_can_be_turned_off() -> None:
    assert planned(request(pinned=Pinned(expert=False))).layout == Layout(8, 1, 2, False, 2, 8)


def test_a_model_without_facts_is_planned_and_says_what_was_not_checked() -> None:
    answer = planned(replace(request(nodes=None), checkpoint=None))
    assert answer.layout == Layout(8, 1, 1, False, 1, 8) and answer.refusals == ()
    assert any("no facts" in said for said in answer.assumptions)


def test_a_gpu_of_unknown_memory_is_planned_and_says_so() -> None:
    answer = planned(request("kimi-k3", nodes=1, gpu_memory_bytes=None))
    assert answer.refusals == ()
    assert any("memory is not known" in said for said in answer.assumptions)


def test_the_longest_answer_is_the_models_own_unless_asked_for_less() -> None:
    assert planned(request()).max_model_len == 163_840
    assert planned(request(max_model_len=4096)).max_model_len == 4096


pins = st.none() | st.sampled_from([1, 2, 3, 4, 8, 16])
requests = st.builds(
    lambda heads, kv, experts, gib, nodes, gpus, t, p, d, spans: Request(
        engine="vLLM",
        checkpoint=Checkpoint("M", 10, heads, kv, experts, 4096, gib * GIB, ""),
        pinned=Pinned(tensor=t, pipeline=p, data=d),
        nodes=nodes,
        gpus_per_node=gpus,
        domain_gpus=None if spans else gpus,
        gpu_memory_bytes=80 * GIB,
        memory_utilization=0.9,
    ),
    st.sampled_from([8, 12, 64, 96, 128]),
    st.sampled_from([1, 4, 8]),
    st.sampled_from([0, 8, 256]),
    st.integers(1, 2000),
    st.none() | st.integers(1, 8),
    st.sampled_from([1, 4, 6, 8]),
    pins,
    pins,
    pins,
    st.booleans(),
)


@given(requests)
def test_an_accepted_layout_fills_its_gpus_inside_its_domain_with_divisible_heads(asked: Request) -> None:
    answer = planned(asked)
    assert answer == planned(asked)
    layout = answer.layout
    assert layout is not None and layout.gpus_per_node == asked.gpus_per_node
    assume(not answer.refusals)
    assert layout.world == layout.gpus
    assert asked.domain_gpus is None or layout.tensor <= asked.domain_gpus
    assert asked.checkpoint is not None and asked.gpu_memory_bytes is not None
    assert asked.checkpoint.attention_heads % layout.tensor == 0
    share = asked.checkpoint.weight_bytes / layout.gpus
    assert share <= asked.gpu_memory_bytes * asked.memory_utilization
    for pin, chosen in ((asked.pinned.tensor, layout.tensor), (asked.pinned.data, layout.data)):
        assert pin is None or pin == chosen


@given(requests, st.integers(577, 5000))
def test_the_number_of_nodes_that_a_memory_refusal_names_is_enough(asked: Request, gib: int) -> None:
    assert asked.checkpoint
    asked = replace(asked, nodes=1, checkpoint=replace(asked.checkpoint, weight_bytes=gib * GIB))
    [said] = [r for r in planned(asked).refusals if r.code == "WEIGHTS_EXCEED_MEMORY"]
    again = planned(replace(asked, nodes=int(said.fix.split()[1]), pinned=Pinned()))
    assert "WEIGHTS_EXCEED_MEMORY" not in codes(again)


@given(st.sampled_from([8, 12, 64, 96, 128]), st.sampled_from([1, 2, 4, 8, 12]), st.integers(2, 16))
def test_the_tensor_size_that_a_refusal_of_heads_names_is_good(heads: int, kv: int, tensor: int) -> None:
    checkpoint = Checkpoint("M", 10, heads, kv, 8, 4096, GIB, "")
    asked = request(
        checkpoint=checkpoint,
        gpus_per_node=tensor,
        domain_gpus=None,
        nodes=1,
        pinned=Pinned(tensor=tensor),
    )
    for said in planned(asked).refusals:
        better = int(said.fix.removeprefix("tensor: "))
        assert planned(replace(asked, pinned=Pinned(tensor=better))).refusals == ()
