"""The chart's life: upgraded and uninstalled under load, the deployments and what they serve stay."""

from __future__ import annotations

import asyncio

from e2e.kind.release import NAME as RELEASE
from e2e.kind.release import NAMESPACE, values
from e2e.scenarios.load import Load
from e2e.scenarios.manifest import merge
from tests.e2e.audit_log import Interval, now
from tests.e2e.conftest import Audited
from tests.e2e.deployments import deepseek
from tests.e2e.world import World, settled

NAME = "deepseek-v31"


async def test_upgrade_and_uninstall_leave_deployments_and_serving_alone(
    world: World, audited: Audited
) -> None:
    await world.serve(deepseek(world.site, world.namespace))
    pods = await world.uids(NAME) | await world.uids(NAME, "gateway")
    wanted, release = values(world.site.images), world.site.release
    async with Load(await world.url(NAME), "deepseek-v31", clients=4, max_tokens=16) as load:
        await asyncio.to_thread(release.install, merge(wanted, {"logLevel": "debug"}))
        began = now()  # Helm removes roles while the pods that use them are still ending
        await asyncio.to_thread(release.uninstall)
        audited.without_roles.append(Interval(began, now()))
        assert await world.operators() == []
        await load.reach(len(load.tally.requests) + 20)
        assert await world.exists(NAME)
        # as where there never was a chart
        world.site.record.client("-n", NAMESPACE, "delete", "lease", RELEASE)
        await asyncio.to_thread(release.install, wanted)
        tally = await load.finish()
    assert tally.complaints() == []
    assert await world.uids(NAME) | await world.uids(NAME, "gateway") == pods
    await world.until(NAME, settled, "the new operator finds all as it should be")
    change = {"spec": {"engine": {"image": world.site.images.stub_of("0.33.1")}}}
    await world.serve(merge(deepseek(world.site, world.namespace), change))
