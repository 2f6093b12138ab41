"""config.json → :class:`Checkpoint`: what decides whether and how a model can be sharded.

Multimodal checkpoints nest the language model in ``text_config``. The index's total is the truth about
size; what the arithmetic does not explain of it stays visible as "not classified" on every rank. Beyond
``DISAGREEMENT`` the two contradict each other: the checkpoint says so, and its plan counts the larger size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moe_operator.checkpoint.architectures import FAMILIES, Family, LayerShape, draft_shapes, layer_shapes
from moe_operator.checkpoint.fields import MAX_LAYERS, required, section, whole
from moe_operator.checkpoint.mlp import EXPERT_COUNTS, Experts
from moe_operator.checkpoint.model import Checkpoint, Layer
from moe_operator.checkpoint.precision import BF16
from moe_operator.checkpoint.quantization import Quantization, read_quantization
from moe_operator.checkpoint.tensor_names import sort_tensors, weight_of
from moe_operator.checkpoint.unreadable import UnreadableConfig
from moe_operator.checkpoint.vision import vision_shapes
from moe_operator.checkpoint.weights import Part, Shape, Split, Weight

Config = Mapping[str, Any]
DISAGREEMENT = 0.15
WORTH_SAYING = 0.005


def checkpoint_from_config(
    config: Config,
    weight_bytes: int | None = None,
    quantization_file: Config | None = None,
    tensors: Mapping[str, int] | None = None,
) -> Checkpoint:
    """Read the facts out of a parsed config.json.

    ``weight_bytes``: the index's ``total_size``, None when there is no index. ``quantization_file``:
    ModelOpt's hf_quant_config.json. ``tensors``: bytes by tensor name, as the safetensors headers say.
    Raises UnreadableConfig naming the field.
    """
    inner = section(config, "text_config") or config
    architecture = _architecture(config, inner)
    known, family = architecture in FAMILIES, FAMILIES.get(architecture, Family())
    if whole(inner, "num_hidden_layers", "n_layer") > MAX_LAYERS:
        raise UnreadableConfig(f"config.json: num_hidden_layers is beyond {MAX_LAYERS}")
    scheme = read_quantization(config, inner, quantization_file)
    parts = _Parts(
        tuple(_stored(s, scheme, f"{family.prefix}.{i}") for i, s in enumerate(layer_shapes(inner, family))),
        _drafts(inner, family, scheme),
        (*_embeddings(config, inner), *_vision(config)),
    )
    computed = parts.nbytes
    stated = sum(tensors.values()) if tensors else weight_bytes
    contradiction = _contradiction(known, computed, stated)
    if known and stated and stated > computed:
        parts = replace(parts, outside=(*parts.outside, _unexplained(stated - computed)))
    elif not known and tensors:
        parts = _by_name(parts, tensors, whole(inner, *EXPERT_COUNTS))
    elif not known and stated:
        parts = _scaled(parts, stated / computed)
    kinds, order = _distinct(parts.layers)
    said = (_unread(architecture, bool(tensors)), _difference(computed, stated))
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
        draft_layers=parts.drafts,
        outside=parts.outside,
        weight_bytes=max(stated or 0, computed) if contradiction or not stated else stated,
        computed_bytes=computed,
        min_expert_partition=family.min_expert_partition,
        known=known,
        assumptions=tuple(text for text in said if text),
        contradiction=contradiction,
    )


def _architecture(config: Config, inner: Config) -> str:
    names = config.get("architectures") or inner.get("architectures") or ()
    first = names[0] if isinstance(names, Sequence) and not isinstance(names, str) and names else None
    if isinstance(first, str) and first:
        return first
    raise UnreadableConfig("config.json names no architecture (field architectures)")


@dataclass(frozen=True, slots=True)
class _Parts:
    layers: tuple[Layer, ...]
    drafts: tuple[Layer, ...]
    outside: tuple[Weight, ...]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in (*self.layers, *self.drafts)) + sum(
            w.nbytes for w in self.outside
        )


def _drafts(inner: Config, family: Family, scheme: Quantization) -> tuple[Layer, ...]:
    """MTP layers; without a prefix of their own they are numbered on."""
    prefix = family.draft_prefix or family.prefix
    first = 0 if family.draft_prefix else required(inner, "num_hidden_layers")
    shapes = draft_shapes(inner, family)
    return tuple(_stored(shape, scheme, f"{prefix}.{first + i}") for i, shape in enumerate(shapes))


def _by_name(parts: _Parts, tensors: Mapping[str, int], experts: int) -> _Parts:
    """The exact bytes of every tensor, with the caches that the config describes."""
    named = sort_tensors(tensors, experts)
    count = len(parts.layers)
    layers = tuple(
        replace(layer, weights=named.layers.get(number, ())) for number, layer in enumerate(parts.layers)
    )
    beyond = tuple(Layer(weights) for number, weights in named.layers.items() if number >= count)
    return _Parts(layers, beyond, named.outside)


def _scaled(parts: _Parts, factor: float) -> _Parts:
    """The index's total, divided as the config's shapes are."""

    def scaled(weights: Iterable[Weight]) -> tuple[Weight, ...]:
        return tuple(replace(w, nbytes=round(w.nbytes * factor)) for w in weights)

    layers = tuple(replace(layer, weights=scaled(layer.weights)) for layer in parts.layers)
    drafts = tuple(replace(layer, weights=scaled(layer.weights)) for layer in parts.drafts)
    return _Parts(layers, drafts, scaled(parts.outside))


def _stored(layer: LayerShape, scheme: Quantization, prefix: str) -> Layer:
    weights = tuple(
        Weight.stored(s, s.fixed or scheme.of(f"{prefix}.{s.name}", routed=s.part is Part.ROUTED))
        for s in layer.shapes
    )
    attention = layer.attention
    copies = attention.absorbed_bytes, attention.unpacked_bytes
    return Layer(weights, attention.caches, attention.state, *copies)


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
    return weight_of(Part.OTHER, Split.WHOLE, size, experts=0)


def _unread(architecture: str, by_name: bool) -> str:
    if architecture in FAMILIES:
        return ""
    split = (
        "weights are sorted by the names of their tensors" if by_name else "modules are taken to be Llama's"
    )
    return (
        f"architecture {architecture} has no reader of its own: its config is read under the usual field "
        f"names, and {split}"
    )


def _difference(computed: int, stated: int | None) -> str:
    if not stated:
        return "no index: the weights' size is worked out from config.json"
    off = stated / computed - 1
    if abs(off) <= WORTH_SAYING:
        return ""
    return f"the index says {stated:,} bytes, config.json's shapes give {computed:,} ({off:+.1%})"


def _contradiction(known: bool, computed: int, stated: int | None) -> str:
    """What to say when config and index cannot be of the same model; "" when they can."""
    if not stated or not known or abs(stated / computed - 1) <= DISAGREEMENT:
        return ""
    return (
        f"config.json describes {computed:,} bytes of weights, but the index says {stated:,}: they are not "
        "of the same model, or the index is not of the whole model"
    )


def _linear_heads(inner: Config) -> int:
    return whole(section(inner, "linear_attn_config"), "num_heads") or whole(
        inner, "linear_num_key_heads", "mamba_num_heads"
    )
