"""Attention of each kind: its matrices, what it keeps per token, what it keeps per request.

Every function reads one layer's numbers from the language model's config and returns an
:class:`Attention`. Shapes are those of the published modelling code: MLA (DeepSeek-V2 §2.1), sparse
attention with an indexer (DeepSeek-V3.2), compressed attention (DeepSeek-V4 §2.3), Kimi delta attention
(Kimi Linear §3), gated delta networks (Qwen3-Next), Mamba-2 (Nemotron-H), grouped queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moe_operator.checkpoint.cache import StateCache, TokenCache
from moe_operator.checkpoint.fields import required, section, whole
from moe_operator.checkpoint.precision import BF16, FP32
from moe_operator.checkpoint.unreadable import UnreadableConfig
from moe_operator.checkpoint.weights import Part, Shape, Split

Config = Mapping[str, Any]
FP8_MLA_PACKED_BYTES = 656  # fp8_ds_mla: 512 fp8 + 4 scales of 4 B + 64 bf16 rope (FlashMLA)
INDEX_ENTRY_BYTES = 132  # 128 fp8 + one fp32 scale (vllm/v1/attention/backends/mla/indexer.py)
V4_PACKED_BYTES = 584  # 448 fp8 + 64 bf16 rope + 8 scales (vllm DeepseekV4 fp8_ds_mla)
OVERLAPPED_RATIO = 4  # DeepSeek-V4's lightly compressed layers overlap windows and have an indexer


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention.

    ``absorbed_bytes``: bf16 copies of kv_b that MLA backends make after loading. ``unpacked_bytes``: what
    SGLang adds by keeping DeepSeek-V4's wo_a in bf16.
    """

    shapes: tuple[Shape, ...]
    caches: tuple[TokenCache, ...] = ()
    state: StateCache | None = None
    absorbed_bytes: int = 0
    unpacked_bytes: int = 0


def attn(name: str, out: int, into: int, split: Split = Split.TENSOR, fixed: bool = False) -> Shape:
    """A matrix of the attention; ``fixed`` = stays bf16 whatever the quantization."""
    return Shape(name, out, into, Part.ATTENTION, split, fixed=BF16 if fixed else None)


def linear_attn(name: str, out: int, into: int, split: Split = Split.TENSOR, fixed: bool = False) -> Shape:
    """A matrix of a linear-attention layer."""
    return Shape(name, out, into, Part.LINEAR_ATTENTION, split, fixed=BF16 if fixed else None)


def norm(name: str, width: int) -> Shape:
    """A vector that every rank keeps."""
    return Shape(name, 1, width, Part.NORM, Split.WHOLE, fixed=BF16)


def grouped_query(config: Config, name: str, windowed: bool = False, full: bool = False) -> Attention:
    """GQA, MHA and MQA. ``windowed``: a sliding-window layer, whose ``swa_*`` fields take precedence.

    ``full``: a full-attention layer of a hybrid, whose ``global_*`` fields take precedence.
    """
    hidden = required(config, "hidden_size")
    kind = ("swa_",) if windowed else ("global_",) if full else ()
    heads = required(config, *(f"{k}num_attention_heads" for k in kind), "num_attention_heads", "n_head")
    keys = (
        whole(config, *(f"num_{k}key_value_heads" for k in kind), *(f"{k}num_key_value_heads" for k in kind),
              "num_key_value_heads")
        or heads
    )  # fmt: skip
    width = whole(config, *(f"{k}head_dim" for k in kind), "head_dim") or hidden // heads
    if width == 0:
        raise UnreadableConfig(f"config.json: {heads} attention heads for a hidden size of {hidden}")
    value = whole(config, *(f"{k}v_head_dim" for k in kind), "v_head_dim") or width
    gate = 2 if config.get("attn_output_gate") else 1
    shapes = [
        attn(f"{name}.q_proj", heads * width * gate, hidden),
        attn(f"{name}.k_proj", keys * width, hidden, Split.KV_HEADS),
        attn(f"{name}.o_proj", hidden, heads * value),
    ]
    if not (full and config.get("attention_k_eq_v")):
        shapes.append(attn(f"{name}.v_proj", keys * value, hidden, Split.KV_HEADS))
    window = whole(config, "sliding_window", "sliding_window_size", "attention_chunk_size") if windowed else 0
    return Attention(tuple(shapes), (TokenCache(keys, width + value, window=window),))


