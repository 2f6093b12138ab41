"""The operator's Lease: one holder, handed over, never shared."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from moe_operator.runtime.kube import LEASE
from moe_operator.runtime.lease import LEASE_NAME, LeaderLease, LeaseTimes

from tests.contract.world import DEADLINE, World


def contender(world: World, identity: str) -> LeaderLease:
    return LeaderLease(
        world.kube,
        world.namespace,
        identity,
        wall=lambda: datetime.now(UTC),
        monotonic=asyncio.get_running_loop().time,
        sleep=asyncio.sleep,
        times=LeaseTimes(retry=0.05),
    )


async def test_a_lease_goes_from_one_holder_to_the_next(world: World) -> None:
    first, second = contender(world, "first"), contender(world, "second")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())

    held = await world.kube.get(LEASE, world.namespace, LEASE_NAME)
    await first.release()
    async with asyncio.timeout(DEADLINE):
        await waiting

    taken = await world.kube.get(LEASE, world.namespace, LEASE_NAME)
    assert (held["spec"]["holderIdentity"], taken["spec"]["holderIdentity"]) == ("first", "second")
    assert taken["spec"]["leaseTransitions"] == 1
