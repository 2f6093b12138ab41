"""Models that cases and roles are about: tests/data/planner/models.json → Checkpoint."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from moe_operator.checkpoint.model import Checkpoint
from moe_operator.checkpoint.model_facts import checkpoint_from_config

DATA = Path(__file__).parents[1] / "data"
CONFIGS = DATA / "configs"
Json = dict[str, Any]


@cache
def models() -> dict[str, Json]:
    return dict(json.loads((DATA / "planner" / "models.json").read_text()))


@cache
def config(name: str) -> Json:
    """A published config.json of tests/data/configs."""
    return dict(json.loads((CONFIGS / f"{name}.config.json").read_text()))


def quantization_file(name: str) -> Json | None:
    path = CONFIGS / f"{name}.hf_quant_config.json"
    return dict(json.loads(path.read_text())) if path.exists() else None


@cache
def checkpoint(name: str, with_total: bool = True) -> Checkpoint:
    """The model ``name`` of models.json; ``with_total`` = with the published size, where there is one."""
    entry = models()[name]
    facts = entry.get("facts") or config(entry["config"])
    if override := entry.get("override"):
        facts = {**facts, **override}
        if "text_config" in facts:
            facts["text_config"] = {**facts["text_config"], **override}
    side = quantization_file(entry["quantization_file"]) if "quantization_file" in entry else None
    return checkpoint_from_config(facts, entry.get("total_bytes") if with_total else None, side)
