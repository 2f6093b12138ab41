"""Whether Gateways take an InferencePool, from what they wrote into its status."""

from __future__ import annotations

from typing import Any

import pytest
from moe_operator.reconcile.parent_answers import objections_to_pool

Obj = dict[str, Any]
GENERATION = 4
CONDITIONS = ("Accepted", "ResolvedRefs")


def answer(gateway: str, *, generation: int = GENERATION, without: str = "", **objections: str) -> Obj:
    """Of one Gateway; ``objections``: condition → why it is False."""
    conditions = [
        {
            "type": kind,
            "status": "False" if kind in objections else "True",
            "reason": objections.get(kind, kind),
            "message": "words" if kind in objections else "",
            "observedGeneration": generation,
        }
        for kind in CONDITIONS
        if kind != without
    ]
    return {"parentRef": {"name": gateway}, "conditions": conditions}


@pytest.mark.parametrize(
    ("parents", "objections"),
    [
        ([answer("a")], []),
        ([answer("a"), answer("b")], []),
        ([], ["no Gateway has answered: an HTTPRoute has to lead to InferencePool pool"]),
        (
            [answer("a"), answer("b", ResolvedRefs="InvalidExtensionRef")],
            ["Gateway team/b: ResolvedRefs is False: InvalidExtensionRef: words"],
        ),
        (
            [answer("a", generation=GENERATION - 1)],
            [f"Gateway team/a: {kind} is not known yet" for kind in CONDITIONS],
        ),
        ([answer("a", without="ResolvedRefs")], ["Gateway team/a: ResolvedRefs is not known yet"]),
    ],
    ids=["one", "all", "nobody", "one objects", "about the pool as it was", "half an answer"],
)
def test_a_pool_is_taken_when_somebody_has_answered_and_nobody_objects(
    parents: list[Obj], objections: list[str]
) -> None:
    meta = {"name": "pool", "namespace": "team", "generation": GENERATION}
    pool = {"metadata": meta, "spec": {}, "status": {"parents": parents}}
    assert list(objections_to_pool(pool)) == objections
