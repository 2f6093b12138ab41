"""Run the tiers of tests in order: ``python -m tests.tiers [TIER…]``; without names, those of this machine.

Fast tiers come first and the first tier that fails ends the run, so a typo costs seconds. Tiers whose tests
share nothing run on both cores; those that hold fixed addresses or time real processes run one by one. Each
tier's line says how long it took.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.settings import Folders

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Tier:
    """``commands`` run one after another; the first that fails ends the tier."""

    name: str
    commands: tuple[tuple[str, ...], ...]


def tool(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(BIN / name), *arguments)


def module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


def pytest(*paths: str, workers: int = 1) -> tuple[str, ...]:
    spread = ("-n", str(workers), "--dist", "loadfile") if workers > 1 else ()
    return module("pytest", "-q", *spread, *(f"tests/{path}" for path in paths))


LINT = Tier(
    "lint",
    (
        tool("ruff", "check", "--quiet", "."),
        tool("ruff", "format", "--check", "--quiet", "."),
        tool("mypy"),
        tool("lint-imports", "--no-cache"),
        module("moe_operator.api.generate", "--check"),
        module("e2e.chart.generate", "--check"),
    ),
)
REAL_API = ("env", f"MOE_CONTRACT_KUBECONFIG={Folders.from_environment().kubeconfig}")
ON_THIS_MACHINE = (
    LINT,
    Tier(
        "unit and property",
        (
            pytest(
                "api", "checkpoint", "hardware", "planning", "placement", "engines", "resources", "rollout",
                "reconcile", "cluster", "chart", "images", "real_engine", workers=2,
            ),
        ),
    ),
    Tier("simulator", (pytest("simulator", "faults", workers=2),)),
    Tier("contract", (pytest("contract", workers=2),)),
    Tier("runtime", (pytest("runtime", workers=2),)),
    Tier("stager", (pytest("staging"),)),
    Tier("engine stub", (pytest("engine_stub", workers=2),)),
    Tier("gateway", (pytest("gateway"),)),
    Tier("sandbox", (pytest("sandbox"),)),
    Tier("whole deployments", (pytest("deployments", "demo", "docs"),)),
)  # fmt: skip

ON_A_CLUSTER = (
    Tier("cluster with chart", (module("e2e.kind", "up", "--bootstrap"),)),
    Tier("contract on it", ((*REAL_API, *pytest("contract", workers=2), "-k", "cluster"),)),
    Tier("kind", (pytest("e2e"),)),
)
TIERS = (*ON_THIS_MACHINE, *ON_A_CLUSTER)


def exit_code(command: tuple[str, ...]) -> int:
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def run(tiers: tuple[Tier, ...]) -> int:
    told: list[str] = []
    code = 0
    for tier in tiers:
        print(f"\n=== {tier.name}", flush=True)
        began = time.monotonic()
        code = next((c for command in tier.commands if (c := exit_code(command))), 0)
        told.append(f"{'failed' if code else 'ok':7} {tier.name:20} {time.monotonic() - began:6.0f} s")
        if code:
            break
    print("\n=== summary", *told, sep="\n", flush=True)
    if code:
        print(f"not run: {', '.join(t.name for t in tiers[len(told) :]) or 'nothing'}", flush=True)
    return 1 if code else 0


def main(names: list[str]) -> int:
    unknown = set(names) - {tier.name for tier in TIERS}
    if unknown:
        print(f"no such tier: {', '.join(sorted(unknown))}; there are {', '.join(t.name for t in TIERS)}")
        return 2
    code = run(tuple(t for t in TIERS if t.name in names) if names else ON_THIS_MACHINE)
    if not names:
        print(
            f"on a real cluster, by `make test-kind`: {', '.join(t.name for t in ON_A_CLUSTER)}", flush=True
        )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
