"""What tensors a published checkpoint holds: names, dtypes and full shapes, in file order.

One function per architecture, a pure function of its ``config.json``. Routed experts are written once,
with ``*`` for the expert's number and ``copies`` for how many there are, so that Kimi-K3's half a million
tensors are a few thousand values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

Config = dict[str, Any]
DTYPE_BYTES = {"F8_E4M3": 1, "U8": 1, "BF16": 2, "F32": 4}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter; ``copies`` > 1 means one per routed expert, ``*`` in the name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    copies: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of one copy."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def tensors(config: Config) -> tuple[Tensor, ...]:
    """Every tensor of the checkpoint that ``config`` describes; KeyError for an unknown architecture."""
    return tuple(_ARCHITECTURES[config["architectures"][0]](config))


def _bf16(name: str, *shape: int) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", "BF16", shape)


def _linear(config: Config, name: str, out: int, into: int, copies: int = 1) -> Iterator[Tensor]:
    """A linear layer in the checkpoint's own precision: FP8 in 128×128 blocks with scales, else BF16."""
    block = config.get("quantization_config", {}).get("weight_block_size")
    if block is None:
        yield Tensor(f"{name}.weight", "BF16", (out, into), copies)
        return
    scales = (ceil(out / block[0]), ceil(into / block[1]))
    yield Tensor(f"{name}.weight", "F8_E4M3", (out, into), copies)
    yield Tensor(f"{name}.weight_scale_inv", "F32", scales, copies)


def _gated_mlp(config: Config, name: str, inner: int, copies: int = 1) -> Iterator[Tensor]:
    hidden = config["hidden_size"]
    yield from _linear(config, f"{name}.gate_proj", inner, hidden, copies)
    yield from _linear(config, f"{name}.up_proj", inner, hidden, copies)
    yield from _linear(config, f"{name}.down_proj", hidden, inner, copies)


