from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from moe_operator.engines.known import ENGINES
from moe_operator.planning.assess import budget_bytes
from moe_operator.planning.assumed import DEFAULTS
from moe_operator.planning.memory_refusals import no_cache
from moe_operator.planning.plan import Layout, Pinned, Request, Stage
from moe_operator.planning.planner import fewest_nodes

from tests.planning.known_models import checkpoint
from tests.planning.questions import GIB, codes, planned, request

K3 = "moonshotai/Kimi-K3"
V3 = "deepseek-ai/DeepSeek-V3"
QWEN = "Qwen/Qwen3-235B-A22B-FP8"


@pytest.mark.parametrize(
    ("name", "product", "nodes", "layout"),
    [
        (K3, "NVIDIA-H20", 4, "TP8·DP4·EP32 on 4×8"),
        (V3, "NVIDIA-H20", 2, "TP8·DP2·EP16 on 2×8"),
        ("deepseek-ai/DeepSeek-R1", "NVIDIA-GB200", 4, "TP4·DP4·EP16 on 4×4"),
        (QWEN, "NVIDIA-H100-80GB-HBM3", 1, "TP8·EP8 on 1×8"),
        (V3, "NVIDIA-H200", 1, "TP8·EP8 on 1×8"),
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
        (K3, "NVIDIA-H20", 3),
        (V3, "NVIDIA-H20", 2),  # one node would hold the weights and nothing else
        (V3, "NVIDIA-H100-80GB-HBM3", 2),
        (QWEN, "NVIDIA-H100-80GB-HBM3", 1),
        (K3, "NVIDIA-GB200", 3),
    ],
)
def test_omitted_nodes_are_the_fewest_that_fit(name: str, product: str, nodes: int) -> None:
    asked = request(name, product, None)
    judges = ENGINES[asked.engine].judges
    assert fewest_nodes(asked, judges) == nodes
    answer = planned(asked)
    assert answer.layout and answer.layout.nodes == nodes and answer.verdict == "Fits"
    if nodes > 1:
        assert planned(replace(asked, nodes=nodes - 1)).verdict != "Fits"


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
            request(K3, nodes=2),
            "WEIGHTS_EXCEED_MEMORY",
            "but a GPU has 95.58 GiB: torch.OutOfMemoryError",
            "nodes: 3 or more",
        ),
        (
            request(K3, "NVIDIA-H200", domain_gpus=None, memory_utilization=0.95,
                    pinned=Pinned(tensor=16, expert=False)),
            "NO_KV_MEMORY",
            "No available memory for the cache blocks.",
            "memoryUtilization",
        ),
        (
            request("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "NVIDIA-H20-3e", 1, max_model_len=262_144,
                    pinned=Pinned(tensor=1, data=8, pipeline=1)),
            "KV_CACHE_TOO_SMALL",
            "(62.00 GiB KV cache is needed, which is larger than the available KV cache memory (52.90 GiB)",
            "engine.maxModelLen: 223664 or less",
        ),
        (
            request(nodes=1, pinned=Pinned(pipeline=64), gpus_per_node=64, domain_gpus=64),
            "MORE_STAGES_THAN_LAYERS",
            "pipeline parallel size 64 is larger than the number of layers (61)",
            "parallelism.pipeline: 61 or less",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else "",
)  # fmt: skip
def test_what_cannot_start_is_refused_with_numbers_and_a_fix(
    asked: Request, code: str, words: str, fix: str
) -> None:
    answer = planned(asked)
    assert answer.verdict == "Refused"
    found = [r for r in answer.refusals if r.code == code]
    assert found, codes(answer)
    assert words in found[0].message
    assert fix in found[0].fix


@pytest.mark.parametrize("name", [K3, "moonshotai/Kimi-K2-Instruct", "MiniMaxAI/MiniMax-M3"])
def test_the_number_of_nodes_that_a_memory_refusal_names_is_enough(name: str) -> None:
    asked = request(name, nodes=1)
    [said] = planned(asked).refusals
    nodes = int(said.fix.removeprefix("nodes: ").split()[0])
    assert planned(replace(asked, nodes=nodes)).verdict != "Refused"


def test_all_that_is_wrong_with_a_shape_is_said_at_once() -> None:
    assert codes(planned(request(K3, nodes=1, pinned=Pinned(tensor=16)))) == [
        "LAYOUT_GPU_MISMATCH",
        "TP_BEYOND_NVLINK_DOMAIN",
    ]


def test_a_domain_that_may_be_left_lets_tensor_parallelism_span_nodes() -> None:
    answer = planned(request(pinned=Pinned(tensor=16), domain_gpus=None))
    assert answer.refusals == () and "TP16" in str(answer.layout)
    assert any("Preferred" in said for said in answer.assumptions)


