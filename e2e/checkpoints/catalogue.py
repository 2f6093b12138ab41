"""The models that can be built: which published config, how many shards, whether tensors are shrunk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Model:
    """One published checkpoint layout.

    ``cut`` says where one shard ends: ``even`` after an equal number of bytes, ``layer`` after each
    decoder layer. ``count_digits`` is how the publisher pads the shard count in file names.
    """

    name: str
    shards: int
    cut: Literal["even", "layer"] = "even"
    count_digits: int = 6
    shrink: bool = True

    def config_text(self) -> bytes:
        """The published config.json, byte for byte."""
        return resources.files(__package__).joinpath("data", f"{self.name}.config.json").read_bytes()

    def config(self) -> dict[str, Any]:
        """The published config.json, parsed."""
        loaded: dict[str, Any] = json.loads(self.config_text())
        return loaded

    def shard_file(self, shard: int) -> str:
        """File name of shard ``shard``, counted from 0."""
        return f"model-{shard + 1:05d}-of-{self.shards:0{self.count_digits}d}.safetensors"


MODELS = {
    model.name: model
    for model in (
        Model("deepseek-r1", shards=163),
        Model("deepseek-v3.1", shards=163),
        Model("kimi-k3", shards=96, cut="layer"),
        Model("qwen3-235b-a22b", shards=118, count_digits=5),
        Model("qwen3-235b-a22b-fp8", shards=24, count_digits=5),
        Model("tiny-qwen3-moe", shards=2, count_digits=5, shrink=False),
    )
}
