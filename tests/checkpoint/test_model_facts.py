from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from moe_operator.checkpoint.fields import MAX_LAYERS
from moe_operator.checkpoint.model_facts import checkpoint_from_config
from moe_operator.checkpoint.unreadable import UnreadableConfig
from moe_operator.checkpoint.weights import Part, Split

from tests.planning.known_models import checkpoint, config

SMALL: dict[str, Any] = {
    "architectures": ["M"],
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
MOE = {**SMALL, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("deepseek-ai/DeepSeek-V3", ("DeepseekV3ForCausalLM", 61, 128, 128, 256, 8, 163_840, "fp8")),
        (
            "moonshotai/Kimi-K3",  # the language model is nested in text_config
            ("KimiK3ForConditionalGeneration", 93, 96, 96, 896, 16, 1_048_576, "compressed-tensors"),
        ),
        ("Qwen/Qwen3-235B-A22B", ("Qwen3MoeForCausalLM", 94, 64, 4, 128, 8, 40_960, "")),
        ("openai/gpt-oss-120b", ("GptOssForCausalLM", 36, 64, 8, 128, 4, 131_072, "mxfp4")),
        ("nvidia/GLM-5-NVFP4", ("GlmMoeDsaForCausalLM", 78, 64, 64, 256, 8, 202_752, "modelopt")),
    ],
)
def test_published_configs_say_these_facts(name: str, facts: tuple[Any, ...]) -> None:
    found = checkpoint(name)
    assert facts == (
        found.architecture,
        len(found.order),
        found.attention_heads,
        found.kv_heads,
        found.routed_experts,
        found.experts_per_token,
        found.max_positions,
        found.quantization,
    )


@pytest.mark.parametrize(
    ("name", "dense", "state", "kinds"),
    [
        ("deepseek-ai/DeepSeek-V3", 3, 0, 2),
        ("moonshotai/Kimi-K3", 1, 69, 3),  # KDA and MLA layers, the first one dense
        ("zai-org/GLM-5.3-FP8", 3, 0, 3),  # an indexer of its own on 21 layers
        ("nvidia/Qwen3.5-397B-A17B-NVFP4", 0, 45, 2),
        ("MiniMaxAI/MiniMax-M3", 3, 0, 2),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 29, 23, 3),  # 23 MoE, 23 Mamba, 6 attention layers
    ],
)
def test_layers_of_a_kind(name: str, dense: int, state: int, kinds: int) -> None:
    found = checkpoint(name)
    assert sum(not layer.routed for layer in found.layers) == dense
    assert sum(layer.state is not None for layer in found.layers) == state
    assert len(found.kinds) == kinds


def test_layers_that_alternate_between_dense_and_sparse() -> None:
    found = checkpoint_from_config(config("meta-llama--Llama-4-Maverick-17B-128E-Instruct"))
    assert [bool(layer.routed) for layer in found.layers] == [False, True] * 24


@pytest.mark.parametrize(
    ("name", "embeddings"), [("deepseek-ai/DeepSeek-V3", True), ("zai-org/GLM-5.2-FP8", False)]
)
def test_mtp_layers_bring_copies_of_embedding_and_head_or_not(name: str, embeddings: bool) -> None:
    [layer] = checkpoint(name).draft_layers
    assert any(w.shape.name == "embed_tokens" for w in layer.weights) == embeddings


def test_weights_that_the_shapes_do_not_explain_stay_visible() -> None:
    known = config("Qwen--Qwen3-235B-A22B")
    computed = checkpoint_from_config(known).computed_bytes
    found = checkpoint_from_config(known, computed + 7_000_000_000)
    assert [w.nbytes for w in found.outside if w.part is Part.OTHER] == [7_000_000_000]
    assert any("+1.5%" in said for said in found.assumptions)


def test_an_index_of_another_model_is_a_contradiction_and_the_larger_size_counts() -> None:
    known = config("Qwen--Qwen3-235B-A22B")
    found = checkpoint_from_config(known, 1_000_000)
    assert "not of the same model" in found.contradiction
    assert found.weight_bytes == found.computed_bytes == 470_187_269_120


def test_an_architecture_without_a_reader_is_scaled_to_the_index_and_says_so() -> None:
    plain = checkpoint_from_config(MOE)
    found = checkpoint_from_config(MOE, 2 * plain.computed_bytes)
    assert not found.known and any("no reader of its own" in said for said in found.assumptions)
    held = sum(layer.nbytes for layer in found.layers) + sum(w.nbytes for w in found.outside)
    assert held == pytest.approx(2 * plain.computed_bytes, rel=1e-6)
    assert found.contradiction == ""


