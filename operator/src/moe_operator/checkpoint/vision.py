"""The vision tower, roughly: transformer blocks from the usual fields.

Towers are under 1 % of the models that matter here, so one formula serves all; where the index states the
total, the remainder corrects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moe_operator.checkpoint.fields import whole
from moe_operator.checkpoint.precision import BF16
from moe_operator.checkpoint.weights import Part, Shape, Split

Config = Mapping[str, Any]


def vision_shapes(vision: Config) -> tuple[Shape, ...]:
    """Attention and MLP of every block, and a projector of two matrices; nothing when fields are missing."""
    hidden = whole(vision, "vt_hidden_size", "hidden_size")
    inner = whole(vision, "vt_intermediate_size", "intermediate_size")
    depth = whole(vision, "vt_num_hidden_layers", "num_hidden_layers", "depth")
    if not (hidden and inner and depth):
        return ()
    attention = whole(vision, "qkv_hidden_size") or hidden
    merged = hidden * whole(vision, "spatial_merge_size", default=2) ** 2
    out = whole(vision, "text_hidden_size", "out_hidden_size", "projection_dim") or hidden
    return (
        _tower("attention", 4 * attention, hidden, depth),
        _tower("mlp", 2 * inner, hidden, depth),
        _tower("projector", merged + out, merged, 1),
    )


def _tower(name: str, out: int, into: int, copies: int) -> Shape:
    return Shape(f"vision.{name}", out, into, Part.VISION, Split.WHOLE, copies, fixed=BF16)
