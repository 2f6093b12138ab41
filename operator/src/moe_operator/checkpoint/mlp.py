"""Feed-forward parts: dense, routed experts, shared experts, and what routes tokens to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moe_operator.checkpoint.fields import required, whole
from moe_operator.checkpoint.precision import BF16, FP32
from moe_operator.checkpoint.weights import Part, Shape, Split

Config = Mapping[str, Any]
EXPERT_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
EXPERTS_PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "top_k_experts",
)  # fmt: skip
LATENT = ("routed_expert_hidden_size", "moe_latent_size")


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of every MoE layer. ``hidden`` is the width they work on."""

    count: int
    per_token: int
    hidden: int
    inner: int
    gated: bool

    @classmethod
    def of(cls, config: Config) -> Experts | None:
        """None for a dense model."""
        count = whole(config, *EXPERT_COUNTS)
        if count <= 1:
            return None
        return cls(
            count=count,
            per_token=required(config, *EXPERTS_PER_TOKEN),
            hidden=whole(config, *LATENT) or required(config, "hidden_size"),
            inner=required(config, "moe_intermediate_size", "intermediate_size"),
            gated=is_gated(config),
        )


def is_gated(config: Config) -> bool:
    """Whether MLPs have a gate matrix beside up and down; squared ReLU has none."""
    return config.get("mlp_hidden_act") != "relu2"


def dense(config: Config, name: str) -> tuple[Shape, ...]:
    """The MLP of a layer without experts."""
    inner = required(config, "dense_intermediate_size", "intermediate_size_mlp", "intermediate_size")
    return _mlp(name, required(config, "hidden_size"), inner, Part.DENSE, is_gated(config))


def sparse(config: Config, experts: Experts, name: str, matrices: tuple[str, str, str]) -> tuple[Shape, ...]:
    """Router, routed experts, shared experts, and the projections into a latent where there is one.

    ``matrices``: the checkpoint's names of gate, up and down.
    """
    hidden = required(config, "hidden_size")
    shapes = [
        Shape(f"{name}.gate", experts.count, hidden, Part.ROUTER, Split.WHOLE, fixed=BF16),
        Shape(f"{name}.gate.bias", experts.count, 1, Part.ROUTER, Split.WHOLE, fixed=FP32),
        *_routed(experts, f"{name}.experts.*", matrices),
        *_shared(config, experts, name),
    ]
    if experts.hidden != hidden:
        shapes += [
            Shape(f"{name}.latent_down", experts.hidden, hidden, Part.ROUTER, Split.WHOLE, fixed=BF16),
            Shape(f"{name}.latent_up", hidden, experts.hidden, Part.ROUTER, Split.WHOLE, fixed=BF16),
        ]
    return tuple(shapes)


def _routed(experts: Experts, name: str, matrices: tuple[str, str, str]) -> list[Shape]:
    gate, up, down = matrices
    inward = [gate, up] if experts.gated else [up]
    shapes = [
        Shape(f"{name}.{m}", experts.inner, experts.hidden, Part.ROUTED, Split.EXPERTS, experts.count)
        for m in inward
    ]
    return [
        *shapes,
        Shape(f"{name}.{down}", experts.hidden, experts.inner, Part.ROUTED, Split.EXPERTS, experts.count),
    ]


def _shared(config: Config, experts: Experts, name: str) -> tuple[Shape, ...]:
    hidden = required(config, "hidden_size")
    count = whole(config, "n_shared_experts", "num_shared_experts")
    own = whole(
        config, "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
        "shared_intermediate_size", "share_expert_dim",
    )  # fmt: skip
    inner = own * max(count, 1) if own else count * experts.inner
    if not inner:
        return ()
    singular = "shared_expert_intermediate_size" in config
    shapes = _mlp(
        f"{name}.{'shared_expert' if singular else 'shared_experts'}",
        hidden,
        inner,
        Part.SHARED,
        experts.gated,
    )
    if singular:
        shapes += (Shape(f"{name}.shared_expert_gate", 1, hidden, Part.SHARED, Split.WHOLE, fixed=BF16),)
    return shapes


def _mlp(name: str, hidden: int, inner: int, part: Part, gated: bool) -> tuple[Shape, ...]:
    inward = ("gate_proj", "up_proj") if gated else ("up_proj",)
    return (
        *(Shape(f"{name}.{m}", inner, hidden, part) for m in inward),
        Shape(f"{name}.down_proj", hidden, inner, part),
    )