def test_an_architecture_without_a_reader_is_sorted_by_tensor_names_where_headers_are_known() -> None:
    tensors = {
        "model.embed_tokens.weight": 1000,
        "lm_head.weight": 1000,
        "model.layers.0.self_attn.q_proj.weight": 300,
        "model.layers.0.self_attn.k_proj.weight": 100,
        "model.layers.0.mlp.gate_proj.weight": 50,
        "model.layers.0.input_layernorm.weight": 5,
        **{f"model.layers.1.mlp.experts.{e}.up_proj.weight": 40 for e in range(8)},
        "model.layers.1.mlp.gate.weight": 20,
        "model.layers.1.mlp.shared_expert.up_proj.weight": 30,
        "model.layers.2.eh_proj.weight": 60,
        "visual.patch_embed.weight": 70,
        "something.else": 9,
    }
    found = checkpoint_from_config(MOE, tensors=tensors)
    assert found.weight_bytes == sum(tensors.values())
    first, second = found.layers
    assert {(w.part, w.split): w.nbytes for w in first.weights} == {
        (Part.ATTENTION, Split.TENSOR): 300,
        (Part.ATTENTION, Split.KV_HEADS): 100,
        (Part.DENSE, Split.TENSOR): 50,
        (Part.NORM, Split.WHOLE): 5,
    }
    assert {w.part: w.nbytes for w in second.weights} == {Part.ROUTED: 320, Part.ROUTER: 20, Part.SHARED: 30}
    assert second.routed[0].shape.copies == 8
    assert [layer.nbytes for layer in found.draft_layers] == [60]
    assert {w.part for w in found.outside} == {Part.EMBEDDING, Part.HEAD, Part.VISION, Part.OTHER}


def test_what_a_config_need_not_say_has_a_default() -> None:
    found = checkpoint_from_config(SMALL, 1)
    assert (found.kv_heads, found.max_positions, found.quantization) == (8, 0, "")
    assert not found.is_moe


@pytest.mark.parametrize("name", ["n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"])
def test_every_spelling_of_the_number_of_experts_is_read(name: str) -> None:
    changed = {key: value for key, value in MOE.items() if key != "num_experts"} | {name: 64}
    assert checkpoint_from_config(changed, 1).routed_experts == 64


def test_one_expert_is_no_mixture() -> None:
    assert not checkpoint_from_config({**SMALL, "num_experts": 1}, 1).is_moe


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": []}, "architectures"),
        ({"architectures": "M"}, "architectures"),
        ({"architectures": [3]}, "architectures"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": MAX_LAYERS + 1}, f"beyond {MAX_LAYERS}"),
        ({"hidden_size": None}, "does not say hidden_size"),
        ({"vocab_size": 0}, "does not say vocab_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": -8}, "num_attention_heads = -8"),
        ({"num_attention_heads": "8"}, "num_attention_heads = '8'"),
        ({"num_attention_heads": True}, "num_attention_heads = True"),
        ({"num_attention_heads": 8.0}, "num_attention_heads = 8.0"),
        ({"num_attention_heads": 128}, "128 attention heads for a hidden size of 64"),
        ({"num_experts": 1 << 40}, "num_experts = 1099511627776"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 values for 2 layers"),
        ({"layer_types": [{}, {}]}, "neither a word nor a whole number"),
        ({"compress_ratios": [9999, 9999]}, "compress_ratios holds 9999"),
        ({"quantization_config": {"quant_method": "magic"}}, "quant_method 'magic' is not one of"),
        ({"quantization_config": []}, "quantization_config is not an object"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 128]}},
            "weight_block_size",
        ),
    ],
)
def test_a_config_that_cannot_be_trusted_is_refused_with_its_field(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnreadableConfig) as error:
        checkpoint_from_config({**MOE, **change}, 1)
    assert words in str(error.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
NAMES = [
    *MOE, "text_config", "vision_config", "num_key_value_heads", "head_dim", "quantization_config",
    "layer_types", "kv_lora_rank", "q_lora_rank", "linear_attn_config", "compress_ratios",
    "hybrid_override_pattern", "layers_block_type", "mlp_layer_types", "moe_layer_freq", "mlp_only_layers",
    "sparse_attention_config", "num_nextn_predict_layers", "sliding_window", "attention_chunk_size",
    "index_head_dim", "indexer_types",
]  # fmt: skip


@settings(deadline=None)
@example({"architectures": [""]})
@given(st.dictionaries(st.sampled_from(NAMES), json_values | st.integers(0, 300), max_size=6))
def test_any_json_is_either_read_or_refused(change: dict[str, Any]) -> None:
    try:
        found = checkpoint_from_config({**MOE, **change}, 1)
    except UnreadableConfig as error:
        assert str(error)
    else:
        assert found.order and found.attention_heads > 0 and found.architecture
        assert found.computed_bytes > 0


@pytest.mark.parametrize(
    "name",
    ["moonshotai--Kimi-K3", "deepseek-ai--DeepSeek-V4-Pro", "nvidia--MiniMax-M3-NVFP4", "Qwen--Qwen3.5-27B"],
)
@settings(deadline=None)
@given(data=st.data())
def test_a_published_config_with_one_field_broken_is_either_read_or_refused(
    name: str, data: st.DataObject
) -> None:
    whole = config(name)
    inner = whole.get("text_config", whole)
    field = data.draw(st.sampled_from(sorted(inner)))
    broken = {**inner, field: data.draw(json_values)}
    try:
        found = checkpoint_from_config({**whole, "text_config": broken} if "text_config" in whole else broken)
    except UnreadableConfig as error:
        assert str(error)
    else:
        assert found.computed_bytes > 0
