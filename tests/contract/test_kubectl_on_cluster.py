"""What people see of our resource through kubectl; only a real API server and a real kubectl can say.

Like the backend ``cluster`` these tests join when ``MOE_CONTRACT_KUBECONFIG`` is set. kubectl is looked for
on PATH, then where the cluster tool keeps it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator

import pytest

from e2e.cluster.settings import Folders
from tests.contract.conftest import REAL
from tests.contract.world import MOE, World, condition

NAME = f"{MOE.plural}.{MOE.group}"
EXPLAIN = ("explain", f"--api-version={MOE.api_version}")


class Kubectl:
    """kubectl in the namespace of one test."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    async def __call__(self, *arguments: str) -> str:
        """Standard output of a call that must succeed."""
        process = await self.start(*arguments)
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """A call that goes on."""
        beside = Folders.from_environment().state / "bin"
        return await asyncio.create_subprocess_exec(
            "kubectl", "--kubeconfig", REAL, "--namespace", self._namespace, *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PATH": f"{os.environ['PATH']}:{beside}"},
        )  # fmt: skip


@pytest.fixture
def backend(custom_kind_in_the_cluster: None) -> str:
    return "cluster"


@pytest.fixture
async def kubectl(world: World) -> AsyncIterator[Kubectl]:
    await world.kube.create(world.deployment())
    yield Kubectl(world.namespace)


async def test_explain_says_what_each_member_is_for(kubectl: Kubectl) -> None:
    text = await kubectl(*EXPLAIN, f"{MOE.plural}.spec")

    members = re.findall(r"^  (\w+)\t<([^>]+)>( -required-)?\n    (\S.*)$", text, re.MULTILINE)
    assert {name for name, *_ in members} >= {"model", "engine", "accelerators", "gateway", "rollout"}
    assert {name for name, _, required, _ in members if required} == {"model", "engine", "accelerators"}
    assert len(members) == len(re.findall(r"^  \w+\t<", text, re.MULTILINE))  # none without a word


async def test_explain_shows_choices_and_defaults(kubectl: Kubectl) -> None:
    engine = await kubectl(*EXPLAIN, f"{MOE.plural}.spec.engine.type")
    assert "ENUM:\n    vLLM\n    SGLang\n" in engine
    assert "Engine inside the image." in engine
    everything = await kubectl(*EXPLAIN, MOE.plural, "--recursive")
    assert "memoryUtilization\t<string>" in everything
    assert "conditions\t<[]Object>" in everything


async def test_get_has_our_columns(world: World, kubectl: Kubectl) -> None:
    rollout = {"phase": "Stable"}
    ready = {**condition("Ready", "False"), "reason": "Staging", "message": "17 of 62 files"}
    await world.kube.apply_status(
        world.status(activeRevision="a1b2c3", readyReplicas=1, rollout=rollout, conditions=[ready]),
        manager="s",
    )

    head, row = (await kubectl("get", NAME)).splitlines()
    assert head.split() == ["NAME", "READY", "PHASE", "ACTIVE", "TARGET", "GROUPS", "PLAN", "AGE"]
    assert row.split()[:5] == ["moe", "False", "Stable", "a1b2c3", "1"]
    wide, row = (await kubectl("get", NAME, "-o", "wide")).splitlines()
    assert wide.split()[-5:] == ["LAYOUT", "NODES", "WEIGHTS", "MESSAGE", "AGE"]
    assert "17 of 62 files" in row


async def test_wait_returns_when_the_status_says_ready(world: World, kubectl: Kubectl) -> None:
    waiting = await kubectl.start("wait", f"{NAME}/moe", "--for=condition=Ready", "--timeout=90s")
    for state in ("False", "Unknown", "True"):
        await world.kube.apply_status(world.status(conditions=[condition("Ready", state)]), manager="s")
    out, err = await waiting.communicate()

    assert (waiting.returncode, err) == (0, b"")
    assert out.decode() == f"{MOE.kind.lower()}.{MOE.group}/moe condition met\n"


async def test_a_condition_of_an_older_generation_is_not_waited_out(world: World, kubectl: Kubectl) -> None:
    """kubectl does not take Ready of a spec that has changed since for an answer."""
    await world.kube.apply_status(world.status(conditions=[condition("Ready")]), manager="s")
    await kubectl("scale", f"{NAME}/moe", "--replicas=2")

    waiting = await kubectl.start("wait", f"{NAME}/moe", "--for=condition=Ready", "--timeout=2s")
    _, err = await waiting.communicate()
    assert waiting.returncode == 1
    assert b"timed out waiting for the condition" in err

    now = {**condition("Ready"), "observedGeneration": 2}
    await world.kube.apply_status(world.status(conditions=[now]), manager="s")
    await kubectl("wait", f"{NAME}/moe", "--for=condition=Ready", "--timeout=90s")


async def test_scale_changes_the_replicas(world: World, kubectl: Kubectl) -> None:
    await kubectl("scale", f"{NAME}/moe", "--replicas=3")

    now = await world.kube.get(MOE, world.namespace, "moe")
    assert (now["spec"]["replicas"], now["metadata"]["generation"]) == (3, 2)
