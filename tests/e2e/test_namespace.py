"""A namespace that is deleted with all that serves in it: nobody has asked the operator first."""

from __future__ import annotations

import time
from dataclasses import replace

from moe_operator.runtime.kube import NAMESPACE, POD, ApiError

from e2e.kind.bring_up import provide
from tests.e2e.deployments import deepseek
from tests.e2e.world import World

DOOMED = "moe-e2e-doomed"


async def test_a_namespace_goes_with_a_deployment_that_serves(world: World, figures: dict[str, str]) -> None:
    """A process that ignores SIGTERM holds it up for its grace, and nothing else does."""
    await world.clear()
    client = world.site.record.client
    client("create", "namespace", DOOMED)
    provide(world.site.record, (DOOMED,))
    try:
        doomed = replace(world, namespace=DOOMED)
        await doomed.serve(deepseek(world.site, DOOMED))
        pods = (await world.kube.list(POD, DOOMED)).items
        grace = max(pod["spec"]["terminationGracePeriodSeconds"] for pod in pods)
        began = time.monotonic()
        await world.kube.delete(NAMESPACE, None, DOOMED)
        await doomed.poll(lambda: is_away(world, DOOMED), "the namespace is gone")
        figures["delete of a namespace with a serving deployment until it is gone"] = (
            f"{time.monotonic() - began:.1f} s (longest grace {grace} s)"
        )
    finally:
        client("delete", "namespace", DOOMED, "--ignore-not-found", "--wait=false")
        client("delete", "pv", f"checkpoints-{DOOMED}", "--ignore-not-found", "--wait=false")


async def is_away(world: World, namespace: str) -> bool:
    try:
        await world.kube.get(NAMESPACE, None, namespace)
    except ApiError as error:
        if not error.not_found:
            raise
        return True
    return False
