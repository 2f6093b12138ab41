from __future__ import annotations

from typing import Any

import pytest
from moe_operator.checkpoint import precision as p
from moe_operator.checkpoint.precision import Precision, fp8_block, grouped_int
from moe_operator.checkpoint.quantization import read_quantization
from moe_operator.checkpoint.weights import Part

from tests.planning.known_models import checkpoint


@pytest.mark.parametrize(
    ("stored", "bytes_per_weight"),
    [
        (p.BF16, 2),
        (fp8_block(128, 128), 1 + 4 / 16384),
        (grouped_int(4, 32, symmetric=True), 0.5 + 2 / 32),
        (grouped_int(4, 128, symmetric=True), 0.5 + 2 / 128),
        (grouped_int(4, 128, symmetric=False), 0.5 + 2 / 128 + 0.5 / 128),
        (p.MXFP4, 0.5 + 1 / 32),
        (p.NVFP4, 0.5 + 1 / 16),
        (p.MXFP8, 1 + 1 / 32),
    ],
    ids=lambda value: value.name if isinstance(value, Precision) else "",
)
def test_bytes_per_weight_of_a_format(stored: Precision, bytes_per_weight: float) -> None:
    assert stored.matrix_bytes(4096, 4096) / 4096**2 == pytest.approx(bytes_per_weight, rel=1e-9)


def test_a_cut_block_still_has_a_scale() -> None:
    assert fp8_block(128, 128).matrix_bytes(129, 1) == 129 + 2 * 4


def fp8_without(*modules: str) -> dict[str, Any]:
    return {"quant_method": "fp8", "modules_to_not_convert": list(modules)}


COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32, "type": "int", "symmetric": True}}},
    "ignore": ["lm_head", "re:.*self_attn.*", "model.layers.1*"],
}


@pytest.mark.parametrize(
    ("declared", "module", "routed", "name"),
    [
        (fp8_without("gate", "lm_head"), "model.layers.0.mlp.gate", False, "bf16"),
        (fp8_without("gate"), "model.layers.0.mlp.gate_proj", False, "fp8"),
        (fp8_without("model.layers.0.mlp"), "x.model.layers.0.mlp.up", False, "bf16"),
        (COMPRESSED, "model.layers.0.self_attn.o_proj", False, "bf16"),
        (COMPRESSED, "model.layers.10.mlp.up_proj", False, "bf16"),  # a glob is a prefix, 10 included
        (COMPRESSED, "model.layers.2.mlp.up_proj", False, "int4"),
        ({"quant_method": "mxfp4"}, "model.layers.0.self_attn.q_proj", False, "bf16"),
        ({"quant_method": "mxfp4"}, "model.layers.0.mlp.experts.*.up", True, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*.mlp.shared_expert.*"]},
         "model.layers.0.mlp.shared_expert.up_proj", False, "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
          "quantized_layers": {"l.0.experts.7.w1": {"quant_algo": "NVFP4"}}},
         "l.0.experts.*.w1", True, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
          "quantized_layers": {"l.0.attn.q": {"quant_algo": "MXFP8"}}}, "l.0.attn.q", False, "mxfp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": -1}, "model.layers.0.mlp.up_proj", False, "int4"),
    ],
)  # fmt: skip
def test_how_a_module_is_stored(declared: dict[str, Any], module: str, routed: bool, name: str) -> None:
    scheme = read_quantization({"quantization_config": declared}, {})
    assert scheme.of(module, routed).name == name


def test_a_file_beside_the_config_says_it_too() -> None:
    side = {
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    }
    scheme = read_quantization({}, {}, side)
    assert scheme.of("model.layers.0.mlp.up_proj").name == "nvfp4" and scheme.kv_fp8


def test_experts_may_have_a_format_of_their_own() -> None:
    model = checkpoint("deepseek-ai/DeepSeek-V4-Pro")
    formats = {
        (w.part, w.precision.name) for kind in model.kinds for w in kind.weights if w.precision.is_quantized
    }
    assert (Part.ROUTED, "mxfp4") in formats and (Part.SHARED, "fp8") in formats


def test_only_what_a_scheme_covers_is_quantized_in_kimi_k3() -> None:
    model = checkpoint("moonshotai/Kimi-K3")
    assert {w.part for kind in model.kinds for w in kind.weights if w.precision.is_quantized} == {Part.ROUTED}
