"""Every bad input of the common table, beside a deployment that serves under load."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from moe_operator.runtime.kube import MOE_DEPLOYMENT

from e2e.cluster.settings import Folders
from e2e.kind import shared_folder
from e2e.kind.bring_up import Site
from e2e.scenarios.load import Load
from e2e.scenarios.view import View
from tests.e2e.deployments import deepseek
from tests.e2e.world import World
from tests.faults.bad_inputs import BAD_INPUTS, BadInput, Ground

GOOD, MISSING, ALTERED = (
    "deepseek-v3.1",
    "model-00002-of-000163.safetensors",
    "model-00001-of-000163.safetensors",
)


@pytest.fixture(scope="module")
def ground(site: Site, folders: Folders) -> Ground:
    """A checkpoint without a shard, one whose list of sums is another's, and an image without an engine."""
    root = shared_folder.checkpoints(folders)
    good = root / GOOD
    for name in ("incomplete", "altered"):
        shutil.copytree(good, root / name, dirs_exist_ok=True)
    (root / "incomplete" / MISSING).unlink(missing_ok=True)
    sums = [f"{'ab' * 32 if p.name == ALTERED else sha256(p)}  {p.name}" for p in sorted(good.iterdir())]
    (root / "altered" / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    return Ground(
        broken_image=site.images.operator,
        unreachable="https://models.invalid/dsv31",
        incomplete="pvc://checkpoints/incomplete",
        altered="pvc://checkpoints/altered",
    )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def reached(view: View, bad: BadInput) -> bool:
    condition = view.status.condition(bad.condition)
    words = tuple(word.replace("-of-00163.", "-of-000163.") for word in bad.words)
    return (
        condition is not None
        and condition.reason == bad.reason
        and all(word in condition.message for word in words)
    )


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
async def test_it_ends_in_a_condition_and_nothing_that_served_stops(
    world: World, ground: Ground, bad: BadInput
) -> None:
    await world.serve(deepseek(world.site, world.namespace, "good"))
    serving = await world.uids("good")
    obj = deepseek(world.site, world.namespace, "bad")
    bad.spoil(obj["spec"], ground)
    async with Load(await world.url("good"), "good", clients=2, max_tokens=8) as load:
        await world.apply(obj)

        async def is_reached() -> bool:
            return reached(await world.view("bad"), bad)

        await world.poll(is_reached, f"{bad}: {bad.condition} {bad.reason} {bad.words}")
        await world.kube.delete(MOE_DEPLOYMENT, world.namespace, "bad")
        await world.gone("bad")
        tally = await load.finish()
    assert tally.complaints() == []
    assert await world.uids("good") == serving