def _latent_attention(config: Config, name: str) -> Iterator[Tensor]:
    """MLA as in DeepSeek-V2/V3: low-rank queries, one shared latent for keys and values."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    query_rank, latent = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    yield from _linear(config, f"{name}.q_a_proj", query_rank, hidden)
    yield from _bf16(f"{name}.q_a_layernorm", query_rank)
    yield from _linear(config, f"{name}.q_b_proj", heads * (nope + rope), query_rank)
    yield from _linear(config, f"{name}.kv_a_proj_with_mqa", latent + rope, hidden)
    yield from _bf16(f"{name}.kv_a_layernorm", latent)
    yield from _linear(config, f"{name}.kv_b_proj", heads * (nope + value), latent)
    yield from _linear(config, f"{name}.o_proj", hidden, heads * value)


def _deepseek_layer(config: Config, layer: int) -> Iterator[Tensor]:
    name, hidden = f"model.layers.{layer}", config["hidden_size"]
    yield from _latent_attention(config, f"{name}.self_attn")
    if layer < config["first_k_dense_replace"]:
        yield from _gated_mlp(config, f"{name}.mlp", config["intermediate_size"])
    else:
        inner, experts = config["moe_intermediate_size"], config["n_routed_experts"]
        yield from _bf16(f"{name}.mlp.gate", experts, hidden)
        yield Tensor(f"{name}.mlp.gate.e_score_correction_bias", "F32", (experts,))
        yield from _gated_mlp(config, f"{name}.mlp.shared_experts", inner * config["n_shared_experts"])
        yield from _gated_mlp(config, f"{name}.mlp.experts.*", inner, experts)
    yield from _bf16(f"{name}.input_layernorm", hidden)
    yield from _bf16(f"{name}.post_attention_layernorm", hidden)


def _deepseek_v3(config: Config) -> Iterator[Tensor]:
    hidden, vocabulary, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    yield from _bf16("model.embed_tokens", vocabulary, hidden)
    for layer in range(layers):
        yield from _deepseek_layer(config, layer)
    yield from _bf16("model.norm", hidden)
    yield from _bf16("lm_head", vocabulary, hidden)
    for layer in range(layers, layers + config["num_nextn_predict_layers"]):  # multi-token prediction
        name = f"model.layers.{layer}"
        yield from _bf16(f"{name}.embed_tokens", vocabulary, hidden)
        yield from _bf16(f"{name}.enorm", hidden)
        yield from _bf16(f"{name}.hnorm", hidden)
        yield from _bf16(f"{name}.eh_proj", hidden, 2 * hidden)
        yield from _deepseek_layer(config, layer)
        yield from _bf16(f"{name}.shared_head.norm", hidden)
        yield from _bf16(f"{name}.shared_head.head", vocabulary, hidden)


def _qwen3_moe(config: Config) -> Iterator[Tensor]:
    hidden, vocabulary, head = config["hidden_size"], config["vocab_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield from _bf16("model.embed_tokens", vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        yield from _linear(config, f"{name}.self_attn.q_proj", queries, hidden)
        yield from _linear(config, f"{name}.self_attn.k_proj", keys, hidden)
        yield from _linear(config, f"{name}.self_attn.v_proj", keys, hidden)
        yield from _linear(config, f"{name}.self_attn.o_proj", hidden, queries)
        yield from _bf16(f"{name}.self_attn.q_norm", head)
        yield from _bf16(f"{name}.self_attn.k_norm", head)
        yield from _bf16(f"{name}.mlp.gate", config["num_experts"], hidden)
        yield from _gated_mlp(
            config, f"{name}.mlp.experts.*", config["moe_intermediate_size"], config["num_experts"]
        )
        yield from _bf16(f"{name}.input_layernorm", hidden)
        yield from _bf16(f"{name}.post_attention_layernorm", hidden)
    yield from _bf16("model.norm", hidden)
    yield from _bf16("lm_head", vocabulary, hidden)


def _delta_attention(text: Config, name: str) -> Iterator[Tensor]:
    """Kimi delta attention (KDA): a linear-attention layer with short convolutions and full-rank gates."""
    linear, hidden = text["linear_attn_config"], text["hidden_size"]
    heads, head = linear["num_heads"], linear["head_dim"]
    width = heads * head
    for letter in "qkv":
        yield from _bf16(f"{name}.{letter}_proj", width, hidden)
        yield Tensor(f"{name}.{letter}_conv1d.weight", "F32", (width, 1, linear["short_conv_kernel_size"]))
    yield from _bf16(f"{name}.f_a_proj", head, hidden)
    yield from _bf16(f"{name}.f_b_proj", width, head)
    yield Tensor(f"{name}.A_log", "F32", (head,))
    yield Tensor(f"{name}.dt_bias", "F32", (width,))
    yield from _bf16(f"{name}.b_proj", heads, hidden)
    yield from _bf16(f"{name}.g_proj", width, hidden)
    yield Tensor(f"{name}.o_norm.weight", "F32", (head,))
    yield from _bf16(f"{name}.o_proj", hidden, width)


def _packed_expert(name: str, out: int, into: int, copies: int) -> Iterator[Tensor]:
    """MXFP4: two weights a byte, one exponent byte for every 32 weights."""
    yield Tensor(f"{name}.weight_packed", "U8", (out, into // 2), copies)
    yield Tensor(f"{name}.weight_scale", "U8", (out, into // 32), copies)


def _kimi_latent_moe(text: Config, name: str) -> Iterator[Tensor]:
    """Routed experts work on a narrower latent; the projections around them are not quantized."""
    hidden, latent = text["hidden_size"], text["routed_expert_hidden_size"]
    inner, experts = text["moe_intermediate_size"], text["num_experts"]
    yield from _bf16(f"{name}.gate", experts, hidden)
    yield Tensor(f"{name}.gate.e_score_correction_bias", "F32", (experts,))
    yield from _bf16(f"{name}.routed_expert_down_proj", latent, hidden)
    yield from _packed_expert(f"{name}.experts.*.w1", inner, latent, experts)
    yield from _packed_expert(f"{name}.experts.*.w2", latent, inner, experts)
    yield from _packed_expert(f"{name}.experts.*.w3", inner, latent, experts)
    yield from _bf16(f"{name}.routed_expert_norm", latent)
    yield from _bf16(f"{name}.routed_expert_up_proj", hidden, latent)
    plain = {"hidden_size": hidden}  # shared experts stay in BF16
    yield from _gated_mlp(plain, f"{name}.shared_experts", inner * text["num_shared_experts"])


def _kimi_vision(vision: Config) -> Iterator[Tensor]:
    hidden, inner, qkv = vision["vt_hidden_size"], vision["vt_intermediate_size"], vision["qkv_hidden_size"]
    patch, merged = vision["patch_size"], hidden * prod(vision["merge_kernel_size"])
    yield from _bf16("vision_tower.patch_embed.proj", hidden, 3, patch, patch)
    yield from _bf16(
        "vision_tower.patch_embed.pos_emb",
        vision["init_pos_emb_height"],
        vision["init_pos_emb_width"],
        hidden,
    )
    for block in range(vision["vt_num_hidden_layers"]):
        name = f"vision_tower.encoder.blocks.{block}"
        yield from _bf16(f"{name}.norm0", hidden)
        yield from _bf16(f"{name}.wqkv", 3 * qkv, hidden)
        yield from _bf16(f"{name}.wo", hidden, qkv)
        yield from _bf16(f"{name}.norm1", hidden)
        yield from _bf16(f"{name}.mlp.fc0", inner, hidden)
        yield from _bf16(f"{name}.mlp.fc1", hidden, inner)
    yield from _bf16("vision_tower.encoder.final_layernorm", hidden)
    yield from _bf16("mm_projector.proj.0", merged, merged)
    yield from _bf16("mm_projector.proj.2", vision["text_hidden_size"], merged)
    yield from _bf16("mm_projector.post_norm", vision["text_hidden_size"])


def _kimi_k3(config: Config) -> Iterator[Tensor]:
    # The compressed-tensors scheme names what it leaves alone, which is all but the routed experts.
    text = {key: value for key, value in config["text_config"].items() if key != "quantization_config"}
    hidden, root = text["hidden_size"], "language_model.model"
    attends_fully = set(text["linear_attn_config"]["full_attn_layers"])  # counted from 1
    for layer in range(text["num_hidden_layers"]):
        name = f"{root}.layers.{layer}"
        yield from _bf16(f"{name}.self_attention_res_norm", hidden)
        yield from _bf16(f"{name}.self_attention_res_proj", 1, hidden)
        yield from _bf16(f"{name}.input_layernorm", hidden)
        if layer + 1 in attends_fully:
            yield from _latent_attention(text, f"{name}.self_attn")
            yield from _bf16(
                f"{name}.self_attn.g_proj", text["num_attention_heads"] * text["v_head_dim"], hidden
            )
        else:
            yield from _delta_attention(text, f"{name}.self_attn")
        yield from _bf16(f"{name}.mlp_res_norm", hidden)
        yield from _bf16(f"{name}.mlp_res_proj", 1, hidden)
        yield from _bf16(f"{name}.post_attention_layernorm", hidden)
        if layer < text["first_k_dense_replace"]:
            yield from _gated_mlp(text, f"{name}.mlp", text["intermediate_size"])
        else:
            yield from _kimi_latent_moe(text, f"{name}.block_sparse_moe")
    yield from _bf16(f"{root}.embed_tokens", text["vocab_size"], hidden)
    yield from _bf16(f"{root}.output_attn_res_norm", hidden)
    yield from _bf16(f"{root}.output_attn_res_proj", 1, hidden)
    yield from _bf16(f"{root}.norm", hidden)
    yield from _bf16("language_model.lm_head", text["vocab_size"], hidden)
    yield from _kimi_vision(config["vision_config"])


_ARCHITECTURES: dict[str, Callable[[Config], Iterator[Tensor]]] = {
    "DeepseekV3ForCausalLM": _deepseek_v3,
    "KimiK3ForConditionalGeneration": _kimi_k3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
}
