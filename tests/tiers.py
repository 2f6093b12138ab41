"""Run the tiers of tests in order: ``python -m tests.tiers [TIER…]``; without names, all that CI runs.

Fast tiers come first and the first tier that fails ends the run, so a typo costs seconds. Tiers whose tests
share nothing run on both cores; those that hold fixed addresses or time real processes run one by one. Each
tier's line says how long it took.

What a cluster needs (a node image, images of the product) takes long the first time. It is made beside the
tiers of this machine and waited for before the first tier that needs a cluster; whatever compiles has the
lowest priority.
``E2E=0`` leaves the cluster out, and the summary says so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

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


def pytest(*paths: str, workers: int = 1, dist: str = "loadfile") -> tuple[str, ...]:
    """``dist``: whole files to each worker, or ``worksteal`` where one file is most of the work."""
    spread = ("-n", str(workers), "--dist", dist) if workers > 1 else ()
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
    Tier("simulator", (pytest("simulator", "faults", workers=2, dist="worksteal"),)),
    Tier("contract", (pytest("contract", workers=2),)),
    Tier("runtime", (pytest("runtime", workers=2),)),
    Tier("stager", (pytest("staging", workers=2),)),
    Tier("engine stub", (pytest("engine_stub", workers=2),)),
    Tier("gateway", (pytest("gateway", workers=2),)),
    Tier("sandbox", (pytest("sandbox"),)),
    Tier("whole deployments", (pytest("deployments", "demo", "docs", workers=2, dist="worksteal"),)),
)  # fmt: skip

ON_A_CLUSTER = (
    Tier("cluster with chart", (module("e2e.kind", "up", "--bootstrap"),)),
    Tier("contract on it", ((*REAL_API, *pytest("contract", workers=2), "-k", "cluster"),)),
    Tier("kind", (pytest("e2e/test_life.py", "e2e/test_losses.py", "e2e/test_revision_change.py"),)),
)
WHOLE_KIND = Tier("kind, whole", (pytest("e2e"),))
TIERS = (*ON_THIS_MACHINE, *ON_A_CLUSTER, WHOLE_KIND)
PREPARE = module("e2e.kind", "prepare", "--bootstrap")


Steps = Iterator[tuple[str, Callable[[], int]]]
"""Name → what to do, which gives an exit code."""


@dataclass(frozen=True)
class Preparation:
    """A process that runs beside other steps, and the file that it writes to."""

    process: subprocess.Popen[bytes]
    output: BinaryIO

    @property
    def failed(self) -> bool:
        return bool(self.process.poll())

    def wait(self) -> int:
        """Its exit code, once everything that it says has been shown."""
        shown = 0
        while True:
            code = self.process.poll()
            said = os.pread(self.output.fileno(), 1 << 20, shown)
            print(said.decode(errors="replace"), end="", flush=True)
            shown += len(said)
            if code is not None and not said:
                return code
            time.sleep(0.5)


@contextmanager
def preparing() -> Iterator[Preparation]:
    """What a cluster needs, in the making; given up with the block."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(PREPARE, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        try:
            yield Preparation(process, output)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def everything(preparation: Preparation) -> Steps:
    """This machine's tiers, as long as there is hope for those after them."""
    for step in each(ON_THIS_MACHINE):
        if preparation.failed:
            break
        yield step
    yield "what a cluster needs", preparation.wait
    yield from each(ON_A_CLUSTER)


def each(tiers: Iterable[Tier]) -> Steps:
    return ((tier.name, partial(exit_code, tier)) for tier in tiers)


def exit_code(tier: Tier) -> int:
    codes = (subprocess.run(command, cwd=ROOT, check=False).returncode for command in tier.commands)
    return next((code for code in codes if code), 0)


def run(steps: Steps) -> int:
    told: list[str] = []
    code = 0
    for name, act in steps:
        print(f"\n=== {name}", flush=True)
        began = time.monotonic()
        code = act()
        told.append(f"{'failed' if code else 'ok':7} {name:20} {time.monotonic() - began:6.0f} s")
        if code:
            break
    told += (f"not run {name}" for name, _ in steps)
    print("\n=== summary", *told, sep="\n", flush=True)
    return 1 if code else 0


def main(names: list[str]) -> int:
    unknown = set(names) - {tier.name for tier in TIERS}
    if unknown:
        print(f"no such tier: {', '.join(sorted(unknown))}; there are {', '.join(t.name for t in TIERS)}")
        return 2
    if names:
        return run(each(tier for tier in TIERS if tier.name in names))
    if os.environ.get("E2E") == "0":
        code = run(each(ON_THIS_MACHINE))
        print(f"left out, because E2E=0: {', '.join(tier.name for tier in ON_A_CLUSTER)}", flush=True)
        return code
    with preparing() as preparation:
        return run(everything(preparation))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
