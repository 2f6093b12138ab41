"""How long a plan takes: ``python -m benchmarks.planner``.

Kimi-K3 over all layouts of 32 H20 (the question of the example), and for comparison one pinned layout of
the same, reading the checkpoint's config, and finding the fewest nodes. Writes
benchmarks/results/planner.json and ends with one ``figure:`` line. Times are wall-clock of this process;
``ratio`` is all layouts ÷ one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from moe_operator.checkpoint.model_facts import checkpoint_from_config
from moe_operator.engines.known import ENGINES
from moe_operator.hardware.catalogue import CATALOGUE
from moe_operator.planning.plan import Pinned, Request
from moe_operator.planning.planner import plan

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "e2e/checkpoints/data/kimi-k3.config.json"
RESULT = ROOT / "benchmarks/results/planner.json"
WEIGHT_BYTES = 1_560_860_324_864
ROUNDS = 300
MIB = 1 << 20


def main() -> None:
    config = json.loads(CONFIG.read_text())
    gpu, judges = CATALOGUE["NVIDIA-H20"], ENGINES["vLLM"].judges
    asked = Request(
        engine="vLLM",
        checkpoint=checkpoint_from_config(config, WEIGHT_BYTES),
        pinned=Pinned(),
        nodes=4,
        gpus_per_node=8,
        domain_gpus=8,
        gpu_memory_bytes=gpu.memory_mib * MIB,
        memory_utilization=0.92,
        gpu=gpu,
    )
    one = replace(asked, pinned=Pinned(8, 1, 4, True, 1))
    everywhere = timed(lambda: plan(asked, judges))
    pinned = timed(lambda: plan(one, judges))
    figures: dict[str, Any] = {
        "layouts": plan(asked, judges).considered,
        "allLayouts": everywhere,
        "oneLayout": pinned,
        "readConfig": timed(lambda: checkpoint_from_config(config, WEIGHT_BYTES), 50),
        "fewestNodes": timed(lambda: plan(replace(asked, nodes=None), judges), 50),
        "ratio": round(everywhere["p50"] / pinned["p50"], 1),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    print(
        f"figure: a plan over {figures['layouts']} layouts takes {everywhere['p50']} ms "
        f"(p99 {everywhere['p99']} ms), {figures['ratio']} times that of one layout"
    )


def timed(call: Callable[[], object], rounds: int = ROUNDS) -> dict[str, float]:
    """Milliseconds: median and 99th percentile."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - began))
    taken.sort()
    return {"p50": round(taken[len(taken) // 2], 2), "p99": round(taken[int(len(taken) * 0.99)], 2)}


if __name__ == "__main__":
    main()
