"""The table of good and bad MoEDeployments, offered to an API server that has our CRD."""

from __future__ import annotations

from typing import Any

import pytest
from moe_operator.api.spec import MoEDeployment
from moe_operator.runtime.kube import ApiError, Obj

from tests.api.objects import Case, full, load_cases
from tests.contract.world import MOE, World

CASES = load_cases()


def offered(world: World, obj: dict[str, Any]) -> Obj:
    """The object as one of the tests' own kind in the tests' own namespace."""
    return {
        **obj,
        "apiVersion": MOE.api_version,
        "kind": MOE.kind,
        "metadata": {**obj["metadata"], "namespace": world.namespace},
    }


@pytest.mark.parametrize("case", [case for case in CASES if case.accepted], ids=str)
async def test_a_good_object_is_kept_with_the_defaults_that_python_fills_in(
    tidy_world: World, case: Case
) -> None:
    made = await tidy_world.kube.create(offered(tidy_world, case.object))

    assert made["spec"] == MoEDeployment.parse(case.object).spec.to_dict()
    assert "status" not in made


@pytest.mark.parametrize("case", [case for case in CASES if not case.accepted], ids=str)
async def test_a_bad_object_is_refused_with_the_field_at_fault(tidy_world: World, case: Case) -> None:
    with pytest.raises(ApiError) as refusal:
        await tidy_world.kube.create(offered(tidy_world, case.object))

    assert (refusal.value.status, refusal.value.reason) == (422, "Invalid")
    assert case.field in refusal.value.message


async def test_an_object_with_every_member_is_kept_and_applied_alike(tidy_world: World) -> None:
    everything = offered(tidy_world, full())
    made = await tidy_world.kube.apply(everything, manager="m")

    assert made["spec"] == MoEDeployment.parse(full()).spec.to_dict()
    assert await tidy_world.kube.apply(everything, manager="m") == made
