"""config.json → :class:`Checkpoint`: what decides whether and how a model can be sharded.

Multimodal checkpoints nest the language model in ``text_config``. The index's total is the truth about
size; what the arithmetic does not explain of it stays visible as "not classified" on every rank, and a
difference beyond ``DISAGREEMENT`` means that config and index are not of the same model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moe_operator.checkpoint.architectures import FAMILIES, Family, LayerShape, draft_shapes, layer_shapes
from moe_operator.checkpoint.fields import MAX_LAYERS, required, section, whole
from moe_operator.checkpoint.mlp import Experts
from moe_operator.checkpoint.model import Checkpoint, Layer
from moe_operator.checkpoint.precision import BF16, Precision
from moe_operator.checkpoint.quantization import Quantization, read_quantization
from moe_operator.checkpoint.unreadable import UnreadableConfig
from moe_operator.checkpoint.vision import vision_shapes
from moe_operator.checkpoint.weights import Part, Shape, Split, Weight

Config = Mapping[str, Any]
DISAGREEMENT = 0.15
WORTH_SAYING = 0.005
ONE_BYTE = Precision("bytes", 8)


def checkpoint_from_config(
    config: Config, weight_bytes: int | None = None, quantization_file: Config | None = None
) -> Checkpoint:
    """Read the facts out of a parsed config.json.

    ``weight_bytes``: the index's ``total_size``, None when there is no index. ``quantization_file``:
    ModelOpt's hf_quant_config.json. Raises UnreadableConfig naming the field.
    """
    inner = section(config, "text_config") or config
    architecture = _architecture(config, inner)
    family = FAMILIES.get(architecture, Family())
    if whole(inner, "num_hidden_layers", "n_layer") > MAX_LAYERS:
        raise UnreadableConfig(f"config.json: num_hidden_layers is beyond {MAX_LAYERS}")
    scheme = read_quantization(config, inner, quantization_file)
    layers = layer_shapes(inner, family)
    kinds, order = _distinct(
        [_stored(shape, scheme, f"{family.prefix}.{i}") for i, shape in enumerate(layers)]
    )
    drafts = [
        _stored(shape, scheme, f"{family.draft_prefix or family.prefix}.{_draft_number(family, layers, i)}")
        for i, shape in enumerate(draft_shapes(inner, family))
    ]
    outside = [*_embeddings(config, inner), *_vision(config)]
    computed = sum(kinds[k].nbytes for k in order) + sum(d.nbytes for d in drafts)
    computed += sum(w.nbytes for w in outside)
    assumptions = [*_architecture_assumptions(architecture), *_compare(architecture, computed, weight_bytes)]
    if weight_bytes and weight_bytes > computed:
        outside.append(_unexplained(weight_bytes - computed))
    experts = Experts.of(inner)
    heads = required(inner, "num_attention_heads", "n_head")
    return Checkpoint(
        architecture=architecture,
        hidden=required(inner, "hidden_size", "n_embd"),
        vocabulary=required(inner, "vocab_size"),
        attention_heads=heads,
        kv_heads=whole(inner, "num_key_value_heads") or heads,
        linear_heads=_linear_heads(inner),
        routed_experts=experts.count if experts else 0,
        experts_per_token=experts.per_token if experts else 0,
        expert_hidden=experts.hidden if experts else 0,
        expert_inner=experts.inner if experts else 0,
        max_positions=whole(inner, "max_position_embeddings", "model_max_length"),
        quantization=scheme.method,
        kv_fp8=scheme.kv_fp8,
        kinds=kinds,
        order=order,
        draft_layers=tuple(drafts),
        outside=tuple(outside),
        weight_bytes=weight_bytes or computed,
        computed_bytes=computed,
        min_expert_partition=family.min_expert_partition,
        known=architecture in FAMILIES,
        assumptions=tuple(assumptions),
    )


def _architecture(config: Config, inner: Config) -> str:
    names = config.get("architectures") or inner.get("architectures") or ()
    if isinstance(names, Sequence) and not isinstance(names, str) and names and isinstance(names[0], str):
        return names[0]
    raise UnreadableConfig("config.json names no architecture (field architectures)")


def _draft_number(family: Family, layers: Sequence[LayerShape], index: int) -> int:
    return index if family.draft_prefix else len(layers) + index


def _stored(layer: LayerShape, scheme: Quantization, prefix: str) -> Layer:
    weights = tuple(
        Weight.stored(s, s.fixed or scheme.of(f"{prefix}.{s.name}", routed=s.part is Part.ROUTED))
        for s in layer.shapes
    )
    attention = layer.attention
    return Layer(weights, attention.caches, attention.state, attention.absorbed_bytes)


def _distinct(layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
    numbers: dict[Layer, int] = {}
    order = tuple(numbers.setdefault(layer, len(numbers)) for layer in layers)
    return tuple(numbers), order


def _embeddings(config: Config, inner: Config) -> list[Weight]:
    vocabulary, hidden = required(inner, "vocab_size"), required(inner, "hidden_size", "n_embd")
    shapes = [
        Shape("embed_tokens", vocabulary, hidden, Part.EMBEDDING),
        Shape("norm", 1, hidden, Part.NORM, Split.WHOLE),
    ]
    if not (config.get("tie_word_embeddings") or inner.get("tie_word_embeddings")):
        shapes.append(Shape("lm_head", vocabulary, hidden, Part.HEAD))
    return [Weight.stored(shape, BF16) for shape in shapes]


def _vision(config: Config) -> list[Weight]:
    return [Weight.stored(shape, BF16) for shape in vision_shapes(section(config, "vision_config"))]


def _unexplained(size: int) -> Weight:
    return Weight.stored(Shape("not classified", 1, size, Part.OTHER, Split.WHOLE), ONE_BYTE)


def _architecture_assumptions(architecture: str) -> list[str]:
    if architecture in FAMILIES:
        return []
    return [
        f"architecture {architecture} has no reader of its own: its config is read under the usual field "
        "names, and its modules are taken to be called as in Llama and Qwen"
    ]


def _compare(architecture: str, computed: int, stated: int | None) -> list[str]:
    if not stated:
        return ["no index: the weights' size is worked out from config.json"]
    off = stated / computed - 1
    if architecture in FAMILIES and abs(off) > DISAGREEMENT:
        raise UnreadableConfig(
            f"config.json describes {computed:,} bytes of weights, but the index says {stated:,} "
            f"({off:+.0%}): they are not of the same model"
        )
    if abs(off) > WORTH_SAYING:
        return [f"the index says {stated:,} bytes, config.json's shapes give {computed:,} ({off:+.1%})"]
    return []


def _linear_heads(inner: Config) -> int:
    return whole(section(inner, "linear_attn_config"), "num_heads") or whole(
        inner, "linear_num_key_heads", "mamba_num_heads"
    )
