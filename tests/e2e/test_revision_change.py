"""A change of revision: under load nothing fails and nothing breaks; beside GitOps tools nobody fights."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from moe_operator.api.names import FIELD_MANAGER
from moe_operator.rollout.revision import RECORDS_KEPT
from moe_operator.runtime.kube import CONTROLLER_REVISION, MOE_DEPLOYMENT
from rich.console import Console

from e2e.scenarios.demo import tell
from e2e.scenarios.manifest import merge
from e2e.scenarios.replace_revision import Told, Wish
from e2e.scenarios.screen import Screen
from e2e.scenarios.view import View
from tests.e2e.deployments import deepseek
from tests.e2e.world import World, settled

Obj = dict[str, Any]
NAME = "deepseek-v31"
REQUESTS = 2_000
ARGO, FLUX = "argocd-controller", "kustomize-controller"


async def test_nothing_fails_and_nothing_breaks(world: World, figures: dict[str, str]) -> None:
    await world.clear()
    written, told = io.StringIO(), Told()
    wish = Wish(
        deepseek(world.site, world.namespace),
        world.site.images.stub_of("0.33.1"),
        clients=20,
        requests=REQUESTS,
        max_tokens=16,
    )
    code = await tell(world.backend, Screen(Console(file=written, width=120)), wish, told)
    assert (code, told.findings()) == (0, []), written.getvalue()
    tally = told.tally
    assert tally.sent >= REQUESTS
    assert (tally.count("failed"), tally.count("broken")) == (0, 0)
    assert len(tally.by_revision()) == 2
    assert tally.across(told.switched) > 0
    figures["revision change under load"] = (
        f"{tally.sent} requests, {tally.count('failed')} failed, {tally.count('broken')} broken"
    )


async def test_a_gitops_tool_that_applies_every_second_finds_nothing_to_change(world: World) -> None:
    """Argo CD and Flux apply the same manifest again and again with field managers of their own."""
    first = deepseek(world.site, world.namespace)
    second = merge(first, {"spec": {"engine": {"image": world.site.images.stub_of("0.33.1")}}})
    await world.serve(first)
    for manager in (ARGO, FLUX):
        await world.apply(second, manager)
    generation = (await world.view(NAME)).generation
    async with reapplied(world, second) as diffs:
        view = await world.until(NAME, settled, "the second revision serves")
    assert diffs.seen == []
    assert diffs.looks >= 3
    assert view.generation == generation
    assert await owners_of_spec(world) == {ARGO, FLUX}


async def test_records_of_old_revisions_are_let_go(world: World) -> None:
    """Each spec that was ever accepted leaves a record; they do not grow without end."""
    first = deepseek(world.site, world.namespace)
    await world.serve(first)
    for number in range(RECORDS_KEPT + 2):
        spec = {"spec": {"engine": {"maxNumSeqs": 16 + number}}}
        generation = (await world.apply(merge(first, spec)))["metadata"]["generation"]
        await world.until(NAME, partial(is_taken_up, generation), "it is taken up")
    await world.serve(first)

    async def few() -> bool:
        records = (await world.kube.list(CONTROLLER_REVISION, world.namespace)).items
        return len(records) == RECORDS_KEPT + 1

    await world.poll(few, f"the newest {RECORDS_KEPT} records are left, and that of what serves")


def is_taken_up(generation: int, view: View) -> bool:
    return view.generation == generation and view.current


class Diffs:
    """What a tool would call out of sync: an apply that changed the object's spec or its own metadata."""

    def __init__(self) -> None:
        self.looks = 0
        self.seen: list[str] = []


@asynccontextmanager
async def reapplied(world: World, obj: Obj) -> AsyncIterator[Diffs]:
    """Apply as each tool once a second, comparing what is there before and after."""
    diffs = Diffs()

    async def keep() -> None:
        while True:
            for manager in (ARGO, FLUX):
                before = await world.kube.get(MOE_DEPLOYMENT, world.namespace, NAME)
                after = await world.kube.apply(obj, manager=manager, force=False)  # a conflict is an error
                diffs.looks += 1
                if mine(before) != mine(after):
                    diffs.seen.append(f"{manager}: {mine(before)} became {mine(after)}")
            await asyncio.sleep(1)

    task = asyncio.create_task(keep())
    try:
        yield diffs
    finally:
        task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended


def mine(obj: Obj) -> str:
    """What a manifest in Git can say of an object."""
    meta = {key: obj["metadata"].get(key) for key in ("labels", "annotations", "generation")}
    return json.dumps([meta, obj["spec"]], sort_keys=True)


async def owners_of_spec(world: World) -> set[str]:
    found = await world.kube.get(MOE_DEPLOYMENT, world.namespace, NAME)
    entries = found["metadata"]["managedFields"]
    owners = {entry["manager"] for entry in entries if "f:spec" in entry["fieldsV1"]}
    assert FIELD_MANAGER not in owners
    return owners - {"kubectl"}