def latent(config: Config, name: str, indexed: bool = False, gated: bool = False) -> Attention:
    """MLA; ``indexed`` adds the sparse-attention indexer, ``gated`` an output gate."""
    hidden, heads = required(config, "hidden_size"), required(config, "num_attention_heads")
    query_rank, rank = whole(config, "q_lora_rank"), required(config, "kv_lora_rank")
    nope, rope = required(config, "qk_nope_head_dim"), required(config, "qk_rope_head_dim")
    value = required(config, "v_head_dim")
    queries = heads * (nope + rope)
    if query_rank:
        shapes = [
            attn(f"{name}.q_a_proj", query_rank, hidden, Split.WHOLE),
            attn(f"{name}.q_b_proj", queries, query_rank),
            norm(f"{name}.q_a_layernorm", query_rank),
        ]
    else:
        shapes = [attn(f"{name}.q_proj", queries, hidden)]
    shapes += [
        attn(f"{name}.kv_a_proj_with_mqa", rank + rope, hidden, Split.WHOLE),
        norm(f"{name}.kv_a_layernorm", rank),
        attn(f"{name}.kv_b_proj", heads * (nope + value), rank),
        attn(f"{name}.o_proj", hidden, heads * value),
    ]
    if gated:
        shapes.append(attn(f"{name}.g_proj", heads * value, hidden))
    sparse = whole(config, "index_head_dim") > 0
    caches = [TokenCache(0, rank + rope, packed=FP8_MLA_PACKED_BYTES if sparse else 0)]
    if indexed:
        shapes += _indexer(config, name, query_rank)
        caches.append(TokenCache(0, 0, fixed=INDEX_ENTRY_BYTES))
    return Attention(tuple(shapes), tuple(caches), absorbed_bytes=heads * (nope + value) * rank * 2)


def _indexer(config: Config, name: str, query_rank: int) -> list[Shape]:
    hidden, heads = required(config, "hidden_size"), required(config, "index_n_heads")
    width = required(config, "index_head_dim")

    def index(part: str, out: int, into: int, fixed: bool = False) -> Shape:
        return Shape(
            f"{name}.indexer.{part}", out, into, Part.INDEXER, Split.WHOLE, fixed=BF16 if fixed else None
        )

    return [
        index("wq_b", heads * width, query_rank),
        index("wk", width, hidden),
        index("weights_proj", heads, hidden, fixed=True),
        norm(f"{name}.indexer.k_norm", 2 * width),
    ]


def block_sparse(config: Config, name: str) -> Attention:
    """GQA whose layers pick blocks by an index of one key per token (MiniMax-M3)."""
    plain = grouped_query(config, name)
    sparse, hidden = section(config, "sparse_attention_config"), required(config, "hidden_size")
    width, heads = required(sparse, "sparse_index_dim"), required(sparse, "sparse_num_index_heads")
    index = (
        Shape(f"{name}.index_q_proj", heads * width, hidden, Part.INDEXER, Split.WHOLE),
        Shape(f"{name}.index_k_proj", width, hidden, Part.INDEXER, Split.WHOLE),
    )
    return Attention((*plain.shapes, *index), (*plain.caches, TokenCache(0, width)))


