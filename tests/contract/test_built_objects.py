"""Every object that the operator builds (the golden files of tests/resources), applied to an API server.

What it writes must come back as written and be no change the second time: drift is found by comparing.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from moe_operator.api.names import FIELD_MANAGER
from moe_operator.runtime.kube import Obj, kind_of

from tests.contract.world import World, owned_by
from tests.gateway_api import PUBLISHED, gateway_api

GOLDEN = sorted((Path(__file__).parents[1] / "resources" / "golden").glob("*.yaml"))
AT_REST: dict[str, Obj] = {  # a real cluster's controllers make nothing of these
    "Pod": {"schedulerName": "nobody"},
    "Deployment": {"replicas": 0},
    "Job": {"suspend": True},
}

MADE_BY_AN_ADMIN = ("priorityClassName", "runtimeClassName")  # pods that name absent ones are refused


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_what_the_operator_builds_is_taken_as_it_is(world: World, golden: Path) -> None:
    built = yaml.safe_load(golden.read_text(encoding="utf-8"))
    kind = kind_of(built)
    async with gateway_api(world.kube, kind) if kind in PUBLISHED else nullcontext():
        await taken_as_it_is(world, built)


async def taken_as_it_is(world: World, built: Obj) -> None:
    owner = await world.kube.create(world.deployment())
    built["metadata"] |= {
        "namespace": world.namespace,
        "ownerReferences": [owned_by(owner, block=True, controller=True)],
    }
    if built["kind"] in AT_REST:
        built["spec"] |= AT_REST[built["kind"]]

    for name in MADE_BY_AN_ADMIN:
        built.get("spec", {}).pop(name, None)
    if account := built.get("spec", {}).get("serviceAccountName"):
        meta = {"name": account, "namespace": world.namespace}
        await world.kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})

    made = await world.kube.apply(built, manager=FIELD_MANAGER)
    again = await world.kube.apply(built, manager=FIELD_MANAGER)

    assert lost(built, made) == []
    assert desired(again) == desired(made)


def desired(obj: Obj) -> Obj:
    """Without what a controller may have written meanwhile."""
    kept = {name: part for name, part in obj.items() if name not in ("status", "metadata")}
    meta = {name: obj["metadata"].get(name) for name in ("generation", "labels", "annotations", "uid")}
    if obj["kind"] == "Deployment":  # its controller numbers the revisions
        del meta["annotations"]
    return {**kept, "metadata": meta}


def lost(sent: Any, kept: Any, where: str = "") -> list[str]:
    """Paths of what was sent and did not come back.

    A real server keeps no empty lists and maps, and gives pods two tolerations more.
    """
    if isinstance(sent, dict) and isinstance(kept, dict):
        return [path for name, part in sent.items() for path in lost(part, kept.get(name), f"{where}.{name}")]
    if isinstance(sent, list) and isinstance(kept, list) and len(sent) <= len(kept):
        pairs = enumerate(zip(sent, kept, strict=False))
        return [path for index, (part, found) in pairs for path in lost(part, found, f"{where}[{index}]")]
    return [] if sent == kept or (kept is None and sent in ([], {})) else [where]
