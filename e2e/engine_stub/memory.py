"""How many bytes one rank needs: its share of the weights, and the KV cache that fits beside them.

The arithmetic is the engines' own (vllm/v1/core/kv_cache_utils.py, vllm/distributed/utils.py): parts that
every rank keeps whole (norms, routers, low-rank down-projections) are not divided; a key-value head is
copied when there are fewer heads than ranks; an MLA latent is copied to every rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from .parallel import Parallel, Rank

BLOCK_TOKENS = 16
REPLICATED = re.compile(
    r"(norm\w*|\.gate|kv_a_proj_with_mqa|\.q_a_proj|\.f_a_proj|e_score_correction_bias|res_proj|eh_proj"
    r"|routed_expert_(down|up)_proj|indexer\.\w+)(\.weight(_scale_inv)?)?$|^vision_tower|^mm_projector"
)
KEY_VALUE = re.compile(r"\.[kv]_proj\.")
LAYER = re.compile(r"\blayers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the arithmetic needs to know of a config.json."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: int | None  # MLA: bytes-free width of the cached latent (kv_lora_rank + rope), else None
    linear_layers: frozenset[int]  # layers with a constant state instead of a growing cache
    linear_heads: int
    linear_head_dim: int
    conv_kernel: int
    experts: int
    vocabulary: int
    max_positions: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Facts:
        """Read a config.json; KeyError when a required fact is missing."""
        text = config.get("text_config", config)
        heads = text["num_attention_heads"]
        linear = text.get("linear_attn_config") or {}
        rank = text.get("kv_lora_rank")
        return cls(
            layers=text["num_hidden_layers"],
            heads=heads,
            kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim") or text["hidden_size"] // heads,
            latent=rank + text["qk_rope_head_dim"] if rank else None,
            linear_layers=frozenset(layer - 1 for layer in linear.get("kda_layers", ())),
            linear_heads=linear.get("num_heads", 0),
            linear_head_dim=linear.get("head_dim", 0),
            conv_kernel=linear.get("short_conv_kernel_size", 0),
            experts=text.get("n_routed_experts")
            or text.get("num_experts")
            or text.get("num_local_experts")
            or 0,
            vocabulary=text["vocab_size"],
            max_positions=text["max_position_embeddings"],
        )


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one GPU."""

    rank: int
    weights: int
    kv_available: int
    kv_tokens: int

    def shown(self) -> dict[str, int]:
        """As the admin port shows it."""
        return {
            "rank": self.rank,
            "weightBytes": self.weights,
            "kvBytes": self.kv_available,
            "kvTokens": self.kv_tokens,
        }


@dataclass(frozen=True, slots=True)
class KvNeed:
    """Cache of one request on one rank: ``fixed`` + ``per_token`` × length."""

    fixed: int
    per_token: int

    def of(self, tokens: int) -> int:
        """Bytes for a request of ``tokens``."""
        return self.fixed + self.per_token * tokens

    def longest(self, available: int) -> int:
        """Longest request that fits, in whole blocks."""
        if not self.per_token:
            return 0
        return max(0, (available - self.fixed) // self.per_token // BLOCK_TOKENS * BLOCK_TOKENS)


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """Decoder layers of one pipeline stage: remainders go to the last stages but one (get_pp_indices)."""
    sizes = [layers // stages] * stages
    for extra in range(2, 2 + layers % stages):
        sizes[-extra] += 1
    start = sum(sizes[:stage])
    return range(start, start + sizes[stage])


def weight_bytes(
    parameters: Mapping[str, int], facts: Facts, parallel: Parallel, rank: Rank, *, draft: bool = False
) -> int:
    """Bytes of weights on ``rank``; ``draft`` adds the multi-token-prediction layers after the last."""
    stage = stage_layers(facts.layers, parallel.pipeline, rank.pipeline)
    last = rank.pipeline == parallel.pipeline - 1
    total = 0.0
    for name, size in parameters.items():
        found = LAYER.search(name)
        if found:
            layer = int(found[1])
            here = layer in stage or (draft and last and layer >= facts.layers)
        else:
            at_end = "lm_head" in name or name.endswith("model.norm.weight") or "output_attn_res" in name
            here = last if at_end else rank.pipeline == 0
        total += size * _share(name, facts, parallel) if here else 0
    return int(total)


def _share(name: str, facts: Facts, parallel: Parallel) -> float:
    if ".experts." in name:
        if parallel.experts_whole and facts.experts:
            return ceil(facts.experts / parallel.expert_ranks) / facts.experts
        return 1 / parallel.expert_ranks
    if REPLICATED.search(name):
        return 1.0
    if KEY_VALUE.search(name):
        return 1 / min(parallel.tensor, facts.kv_heads)
    return 1 / parallel.tensor


def kv_need(facts: Facts, parallel: Parallel, rank: Rank, cache_bytes: int) -> KvNeed:
    """Cache of one request on ``rank``; ``cache_bytes`` is the size of one cached number."""
    stage = stage_layers(facts.layers, parallel.pipeline, rank.pipeline)
    linear = sum(layer in facts.linear_layers for layer in stage)
    if facts.latent is not None:
        per_layer = facts.latent * cache_bytes
    else:
        per_layer = 2 * ceil(facts.kv_heads / parallel.tensor) * facts.head_dim * cache_bytes
    width, heads = facts.linear_heads * facts.linear_head_dim, facts.linear_heads
    state = (3 * width // parallel.tensor) * max(0, facts.conv_kernel - 1) * 2
    state += heads // parallel.tensor * facts.linear_head_dim**2 * 4
    return KvNeed(linear * state, (len(stage) - linear) * per_layer)
