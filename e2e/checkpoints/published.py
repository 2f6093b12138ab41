"""Make the planner's catalogue of published models out of configs and totals that this repository holds.

    python -m e2e.checkpoints.published

writes operator/src/moe_operator/checkpoint/published_models.json. Nothing in it is written by hand: configs
come from tests/data/configs and from this package's data, totals from tests/data/planner/models.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "operator" / "src" / "moe_operator" / "checkpoint" / "published_models.json"
AS_OF = "2026-11-29"
VERBATIM = "publisher's config.json as in the Python package aiconfigurator-core 0.12.0"
HERE = {  # repository on the hub → config of this package
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v3.1",
}


def published_models() -> dict[str, Any]:
    """Repository → config.json, the index's total where it is known to the byte, and their sources."""
    known = json.loads((ROOT / "tests" / "data" / "planner" / "models.json").read_text())
    models = {
        name: _entry(ROOT / "tests" / "data" / "configs" / f"{entry['config']}.config.json", entry)
        for name, entry in known.items()
        if "config" in entry and entry["config"] == name.replace("/", "--") and "override" not in entry
    }
    models |= {
        name: _entry(Path(__file__).parent / "data" / f"{c}.config.json", {}) for name, c in HERE.items()
    }
    return {"asOf": AS_OF, "models": dict(sorted(models.items()))}


def _entry(path: Path, known: dict[str, Any]) -> dict[str, Any]:
    side = path.with_name(
        f"{known.get('quantization_file', path.name.removesuffix('.config.json'))}.hf_quant_config.json"
    )
    entry = {"config": json.loads(path.read_text()), "source": VERBATIM}
    if side.exists():
        entry["quantizationFile"] = json.loads(side.read_text())
    if _is_exact(known):
        entry |= {"totalBytes": known["total_bytes"], "totalSource": known["source"]}
    return entry


def _is_exact(known: dict[str, Any]) -> bool:
    """Whether the total was published, and not rounded to millions."""
    return known.get("total_bytes", 0) % 1_000_000 != 0 and "arithmetic" not in known["source"]


def text() -> str:
    """The catalogue as it is shipped."""
    return json.dumps(published_models(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
