"""config.json → the facts that decide whether and how a model can be sharded.

Multimodal checkpoints nest the language model in ``text_config``; architectures spell the number of
routed experts differently (transformers' model files), so each fact is read from the first name that
is present. A config that cannot be trusted is refused with the field and its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EXPERT_COUNT_NAMES = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
MAX_PLAUSIBLE = 1 << 24


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's shape. Zero means that the config does not say."""

    architecture: str
    layers: int
    attention_heads: int
    kv_heads: int
    routed_experts: int
    max_positions: int
    weight_bytes: int
    quantization: str

    @property
    def is_moe(self) -> bool:
        """Whether tokens are routed to experts."""
        return self.routed_experts > 1


class UnreadableConfig(ValueError):
    """config.json lacks a fact nobody can guess, or states an absurd one."""


def checkpoint_from_config(config: Mapping[str, Any], weight_bytes: int) -> Checkpoint:
    """Read the facts out of a parsed config.json; ``weight_bytes`` is the size of all tensors.

    Raises UnreadableConfig naming the field.
    """
    text = config.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, Mapping) else config
    heads = _positive(inner, ("num_attention_heads", "n_head"))
    return Checkpoint(
        architecture=_architecture(config, inner),
        layers=_positive(inner, ("num_hidden_layers", "n_layer")),
        attention_heads=heads,
        kv_heads=_optional(inner, ("num_key_value_heads",)) or heads,
        routed_experts=_optional(inner, EXPERT_COUNT_NAMES),
        max_positions=_optional(inner, ("max_position_embeddings", "model_max_length")),
        weight_bytes=weight_bytes,
        quantization=_quantization(config, inner),
    )


def _architecture(config: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    names = config.get("architectures") or inner.get("architectures") or ()
    if isinstance(names, Sequence) and not isinstance(names, str) and names and isinstance(names[0], str):
        return names[0]
    raise UnreadableConfig("config.json names no architecture (field architectures)")


def _quantization(config: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    declared = config.get("quantization_config") or inner.get("quantization_config") or {}
    return str(declared.get("quant_method", "")) if isinstance(declared, Mapping) else ""


def _optional(config: Mapping[str, Any], names: Sequence[str]) -> int:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PLAUSIBLE:
            raise UnreadableConfig(f"config.json: {name} = {value!r} is not a plausible whole number")
        return value
    return 0


def _positive(config: Mapping[str, Any], names: Sequence[str]) -> int:
    value = _optional(config, names)
    if value == 0:
        raise UnreadableConfig(f"config.json does not say {' or '.join(names)}")
    return value
