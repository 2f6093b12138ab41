"""Which architecture is built how: the only place that knows architectures by name.

A :class:`Family` says how a checkpoint spells its modules and what its multi-token-prediction (MTP) layers
bring along; what a layer is made of follows from the config's own fields (``kv_lora_rank`` means MLA, and
so on), as in transformers' and vLLM's model files. An architecture without a family is read the same way
under the usual names, and the checkpoint says that it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from moe_operator.checkpoint import attention as att
from moe_operator.checkpoint import mlp
from moe_operator.checkpoint.attention import Attention, norm
from moe_operator.checkpoint.fields import MAX_LAYERS, listed, per_layer, required, section, whole
from moe_operator.checkpoint.precision import BF16
from moe_operator.checkpoint.unreadable import UnreadableConfig
from moe_operator.checkpoint.weights import Part, Shape, Split

Config = Mapping[str, Any]


class Drafts(Enum):
    """What a checkpoint stores for multi-token prediction."""

    NONE = "nothing"
    ELSEWHERE = "nothing: the drafter is a repository of its own, but it has a cache"
    SHARED = "a layer per module"
    OWN = "a layer per module, with an embedding and a head of its own"


@dataclass(frozen=True, slots=True)
class Family:
    """How a checkpoint is spelled."""

    prefix: str = "model.layers"
    attention: str = "self_attn"
    linear: str = "linear_attn"
    dense: str = "mlp"
    moe: str = "mlp"
    matrices: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")  # gate, up, down
    drafts: Drafts = Drafts.NONE
    draft_prefix: str = ""  # "" = MTP layers are numbered on after the last layer
    split_draft_projection: bool = False  # e_proj and h_proj instead of one eh_proj
    min_expert_partition: int = 0  # vllm/models/kimi_k3/nvidia/model.py pads narrower shares
    always_shared: int = 0  # shared experts that the config does not mention


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer before its precision is known."""

    shapes: tuple[Shape, ...]
    attention: Attention


DEEPSEEK = Family(drafts=Drafts.OWN)
GLM = Family(drafts=Drafts.SHARED)
MINIMAX = Family(moe="block_sparse_moe", matrices=("w1", "w3", "w2"))
QWEN35 = Family(prefix="model.language_model.layers", drafts=Drafts.SHARED, draft_prefix="mtp.layers")

FAMILIES: Mapping[str, Family] = {
    "DeepseekV2ForCausalLM": Family(),
    "DeepseekV3ForCausalLM": DEEPSEEK,
    "DeepseekV32ForCausalLM": DEEPSEEK,
    "DeepseekV4ForCausalLM": Family(
        prefix="layers", attention="attn", moe="ffn", matrices=("w1", "w3", "w2"),
        drafts=Drafts.SHARED, draft_prefix="mtp", split_draft_projection=True,
    ),
    "Gemma4ForConditionalGeneration": Family(prefix="model.language_model.layers"),
    "Glm4MoeForCausalLM": GLM,
    "GlmMoeDsaForCausalLM": GLM,
    "GptOssForCausalLM": Family(),
    "KimiK25ForConditionalGeneration": Family(prefix="language_model.model.layers"),
    "KimiK3ForConditionalGeneration": Family(
        prefix="language_model.model.layers", linear="self_attn", moe="block_sparse_moe",
        matrices=("w1", "w3", "w2"), min_expert_partition=256,
    ),
    "KimiLinearForCausalLM": Family(
        linear="self_attn", moe="block_sparse_moe", matrices=("w1", "w3", "w2")
    ),
    "Llama4ForConditionalGeneration": Family(
        prefix="language_model.model.layers", dense="feed_forward", moe="feed_forward", always_shared=1
    ),
    "MiMoV2FlashForCausalLM": Family(),
    "MiniMaxM2ForCausalLM": MINIMAX,
    "MiniMaxM3ForCausalLM": replace(MINIMAX, drafts=Drafts.ELSEWHERE),
    "MiniMaxM3SparseForConditionalGeneration": replace(
        MINIMAX, prefix="language_model.model.layers", drafts=Drafts.ELSEWHERE
    ),
    "MixtralForCausalLM": MINIMAX,
    "NemotronHForCausalLM": Family(
        prefix="backbone.layers", attention="mixer", linear="mixer", moe="mixer",
        drafts=Drafts.SHARED, draft_prefix="mtp.layers",
    ),
    "Qwen2ForCausalLM": Family(),
    "Qwen2_5_VLForConditionalGeneration": Family(),
    "LlamaForCausalLM": Family(),
    "Qwen3ForCausalLM": Family(),
    "Qwen3MoeForCausalLM": Family(),
    "Qwen3NextForCausalLM": Family(drafts=Drafts.SHARED, draft_prefix="mtp.layers"),
    "Qwen3VLMoeForConditionalGeneration": Family(prefix="model.language_model.layers"),
    "Qwen3_5MoeForCausalLM": replace(QWEN35, prefix="model.layers"),
    "Qwen3_5MoeForConditionalGeneration": QWEN35,
    "Qwen3_5ForConditionalGeneration": QWEN35,
    "Step3p5ForCausalLM": Family(drafts=Drafts.SHARED),
    "Step3p7FlashForCausalLM": Family(drafts=Drafts.SHARED),
}  # fmt: skip
NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
MAX_COMPRESSION = 4096
WINDOWED_TYPES = frozenset({"sliding_attention", "chunked_attention"})


