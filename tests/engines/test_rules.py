"""Start-up checks as refusals: the engine's own words, and a fix that is itself accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_operator.engines.known import ENGINES
from moe_operator.hardware.catalogue import CATALOGUE
from moe_operator.planning.plan import Layout, Pinned, Request

from tests.planning.known_models import checkpoint
from tests.planning.questions import codes, planned, request

QWEN_FP8 = "Qwen/Qwen3-235B-A22B-FP8"
CODER_FP8 = "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8"
K2_INT4 = "moonshotai/Kimi-K2.5"
V3 = "deepseek-ai/DeepSeek-V3"
K3 = "moonshotai/Kimi-K3"
WITHOUT_EP = Pinned(tensor=8, pipeline=1, data=1, expert=False)
H20 = "NVIDIA-H20"


@pytest.mark.parametrize(
    ("asked", "code", "words", "fix"),
    [
        (
            request(nodes=1, gpus_per_node=6, domain_gpus=6, pinned=Pinned(tensor=6)),
            "HEADS_NOT_DIVISIBLE",
            "Total number of attention heads (128) must be divisible by tensor parallel size (6).",
            "tensor: 2",
        ),
        (
            request(checkpoint=replace(checkpoint(V3), kv_heads=12), pinned=Pinned(tensor=8)),
            "KV_HEADS_NOT_DIVISIBLE",
            "12 KV heads neither divide nor are divided by tensor parallel size 8",
            "tensor: 4",
        ),
        (
            request(checkpoint=replace(checkpoint(K3), linear_heads=12), pinned=Pinned(tensor=8)),
            "LINEAR_HEADS_NOT_DIVISIBLE",
            "12 is not divisible by 8 (heads of the linear-attention layers",
            "tensor: 4",
        ),
        (
            request(checkpoint=replace(checkpoint(V3), routed_experts=0), pinned=Pinned(expert=True)),
            "EXPERT_PARALLEL_WITHOUT_EXPERTS",
            "Number of experts in the model must be greater than 0",
            "parallelism.expert: false",
        ),
        (
            request(balanced_experts=True, redundant_experts=5, pinned=Pinned(tensor=8, data=2)),
            "EXPERTS_NOT_DIVISIBLE",
            "EPLB currently only supports even distribution of experts across ranks: 256 experts + 5",
            "redundantExperts: 16",
        ),
        (
            request(balanced_experts=True, pinned=Pinned(expert=False)),
            "BALANCING_WITHOUT_EXPERT_PARALLEL",
            "enable_expert_parallel must be True to use EPLB.",
            "expertBalancing.enabled: false",
        ),
        (
            request(engine="SGLang", redundant_experts=5, pinned=Pinned(expert=True, tensor=8, data=2)),
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
            request(pinned=Pinned(tensor=8, decode_context=3)),
            "DCP_NOT_DIVISIBLE",
            "tp_size=8 must be divisible by dcp_size=3.",
            "a divisor of tensor",
        ),
        (
            request(QWEN_FP8, H20, 1, Pinned(tensor=8, decode_context=4)),
            "DCP_WITHOUT_COPIES",
            "tensor parallel size 8 must be greater than total num kv heads 4",
            "parallelism.decodeContext: 2",
        ),
        (
            request(QWEN_FP8, H20, 1, WITHOUT_EP, engine_version=(0, 32)),
            "FP8_BLOCK_NOT_DIVISIBLE",
            "gate's and up's weight = 192 is not divisible by weight quantization block_n = 128.",
            "parallelism.expert: true, or experts over at most 6 ranks",
        ),
        (
            request(QWEN_FP8, H20, 1, WITHOUT_EP, engine="SGLang"),
            "FP8_BLOCK_NOT_DIVISIBLE",
            "The output_size of gate's and up's weight = 192",
            "parallelism.expert: true",
        ),
        (
            request(QWEN_FP8, H20, 1, WITHOUT_EP, moe_backend="deep_gemm"),
            "FP8_BLOCK_NOT_DIVISIBLE",
            "block_n = 128",
            "parallelism.expert: true",
        ),
        (
            request(
                "zai-org/GLM-5.2-FP8", "NVIDIA-H200", 4, Pinned(tensor=32, expert=True), domain_gpus=None
            ),
            "FP8_BLOCK_NOT_DIVISIBLE",
            "size_per_partition = 64 is not divisible by weight quantization",
            "tensor: 16",
        ),
        (
            request(K2_INT4, "NVIDIA-H200", 8, Pinned(tensor=64, expert=False), domain_gpus=None),
            "QUANT_GROUP_NOT_DIVISIBLE",
            "experts cut to 32: Scale groups would otherwise cross TP shard boundaries",
            "parallelism.expert: true, or experts over at most 32 ranks",
        ),
        (
            request("openai/gpt-oss-120b", "NVIDIA-H200", 1, WITHOUT_EP),
            "QUANT_GROUP_NOT_DIVISIBLE",
            "intermediate_size_per_partition = 360 is not divisible by 32 (mxfp4)",
            "parallelism.expert: true",
        ),
        (
            request("nvidia/MiniMax-M3-NVFP4", "AMD-Instinct-MI355X-OAM", 1),
            "PRECISION_UNSUPPORTED",
            "modelopt_fp4 quantization is currently not supported in rocm.",
            "MXFP4 or FP8",
        ),
        (
            request(K2_INT4, "AMD-Instinct-MI355X-OAM", 1, Pinned(tensor=8, expert=True)),
            "PRECISION_UNSUPPORTED",
            "FlyDSL INT4 MoE path does not support expert parallelism",
            "parallelism.expert: false",
        ),
        (
            request(V3, "NVIDIA-A100-SXM4-80GB", 2, kv_cache_dtype="FP8"),
            "KV_CACHE_DTYPE_UNSUPPORTED",
            "FP8 KV cache is not supported on Ampere GPUs",
            "engine.kvCacheDtype: BF16",
        ),
        (
            request(V3, H20, 2, Pinned(tensor=8, data=2), "SGLang", all_to_all="megamoe"),
            "ALL_TO_ALL_UNSUPPORTED",
            "megamoe works inside one NVLink domain (8 GPUs), expert parallelism spans 16",
            "over RDMA",
        ),
        (
            request(V3, "NVIDIA-GB200", 4, all_to_all="deepep_high_throughput", domain_gpus=72),
            "ALL_TO_ALL_UNSUPPORTED",
            "at most 8 GPUs per NVLink domain, not 72",
            "flashinfer_nvlink_one_sided",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else "",
)
def test_what_the_engine_would_refuse_is_refused_in_its_words(
    asked: Request, code: str, words: str, fix: str
) -> None:
    answer = planned(asked)
    found = [r for r in answer.refusals if r.code == code]
    assert found, (answer.layout, codes(answer))
    assert words in found[0].message
    assert fix in found[0].fix


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (request(QWEN_FP8, H20, 1, WITHOUT_EP), "FP8_BLOCK_REFINED"),
        (request(K3, H20, 4), "PRECISION_WEIGHT_ONLY"),
        (request(V3, "NVIDIA-A100-SXM4-80GB", 2), "PRECISION_WEIGHT_ONLY"),
        (request("openai/gpt-oss-120b", "AMD-Instinct-MI300X-OAM", 1), "PRECISION_WEIGHT_ONLY"),
    ],
)
def test_what_runs_by_a_detour_is_said_and_not_refused(asked: Request, code: str) -> None:
    answer = planned(asked)
    assert answer.refusals == ()
    assert code in [c.code for c in answer.cautions]


@pytest.mark.parametrize(
    ("name", "pinned", "changes"),
    [
        (QWEN_FP8, Pinned(tensor=8, pipeline=1, expert=True), {}),
        (CODER_FP8, Pinned(tensor=8, pipeline=1, expert=True), {}),
        (V3, WITHOUT_EP, {}),  # 2048 / 8 = 256
        (K2_INT4, WITHOUT_EP, {}),
        (K2_INT4, Pinned(tensor=8, expert=False), {"gpu": CATALOGUE["AMD-Instinct-MI355X-OAM"]}),
        (V3, Pinned(tensor=8), {"all_to_all": "nixl_ep"}),
    ],
)
def test_what_divides_is_not_refused(name: str, pinned: Pinned, changes: dict[str, Any]) -> None:
    assert planned(request(name, "NVIDIA-H200", 1, pinned, **changes)).refusals == ()


@settings(deadline=None)
@given(st.sampled_from([8, 12, 64, 96, 128]), st.sampled_from([1, 2, 4, 8, 12]), st.integers(2, 16))
def test_the_tensor_size_that_a_refusal_of_heads_names_is_good(heads: int, kv: int, tensor: int) -> None:
    changed = replace(checkpoint(QWEN_FP8), attention_heads=heads, kv_heads=kv)
    judges = ENGINES["vLLM"].judges
    asked = request(checkpoint=changed)
    layout = Layout(tensor, 1, 1, True, 1, tensor)
    head_rules = [rule for rule in judges.rules if "heads_divide" in rule.__name__]
    for said in [r for rule in head_rules if (r := rule(layout, changed, asked))]:
        better = Layout(int(said.fix.removeprefix("tensor: ")), 1, 1, True, 1, tensor)
        assert not [rule for rule in head_rules if rule(better, changed, asked)]
