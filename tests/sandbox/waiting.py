"""Waiting for a condition of a sandbox, with a deadline and a useful failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from moe_operator.runtime.kube import POD, ApiError
from moe_operator.sandbox.run import Sandbox

from tests.sandbox.objects import Obj

DEADLINE = 20.0
POLL = 0.02


async def until(check: Callable[[], object], what: str, deadline: float = DEADLINE) -> None:
    """Wait until ``check`` is true."""
    try:
        async with asyncio.timeout(deadline):
            while not check():
                await asyncio.sleep(POLL)
    except TimeoutError:
        raise AssertionError(f"not within {deadline}s: {what}") from None


async def until_up(sandbox: Sandbox, pod: str, said: str = "up\n") -> None:
    """Wait until the sandbox knows the process of a pod's ``main``, and that has ``said`` so much."""

    def up() -> bool:
        runs = any(found.pod == pod and found.container == "main" for found in sandbox.running())
        return runs and sandbox.logs(pod, "main") == said

    await until(up, f"{pod} runs")


async def pod_when(sandbox: Sandbox, name: str, check: Callable[[Obj], object]) -> Obj:
    """The pod as soon as it satisfies ``check``."""
    seen: Obj = {}
    try:
        async with asyncio.timeout(DEADLINE):
            while True:
                seen = await sandbox.kube.get(POD, "default", name)
                if check(seen):
                    return seen
                await asyncio.sleep(POLL)
    except TimeoutError:
        raise AssertionError(f"pod {name} stayed at {json.dumps(seen.get('status'), indent=1)}") from None


async def gone(sandbox: Sandbox, name: str) -> None:
    """Wait until the API does not know the pod any more."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                await sandbox.kube.get(POD, "default", name)
            except ApiError as error:
                assert error.not_found
                return
            await asyncio.sleep(POLL)


def phase(wanted: str) -> Callable[[Obj], bool]:
    """Whether a pod is in a phase."""
    return lambda pod: pod["status"].get("phase") == wanted


def ready(pod: Obj) -> bool:
    """Whether a pod is Ready."""
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def container_status(pod: Obj, name: str) -> Obj:
    """The status of a container or init container; empty while there is none."""
    status = pod["status"]
    entries = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return next((e for e in entries if e["name"] == name), {})


def state(pod: Obj, name: str, kind: str) -> Obj:
    """The body of a container's state when it is ``kind`` (waiting, running, terminated)."""
    body: Obj = container_status(pod, name).get("state", {}).get(kind, {})
    return body
