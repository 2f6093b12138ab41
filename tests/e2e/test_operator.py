"""The operator dies, is away, or is there twice, and the API server goes away: all of it converges."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from moe_operator.runtime.kube import POD

from e2e.cluster.command import CommandFailed, run
from e2e.scenarios.load import Load
from e2e.scenarios.manifest import merge
from e2e.scenarios.view import View
from tests.e2e.audit_log import Interval, now
from tests.e2e.conftest import Audited
from tests.e2e.deployments import deepseek
from tests.e2e.world import World, settled

NAME = "deepseek-v31"
ABSENCE_SECONDS = 300
API_ABSENCE_SECONDS = 60


async def pods_exist(world: World) -> bool:
    return bool(await world.pods(NAME))


async def first_revision(world: World) -> View:
    return await world.serve(deepseek(world.site, world.namespace))


STAGES: dict[str, Callable[[View], bool]] = {
    "seen": lambda v: v.status.observed_generation == v.generation,
    "planned": lambda v: v.planned(),
    "staged": lambda v: v.staged(v.status.target_revision),
    "one rank ready": lambda v: v.ranks_ready(v.status.target_revision) > 0,
    "switched": lambda v: v.status.active_revision == v.status.target_revision,
}


@pytest.mark.parametrize("stage", STAGES)
async def test_killed_at_a_stage_of_a_revision_change_it_goes_on_from_there(world: World, stage: str) -> None:
    """Both operators are killed with -9, so that nobody but their successors can finish the change."""
    before = await first_revision(world)
    change = {"spec": {"engine": {"image": world.site.images.stub_of("0.33.1")}}}
    applied = await world.apply(merge(deepseek(world.site, world.namespace), change))
    generation = applied["metadata"]["generation"]
    async with Load(await world.url(NAME), "deepseek-v31", clients=4, max_tokens=16) as load:
        await world.until(
            NAME, lambda v: v.generation == generation and v.current and STAGES[stage](v), stage
        )
        await world.kill_operators()
        view = await world.until(NAME, settled, f"killed when {stage}, the change is finished")
        tally = await load.finish()
    assert view.status.active_revision != before.status.active_revision
    assert tally.complaints() == []
    assert len(await world.pods(NAME)) == 2


async def test_the_holder_of_the_lease_dies_and_the_other_takes_over(world: World) -> None:
    """Two operators run all the time; one of them holds the Lease."""
    await first_revision(world)
    assert len(await world.operators()) == 2
    holder = await lease_holder(world)
    victim = next(pod for pod in await world.operators() if pod["metadata"]["name"] == holder)
    await world.kube.delete(POD, victim["metadata"]["namespace"], holder, grace_seconds=0)
    old = await world.uids(NAME)
    await world.kube.delete(POD, world.namespace, (await world.rank(NAME, 1))["metadata"]["name"])

    async def is_new() -> bool:
        return not old & await world.uids(NAME)

    await world.poll(is_new, "the other operator has replaced the group")
    await world.until(NAME, settled, "the group serves again")
    assert await lease_holder(world) != holder


async def lease_holder(world: World) -> str:
    client = world.site.record.client
    path = ("-n", "moe-system", "get", "lease", "-o", "jsonpath={.items[*].spec.holderIdentity}")
    return (await asyncio.to_thread(client, *path)).strip()


@asynccontextmanager
async def no_api_server() -> AsyncIterator[None]:
    """The kubelet of the control plane runs none for as long as it finds no manifest of it."""
    manifest, aside = "/etc/kubernetes/manifests/kube-apiserver.yaml", "/root/kube-apiserver.yaml"
    await on_the_control_plane(f"mv {manifest} {aside} && pkill -9 kube-apiserver")
    try:
        yield
    finally:
        await on_the_control_plane(f"mv {aside} {manifest}")


async def on_the_control_plane(script: str) -> None:
    await asyncio.to_thread(run, "docker", "exec", "moe-control-plane", "sh", "-c", script)


async def test_a_minute_without_the_api_server_hurts_nobody(
    world: World, audited: Audited, figures: dict[str, str]
) -> None:
    before = await first_revision(world)
    pods = await world.uids(NAME) | await world.uids(NAME, "gateway")
    async with Load(await world.url(NAME), "deepseek-v31", clients=4, max_tokens=16) as load:
        await load.reach(20)
        began = now()  # an API server that starts denies what it has not read the roles for
        async with no_api_server():
            gone = time.monotonic()
            while time.monotonic() - gone < API_ABSENCE_SECONDS:
                await load.reach(len(load.tally.requests) + 1)  # serving goes on by itself
        meanwhile = load.tally.sent

        async def answers() -> bool:
            try:
                return bool(await world.kubectl_soon("get", "--raw", "/readyz", "--request-timeout=2s"))
            except CommandFailed:
                return False

        await world.poll(answers, "the API server is back")
        audited.without_roles.append(Interval(began, now()))
        await load.reach(len(load.tally.requests) + 20)
        tally = await load.finish()
    figures[f"API server away for {API_ABSENCE_SECONDS} s"] = f"{meanwhile} requests meanwhile, 0 failed"
    assert tally.complaints() == []
    old = await world.uids(NAME)
    await world.kube.delete(POD, world.namespace, (await world.rank(NAME, 1))["metadata"]["name"])

    async def is_new() -> bool:
        return not old & await world.uids(NAME)

    await world.poll(is_new, "the operator sees what happens again")
    view = await world.until(NAME, settled, "the group serves again")
    assert view.status.active_revision == before.status.active_revision
    assert await world.uids(NAME, "gateway") <= pods


async def test_absent_for_five_minutes_while_a_pod_dies_and_the_spec_changes(
    world: World, figures: dict[str, str]
) -> None:
    before = await first_revision(world)
    async with Load(await world.url(NAME), "deepseek-v31", clients=2, max_tokens=16) as load:
        await load.reach(10)
        await world.scale_operator(0)
        began = time.monotonic()
        while time.monotonic() - began < ABSENCE_SECONDS:
            await load.reach(len(load.tally.requests) + 1)  # serving goes on by itself
        served = await load.finish()
    world.kill(await world.rank(NAME, 1), "engine")
    change = {"spec": {"engine": {"image": world.site.images.stub_of("0.33.1")}}}
    await world.apply(merge(deepseek(world.site, world.namespace), change))
    back = time.monotonic()
    await world.scale_operator(2)
    view = await world.until(NAME, settled, "the new spec serves")
    assert served.complaints() == []
    assert view.status.active_revision != before.status.active_revision
    seconds = time.monotonic() - back
    figures["operator absent for 5 minutes"] = (
        f"{served.sent} requests meanwhile, 0 failed; back, the new spec served after {seconds:.0f} s"
    )
