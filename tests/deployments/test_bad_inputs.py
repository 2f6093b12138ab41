"""Every bad input, beside a deployment that serves: it ends in a condition, and the other goes on serving."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from moe_operator.runtime.kube import MOE_DEPLOYMENT
from moe_operator.sandbox.objects import Key
from moe_operator.sandbox.run import Sandbox, SandboxConfig

from tests.deployments.conftest import RANGE, images
from tests.deployments.site import Site, moe_deployment
from tests.faults.bad_inputs import BAD_INPUTS, BadInput, Ground

GROUND = Ground(
    broken_image="broken:1",
    unreachable="https://models.invalid/dsv31",
    incomplete="pvc://checkpoints/incomplete",
    altered="pvc://checkpoints/altered",
)
MISSING = "model-00002-of-000163.safetensors"
ALTERED = "model-00001-of-000163.safetensors"


@pytest.fixture(scope="module")
def spoilt(checkpoints: Path) -> Iterator[Path]:
    """The good checkpoint, one without a shard, and one whose list of sums is another's."""
    good = checkpoints / "deepseek-v3.1"
    for name in ("incomplete", "altered"):
        shutil.copytree(good, checkpoints / name)
    (checkpoints / "incomplete" / MISSING).unlink()
    sums = [f"{'ab' * 32 if p.name == ALTERED else sha256(p)}  {p.name}" for p in sorted(good.iterdir())]
    (checkpoints / "altered" / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    yield checkpoints
    for name in ("incomplete", "altered"):
        shutil.rmtree(checkpoints / name)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def reached(site: Site, bad: BadInput) -> bool:
    condition = site.condition(bad.condition, "bad")
    words = tuple(word.replace("-of-00163.", "-of-000163.") for word in bad.words)
    return condition.get("reason") == bad.reason and all(word in condition["message"] for word in words)


async def test_each_ends_in_a_condition_and_nothing_that_served_stops(tmp_path: Path, spoilt: Path) -> None:
    config = SandboxConfig(
        images=images(broken="/no/such/command"),
        claims={Key("default", "checkpoints"): spoilt},
        state_dir=tmp_path / "state",
        loopback=RANGE,
    )
    async with Sandbox(config) as sandbox:
        site = Site(sandbox)
        await site.apply(moe_deployment())
        await site.until(site.stable, "the good one is stable")
        serving = site.uids()
        for bad in BAD_INPUTS:
            obj = moe_deployment("bad")
            bad.spoil(obj["spec"], GROUND)
            await site.apply(obj)
            await site.until(lambda bad=bad: reached(site, bad), f"{bad}: {bad.condition} {bad.reason}")
            assert site.stable(), bad.name
            assert serving <= site.uids(), bad.name
            await sandbox.kube.delete(MOE_DEPLOYMENT, "default", "bad")
            await site.until(lambda: not site.exists("bad"), f"{bad}: it can be deleted")