def compressed(config: Config, name: str, ratio: int) -> Attention:
    """DeepSeek-V4: one KV head of 512, a short window, and entries that stand for ``ratio`` tokens."""
    hidden, heads = required(config, "hidden_size"), required(config, "num_attention_heads")
    width, query_rank = required(config, "head_dim"), required(config, "q_lora_rank")
    groups, out_rank = required(config, "o_groups"), required(config, "o_lora_rank")
    shapes = [
        attn(f"{name}.wq_a", query_rank, hidden, Split.WHOLE),
        attn(f"{name}.wq_b", heads * width, query_rank),
        attn(f"{name}.wkv", width, hidden, Split.WHOLE),
        attn(f"{name}.wo_a", groups * out_rank, heads * width // groups),
        attn(f"{name}.wo_b", hidden, groups * out_rank),
        norm(f"{name}.norms", query_rank + width),
    ]
    window = required(config, "sliding_window")
    caches = [TokenCache(0, width, packed=V4_PACKED_BYTES, window=window)]
    if ratio:
        overlap = 2 if ratio == OVERLAPPED_RATIO else 1
        shapes += _compressor(f"{name}.compressor", hidden, overlap * width)
        caches.append(TokenCache(0, width, packed=V4_PACKED_BYTES, tokens_per_entry=ratio))
    if ratio == OVERLAPPED_RATIO:
        index_width, index_heads = required(config, "index_head_dim"), required(config, "index_n_heads")
        shapes += _compressor(f"{name}.indexer.compressor", hidden, 2 * index_width)
        shapes += [
            Shape(f"{name}.indexer.wq_b", index_heads * index_width, query_rank, Part.INDEXER, Split.WHOLE),
            Shape(f"{name}.indexer.weights_proj", index_heads, hidden, Part.INDEXER, Split.WHOLE, fixed=BF16),
        ]
        caches.append(TokenCache(0, 0, fixed=INDEX_ENTRY_BYTES, tokens_per_entry=ratio))
    return Attention(tuple(shapes), tuple(caches), unpacked_bytes=out_rank * heads * width)


def _compressor(name: str, hidden: int, width: int) -> list[Shape]:
    return [
        Shape(f"{name}.{part}", width, hidden, Part.ATTENTION, Split.WHOLE, fixed=BF16)
        for part in ("wkv", "wgate")
    ]


def delta(config: Config, name: str) -> Attention:
    """Kimi delta attention: short convolutions on q, k and v, a d×d state per head in fp32."""
    linear, hidden = section(config, "linear_attn_config"), required(config, "hidden_size")
    heads, width = required(linear, "num_heads"), required(linear, "head_dim")
    inner, kernel = heads * width, required(linear, "short_conv_kernel_size")
    shapes = [linear_attn(f"{name}.{letter}_proj", inner, hidden) for letter in "qkv"]
    shapes += [
        Shape(f"{name}.{letter}_conv1d", inner, kernel, Part.LINEAR_ATTENTION, fixed=FP32) for letter in "qkv"
    ]
    shapes += [
        linear_attn(f"{name}.f_a_proj", width, hidden, Split.WHOLE),
        linear_attn(f"{name}.f_b_proj", inner, width),
        linear_attn(f"{name}.b_proj", heads, hidden),
        linear_attn(f"{name}.o_proj", hidden, inner),
        Shape(f"{name}.dt_bias", inner, 1, Part.LINEAR_ATTENTION, fixed=FP32),
        norm(f"{name}.o_norm", 2 * width),
    ]
    if linear.get("use_full_rank_gate"):
        shapes.append(linear_attn(f"{name}.g_proj", inner, hidden))
    else:
        shapes += [
            linear_attn(f"{name}.g_a_proj", width, hidden, Split.WHOLE),
            linear_attn(f"{name}.g_b_proj", inner, width),
        ]
    return Attention(tuple(shapes), state=StateCache(3 * inner, kernel - 1, inner * width, 4))


def gated_delta(config: Config, name: str) -> Attention:
    """Gated delta network: grouped keys, a vd×kd state per value head."""
    hidden = required(config, "hidden_size")
    keys = required(config, "linear_num_key_heads") * required(config, "linear_key_head_dim")
    heads, value = required(config, "linear_num_value_heads"), required(config, "linear_value_head_dim")
    kernel, inner = required(config, "linear_conv_kernel_dim"), heads * value
    shapes = (
        linear_attn(f"{name}.in_proj_qkv", 2 * keys + inner, hidden),
        linear_attn(f"{name}.in_proj_z", inner, hidden),
        linear_attn(f"{name}.in_proj_b", heads, hidden, fixed=True),
        linear_attn(f"{name}.in_proj_a", heads, hidden, fixed=True),
        linear_attn(f"{name}.conv1d", 2 * keys + inner, kernel, fixed=True),
        linear_attn(f"{name}.out_proj", hidden, inner),
        norm(f"{name}.norm", value + 2 * heads),
    )
    state = inner * required(config, "linear_key_head_dim")
    return Attention(shapes, state=StateCache(2 * keys + inner, kernel - 1, state, _state_bytes(config)))


def mamba2(config: Config, name: str) -> Attention:
    """Mamba-2: one wide input projection, a head_dim×state matrix per head."""
    hidden, heads = required(config, "hidden_size"), required(config, "mamba_num_heads")
    width, groups = required(config, "mamba_head_dim"), required(config, "n_groups")
    states, kernel = required(config, "ssm_state_size"), required(config, "conv_kernel")
    inner, channels = heads * width, heads * width + 2 * groups * states
    shapes = (
        linear_attn(f"{name}.in_proj", inner + channels + heads, hidden),
        linear_attn(f"{name}.conv1d", channels, kernel, fixed=True),
        linear_attn(f"{name}.out_proj", hidden, inner),
        norm(f"{name}.norm", inner + 3 * heads),
    )
    return Attention(shapes, state=StateCache(channels, kernel - 1, inner * states, _state_bytes(config)))


def _state_bytes(config: Config) -> int:
    declared = config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")
    return 4 if declared == "float32" else 2