@pytest.mark.parametrize(
    ("pinned", "layout"),
    [
        (Pinned(pipeline=2), Layout(8, 2, 1, True, 2, 8)),
        (Pinned(expert=False), Layout(8, 1, 2, False, 2, 8)),
        (Pinned(tensor=4, decode_context=4), Layout(4, 1, 4, True, 2, 8, 4)),
        (Pinned(data=16), Layout(1, 1, 16, True, 2, 8)),
    ],
)
def test_what_is_pinned_is_kept(pinned: Pinned, layout: Layout) -> None:
    assert planned(request(pinned=pinned)).layout == layout


def test_a_model_without_facts_is_planned_and_says_what_was_not_checked() -> None:
    answer = planned(replace(request(nodes=None), checkpoint=None))
    assert answer.layout == Layout(8, 1, 1, False, 1, 8) and answer.refusals == ()
    assert any("no facts" in said for said in answer.assumptions)


def test_a_gpu_of_unknown_memory_is_planned_and_says_so() -> None:
    answer = planned(request(K3, nodes=1, gpu_memory_bytes=None))
    assert answer.refusals == () and answer.rows == () and answer.concurrency is None
    assert any("memory is not known" in said for said in answer.assumptions)


def test_the_longest_request_is_the_models_own_unless_asked_for_less_or_no_more_fits() -> None:
    assert planned(request()).max_model_len == 163_840
    assert planned(request(max_model_len=4096)).max_model_len == 4096
    shortened = planned(request(K3, nodes=4)).max_model_len
    assert shortened and shortened < 1_048_576


def test_sglang_starts_with_a_pool_shorter_than_the_context_and_the_plan_is_tight() -> None:
    asked: dict[str, Any] = {"max_model_len": 1_048_576, "pinned": Pinned(tensor=8, data=4, expert=True)}
    answer = planned(request(K3, nodes=4, engine="SGLang", **asked))
    assert answer.verdict == "Tight"
    assert [c.code for c in answer.cautions if c.code == "KV_CACHE_TOO_SMALL"]


def test_more_requests_at_once_make_the_longest_one_shorter() -> None:
    alone = planned(request(K3, nodes=4, pinned=Pinned(tensor=8, data=4, decode_context=1)))
    crowd = planned(request(K3, nodes=4, pinned=Pinned(tensor=8, data=4, decode_context=1), concurrency=40))
    assert alone.max_model_len and crowd.max_model_len
    assert crowd.max_model_len * 9 < alone.max_model_len


def test_a_memory_budget_is_the_engines_own() -> None:
    vllm, sglang = (planned(request(engine=engine)).chosen for engine in ("vLLM", "SGLang"))
    assert vllm and sglang
    overhead = sum(row.size for row in vllm.stages[0].rows) - vllm.stages[0].weight_bytes
    started = 0.92 * (DEFAULTS.runtime_bytes + DEFAULTS.nccl_bytes)  # SGLang's share is of what is free then
    gained = sglang.stages[0].pool_bytes - vllm.stages[0].pool_bytes
    assert gained == pytest.approx(overhead - started, abs=2)


def test_sglang_names_the_static_fraction_that_its_own_log_named() -> None:
    """InferenceX#2128: 125.65 GiB of weights on an H200 under 0.88 need 0.9113, said its log."""
    asked = request("deepseek-ai/DeepSeek-V4-Pro", "NVIDIA-H200", 1, engine="SGLang", memory_utilization=0.88)
    said = no_cache(asked, Stage(0, 61, (), int(125.65 * GIB), 0, -1), budget_bytes(asked))
    assert float(said.message.rsplit(" ", 1)[1]) == pytest.approx(0.9113, abs=0.002)


def test_the_same_question_gets_the_same_answer() -> None:
    assert planned(request(K3, nodes=4)) == planned(request(K3, nodes=4))


def test_draft_layers_are_loaded_only_for_speculative_decoding() -> None:
    plain, drafting = planned(request()), planned(request(draft_tokens=1))
    assert [row.name for row in drafting.rows if row.name == "MTP layers"]
    assert not [row.name for row in plain.rows if row.name == "MTP layers"]
    assert any("MTP" in said for said in plain.assumptions)
    assert checkpoint(V3).draft_layers


def test_a_static_share_that_leaves_no_room_for_activations_is_a_caution_with_one_that_does() -> None:
    asked = request(nodes=2, engine="SGLang", memory_utilization=0.97)
    [said] = [c for c in planned(asked).cautions if c.code == "STATIC_SHARE_TOO_LARGE"]
    share = float(said.fix.split()[1])
    assert 0.8 < share < 0.97
    for engine, utilization in (("SGLang", share), ("vLLM", 0.97)):
        calmer = planned(replace(asked, engine=engine, memory_utilization=utilization))
        assert "STATIC_SHARE_TOO_LARGE" not in [c.code for c in calmer.cautions]