def layer_shapes(config: Config, family: Family) -> list[LayerShape]:
    """Every decoder layer, in order."""
    kinds = block_kinds(config)
    if kinds is not None:
        return [_single_block(config, family, kind) for kind in kinds]
    return [
        _layer(config, family, index) for index in range(required(config, "num_hidden_layers", "n_layer"))
    ]


def block_kinds(config: Config) -> Sequence[str] | None:
    """Layers that hold one block each (Nemotron-H): mamba, attention, moe or mlp per layer."""
    return _blocks(config, "layers_block_type", "hybrid_override_pattern")


def _blocks(config: Config, words: str, letters: str) -> Sequence[str] | None:
    kinds = [str(kind) for kind in listed(config, words)]
    pattern = config.get(letters)
    if not kinds and isinstance(pattern, str):
        kinds = [NEMOTRON_LETTERS.get(letter, letter) for letter in pattern]
    if len(kinds) > MAX_LAYERS:
        raise UnreadableConfig(f"config.json: {len(kinds)} layers, beyond {MAX_LAYERS}")
    return kinds or None


def draft_shapes(config: Config, family: Family) -> list[LayerShape]:
    """The MTP layers that the checkpoint stores."""
    count = whole(config, "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    if family.drafts is Drafts.NONE:
        return []
    if family.drafts is Drafts.ELSEWHERE:
        return [LayerShape((), _draft_attention(config, family)) for _ in range(count)]
    return [_draft(config, family) for _ in range(count)]


def stores_own_embedding(family: Family) -> bool:
    """Whether MTP layers bring copies of embedding and head."""
    return family.drafts is Drafts.OWN


def _layer(config: Config, family: Family, index: int) -> LayerShape:
    hidden = required(config, "hidden_size")
    attention = attention_of(config, family, index)
    norms = (norm("input_layernorm", hidden), norm("post_attention_layernorm", hidden))
    return LayerShape((*attention.shapes, *_feed_forward(config, family, index), *norms), attention)


def _feed_forward(config: Config, family: Family, index: int) -> tuple[Shape, ...]:
    experts = mlp.Experts.of(config)
    if experts is None or not has_experts(config, index):
        return mlp.dense(config, family.dense)
    if family.always_shared:
        config = {**config, "n_shared_experts": family.always_shared}
    routed = mlp.sparse(config, experts, family.moe, family.matrices)
    beside = config.get("enable_moe_block")  # Gemma 4 keeps a dense MLP next to the experts
    return (*routed, *mlp.dense(config, family.dense)) if beside else routed


def has_experts(config: Config, index: int) -> bool:
    """Whether layer ``index`` of an MoE model routes."""
    layers = whole(config, "num_hidden_layers")
    kinds = per_layer(config, "mlp_layer_types", layers) or per_layer(config, "moe_layer_freq", layers)
    if kinds is not None:
        return kinds[index] not in {"dense", 0}
    if index < whole(config, "first_k_dense_replace") or index in listed(config, "mlp_only_layers"):
        return False
    step = whole(config, "interleave_moe_layer_step", "decoder_sparse_step", default=1) or 1
    return (index + 1) % step == 0


def attention_of(config: Config, family: Family, index: int) -> Attention:
    """Which attention layer ``index`` has."""
    layers = whole(config, "num_hidden_layers")
    name = family.attention
    if index + 1 in listed(section(config, "linear_attn_config"), "kda_layers"):  # counted from 1
        return att.delta(config, family.linear)
    ratios = per_layer(config, "compress_ratios", layers)
    if ratios is not None:
        return att.compressed(config, name, compression(ratios[index]))
    kinds = per_layer(config, "layer_types", layers)
    kind = str(kinds[index]) if kinds else ""
    if kind == "linear_attention":
        return att.gated_delta(config, family.linear)
    if whole(config, "kv_lora_rank"):
        roles = per_layer(config, "indexer_types", layers)
        indexed = whole(config, "index_head_dim") > 0 and (roles is None or roles[index] == "full")
        return att.latent(config, name, indexed, gated=bool(config.get("mla_use_output_gate")))
    frequency = per_layer(section(config, "sparse_attention_config"), "sparse_attention_freq", layers)
    if frequency and frequency[index]:
        return att.block_sparse(config, name)
    return att.grouped_query(
        config, name, windowed=_is_windowed(config, kind, index), full=kind == "full_attention"
    )


def compression(ratio: str | int) -> int:
    """Tokens per entry of a compressed layer; 0 = it keeps its window only."""
    if isinstance(ratio, str) or not 0 <= ratio <= MAX_COMPRESSION:
        raise UnreadableConfig(f"config.json: compress_ratios holds {ratio!r}, not 0 to {MAX_COMPRESSION}")
    return ratio


def _is_windowed(config: Config, kind: str, index: int) -> bool:
    layers = whole(config, "num_hidden_layers")
    pattern = per_layer(config, "hybrid_layer_pattern", layers)
    if pattern is not None:
        return bool(pattern[index])
    if kind:
        return kind in WINDOWED_TYPES
    # Llama 4: chunked attention except on every fourth layer, which has no rotary embedding
    return whole(config, "attention_chunk_size") > 0 and (index + 1) % 4 != 0


def _single_block(config: Config, family: Family, kind: str) -> LayerShape:
    before = norm("norm", required(config, "hidden_size"))
    if kind == "mamba":
        attention = att.mamba2(config, family.linear)
        return LayerShape((*attention.shapes, before), attention)
    if kind == "attention":
        attention = att.grouped_query(config, family.attention)
        return LayerShape((*attention.shapes, before), attention)
    experts = mlp.Experts.of(config)
    if kind == "moe" and experts:
        return LayerShape((*mlp.sparse(config, experts, family.moe, family.matrices), before), Attention(()))
    return LayerShape((*mlp.dense(config, family.dense), before), Attention(()))


def _draft(config: Config, family: Family) -> LayerShape:
    hidden, vocabulary = required(config, "hidden_size"), required(config, "vocab_size")
    kinds = _blocks(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern")
    if kinds:
        blocks = [_single_block(config, family, kind) for kind in kinds]
        shapes = tuple(s for block in blocks for s in block.shapes)
        attention = next((b.attention for b in blocks if b.attention.caches), Attention(()))
    else:
        attention = _draft_attention(config, family)
        shapes = (*attention.shapes, *_feed_forward(config, family, _last(config)))
    if family.split_draft_projection:
        joins = tuple(Shape(n, hidden, hidden, Part.DRAFT, Split.WHOLE) for n in ("e_proj", "h_proj"))
    else:
        joins = (Shape("eh_proj", hidden, 2 * hidden, Part.DRAFT, Split.WHOLE, fixed=BF16),)
    own = ("embed_tokens", "shared_head.head") if stores_own_embedding(family) else ()
    copies = tuple(Shape(n, vocabulary, hidden, Part.DRAFT, fixed=BF16) for n in own)
    return LayerShape((*shapes, *joins, *copies, norm("norms", 5 * hidden)), attention)


def _draft_attention(config: Config, family: Family) -> Attention:
    """Full attention: MTP layers have no window, no compression, no linear attention."""
    if "compress_ratios" in config:
        return att.compressed(config, family.attention, 0)
    if whole(config, "kv_lora_rank"):
        return att.latent(config, family.attention, indexed=whole(config, "index_head_dim") > 0)
    return att.grouped_query(config, family.attention)


def _last(config: Config) -> int:
    """The last layer, which has experts in every MoE model that stores MTP layers."""
    return required(config, "num_hidden_layers") - 1
