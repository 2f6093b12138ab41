from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe_operator.checkpoint.model_facts import Checkpoint, UnreadableConfig, checkpoint_from_config

CONFIGS = Path(__file__).parents[2] / "e2e" / "checkpoints" / "data"
SMALL: dict[str, Any] = {
    "architectures": ["M"],
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "deepseek-v3.1",
            Checkpoint("DeepseekV3ForCausalLM", 61, 128, 128, 256, 163_840, 7, "fp8"),
        ),
        (
            "kimi-k3",  # the language model is nested in text_config
            Checkpoint("KimiK3ForConditionalGeneration", 93, 96, 96, 896, 1_048_576, 7, "compressed-tensors"),
        ),
        ("qwen3-235b-a22b", Checkpoint("Qwen3MoeForCausalLM", 94, 64, 4, 128, 40_960, 7, "")),
        ("qwen3-235b-a22b-fp8", Checkpoint("Qwen3MoeForCausalLM", 94, 64, 4, 128, 40_960, 7, "fp8")),
        ("tiny-qwen3-moe", Checkpoint("Qwen3MoeForCausalLM", 4, 4, 2, 8, 4096, 7, "")),
    ],
)
def test_published_configs_say_these_facts(name: str, expected: Checkpoint) -> None:
    config = json.loads((CONFIGS / f"{name}.config.json").read_text())
    assert checkpoint_from_config(config, 7) == expected


def test_what_a_config_need_not_say_has_a_default() -> None:
    assert checkpoint_from_config(SMALL, 1) == Checkpoint("M", 2, 8, 8, 0, 0, 1, "")
    assert not checkpoint_from_config(SMALL, 1).is_moe


@pytest.mark.parametrize("name", ["n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"])
def test_every_spelling_of_the_number_of_experts_is_read(name: str) -> None:
    assert checkpoint_from_config({**SMALL, name: 64}, 1).routed_experts == 64


def test_one_expert_is_no_mixture() -> None:
    assert not checkpoint_from_config({**SMALL, "num_experts": 1}, 1).is_moe


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": []}, "architectures"),
        ({"architectures": "M"}, "architectures"),
        ({"architectures": [3]}, "architectures"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": -8}, "num_attention_heads = -8"),
        ({"num_attention_heads": "8"}, "num_attention_heads = '8'"),
        ({"num_attention_heads": True}, "num_attention_heads = True"),
        ({"num_attention_heads": 8.0}, "num_attention_heads = 8.0"),
        ({"num_experts": 1 << 40}, "num_experts = 1099511627776"),
    ],
)
def test_a_config_that_cannot_be_trusted_is_refused_with_its_field(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnreadableConfig, match=words.replace("(", r"\(")):
        checkpoint_from_config({**SMALL, **change}, 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = [*SMALL, "text_config", "num_key_value_heads", "num_experts", "quantization_config"]


@given(st.dictionaries(st.sampled_from(NAMES), json_values))
def test_any_json_is_either_read_or_refused(config: dict[str, Any]) -> None:
    try:
        found = checkpoint_from_config(config, 1)
    except UnreadableConfig as error:
        assert str(error)
    else:
        assert found.layers > 0 and found.attention_heads > 0 and found.architecture
