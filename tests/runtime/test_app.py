"""The whole process against an API server over HTTP: what starts it, wakes it, survives and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from moe_operator.api.policy import OperatorPolicy
from moe_operator.reconcile.actions import Apply, Decision
from moe_operator.reconcile.snapshot import Snapshot, Wants
from moe_operator.runtime.aio_kube import AioKube
from moe_operator.runtime.app import Brain, ExitCode, Options, run_operator
from moe_operator.runtime.kube import CONFIG_MAP, CRD, LEASE, MOE_DEPLOYMENT, POD, ApiError
from moe_operator.sandbox.api import MemoryApi
from moe_operator.sandbox.rest import RestServer

from tests.runtime.world import config_map, deployment, memory_api, node, pod, status

DEADLINE = 30.0
HOSTS = (f"127.70.2.{n}" for n in itertools.count(1))


async def eventually(what: Callable[[], object], why: str) -> None:
    for _ in range(int(DEADLINE / 0.02)):
        if what():
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"not within {DEADLINE:g} s: {why}")


@dataclass
class Mind:
    """Keeps a ConfigMap and a status, and counts the passes of each deployment."""

    passes: dict[str, int] = field(default_factory=dict)

    def decide(self, seen: Snapshot) -> Decision:
        self.passes[seen.name] = self.passes.get(seen.name, 0) + 1
        if seen.deleting:
            return Decision(None)
        if seen.child("ConfigMap", f"{seen.name}-a"):
            return Decision(status("abc"))
        return Decision(status("abc"), (Apply(config_map(f"{seen.name}-a", seen.object, seen.name)),))

    @property
    def brain(self) -> Brain:
        return Brain(lambda _: Wants(), self.decide)

    @property
    def total(self) -> int:
        return sum(self.passes.values())


@dataclass
class Site:
    """One API server on its own loopback address, and the operators that use it."""

    directory: Path
    api: MemoryApi = field(default_factory=memory_api)
    host: str = field(default_factory=lambda: next(HOSTS))
    stops: list[tuple[asyncio.Event, asyncio.Task[ExitCode]]] = field(default_factory=list)

    server: RestServer = field(init=False)

    def _new_server(self) -> RestServer:
        return RestServer(self.api, bookmark_seconds=0.2)

    @property
    def kubeconfig(self) -> str:
        return str(self.directory / "kubeconfig")

    async def up(self, port: int = 0) -> None:
        self.server = self._new_server()
        await self.server.start(self.host, port)
        self.server.write_kubeconfig(Path(self.kubeconfig))

    async def restart(self, while_down: Callable[[], Awaitable[None]] | None = None) -> None:
        port = httpx.URL(self.server.url).port or 0
        await self.server.close()
        if while_down:
            await while_down()
        await self.up(port)

    def operator(
        self, mind: Mind, *, port: int = 0, lease: str | None = None, namespaces: tuple[str, ...] = ()
    ) -> tuple[asyncio.Event, asyncio.Task[ExitCode]]:
        options = Options(OperatorPolicy(), self.kubeconfig, namespaces, (self.host, port), lease)
        stop = asyncio.Event()
        task = asyncio.create_task(run_operator(options, mind.brain, AioKube.connect, stop))
        self.stops.append((stop, task))
        return stop, task

    async def down(self) -> None:
        for stop, task in self.stops:
            stop.set()
            await asyncio.wait_for(task, DEADLINE)
        await self.server.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    await made.up()
    yield made
    await made.down()


def has(api: MemoryApi, name: str) -> bool:
    with contextlib.suppress(ApiError):
        return bool(api.get(CONFIG_MAP, "default", name))
    return False


async def converged(site: Site, mind: Mind, name: str = "kimi") -> None:
    """The deployment is reconciled, and the echoes of our own writes have died away."""
    await eventually(lambda: has(site.api, f"{name}-a"), f"{name} is reconciled")
    before = -1
    while before != mind.total:
        before = mind.total
        await asyncio.sleep(0.3)


async def test_a_deployment_that_exists_and_one_that_comes_are_reconciled(site: Site) -> None:
    mind = Mind()
    site.api.create(deployment("early"))
    site.operator(mind)
    await converged(site, mind, "early")
    site.api.create(deployment("late"))
    await converged(site, mind, "late")
    assert site.api.get(MOE_DEPLOYMENT, "default", "late")["status"]["targetRevision"] == "abc"


async def test_what_happens_to_it_its_children_and_the_nodes_wakes_it(site: Site) -> None:
    mind = Mind()
    owner = site.api.create(deployment())
    site.operator(mind)
    await converged(site, mind)

    async def wakes(change: Callable[[], object], why: str) -> None:
        before = mind.total
        change()
        await eventually(lambda: mind.total > before, why)
        await converged(site, mind)

    await wakes(lambda: site.api.create(pod("p", owner)), "a pod appeared")
    await wakes(lambda: site.api.delete(POD, "default", "p", grace_seconds=0), "a pod vanished")
    await wakes(lambda: site.api.create(node("n1")), "a node with GPUs appeared")
    await wakes(lambda: site.api.delete(CONFIG_MAP, "default", "kimi-a"), "a child was deleted")
    edited = site.api.get(MOE_DEPLOYMENT, "default", "kimi")
    edited["spec"]["engine"]["image"] = "vllm:2"
    await wakes(lambda: site.api.replace(edited), "the spec was edited")


async def test_what_is_none_of_its_business_wakes_it_not(site: Site) -> None:
    mind = Mind()
    site.api.create(deployment())
    site.operator(mind)
    await converged(site, mind)
    before, version = mind.passes["kimi"], site.api.get(MOE_DEPLOYMENT, "default", "kimi")["metadata"]
    site.api.create(pod("strangers", deployment="nobody"))
    other = site.api.create(deployment("other"))
    await converged(site, mind, "other")
    passes = mind.passes["other"]
    site.api.create(pod("others", other, deployment="other"))  # comes after the stranger's in the same watch
    await eventually(lambda: mind.passes["other"] > passes, "the other deployment is woken")
    assert mind.passes["kimi"] == before
    assert site.api.get(MOE_DEPLOYMENT, "default", "kimi")["metadata"] == version


async def test_it_survives_a_restart_of_the_api_server_and_sees_what_happened_meanwhile(site: Site) -> None:
    mind = Mind()
    site.api.create(deployment())
    _, task = site.operator(mind)
    await converged(site, mind)

    async def meanwhile() -> None:
        site.api.create(deployment("born-meanwhile"))
        site.api.compact()  # what the watches knew is too old now: 410
        await asyncio.sleep(0.5)

    await site.restart(meanwhile)
    await converged(site, mind, "born-meanwhile")
    assert not task.done()


async def test_it_waits_for_an_api_server_that_is_not_there_yet(site: Site) -> None:
    mind = Mind()
    site.api.create(deployment())
    port = httpx.URL(site.server.url).port or 0
    await site.server.close()
    _, task = site.operator(mind)
    await asyncio.sleep(0.5)
    assert not task.done()
    await site.up(port)
    await converged(site, mind)


async def test_without_the_crd_it_ends_and_says_how_to_install_it(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.api.delete(CRD, None, "moedeployments.moe-operator.io")
    _, task = site.operator(Mind())
    assert await asyncio.wait_for(task, DEADLINE) is ExitCode.CRD_ABSENT
    assert any("kubectl apply -f crds/" in str(r.__dict__.get("error")) for r in caplog.records)


async def test_when_the_crd_goes_away_it_ends(site: Site) -> None:
    mind = Mind()
    site.api.create(deployment())
    _, task = site.operator(mind)
    await converged(site, mind)
    site.api.delete(CRD, None, "moedeployments.moe-operator.io")
    await site.restart()
    assert await asyncio.wait_for(task, DEADLINE) is ExitCode.FAILED


async def test_a_taken_address_is_an_error_of_its_own(site: Site) -> None:
    _, task = site.operator(Mind(), port=httpx.URL(site.server.url).port or 0)
    assert await asyncio.wait_for(task, DEADLINE) is ExitCode.ADDRESS_TAKEN


async def test_a_standby_takes_over_when_the_leader_stops(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = Mind(), Mind()
    site.api.create(deployment())
    stop, leading = site.operator(first, lease="default")
    await converged(site, first)
    site.operator(second, lease="default")
    await eventually(lambda: "standing by" in caplog.text, "the second stands by")
    assert second.total == 0
    stop.set()
    assert await asyncio.wait_for(leading, DEADLINE) is ExitCode.OK
    passes = first.total
    await eventually(lambda: second.total > 0, "the standby reconciles")
    assert first.total == passes


async def test_a_leader_whose_lease_was_taken_ends_at_once(site: Site) -> None:
    mind = Mind()
    site.api.create(deployment())
    _, task = site.operator(mind, lease="default")
    await converged(site, mind)
    taken = site.api.get(LEASE, "default", "moe-operator")
    taken["spec"]["holderIdentity"] = "another"
    site.api.replace(taken)
    assert await asyncio.wait_for(task, DEADLINE) is ExitCode.LEASE_LOST
    assert site.api.get(LEASE, "default", "moe-operator")["spec"]["holderIdentity"] == "another"


async def test_an_operator_of_one_namespace_leaves_the_others_alone(site: Site) -> None:
    site.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    mind = Mind()
    site.operator(mind, namespaces=("default",))
    site.api.create(deployment("theirs", "team"))
    site.api.create(deployment("ours"))
    await converged(site, mind, "ours")
    assert set(mind.passes) == {"ours"}


async def test_kopf_writes_nothing_of_its_own(site: Site) -> None:
    mind = Mind()
    site.api.create(deployment())
    site.operator(mind)
    await converged(site, mind)
    obj = site.api.get(MOE_DEPLOYMENT, "default", "kimi")
    assert "finalizers" not in obj["metadata"]
    assert "annotations" not in obj["metadata"]
    assert {f["manager"] for f in obj["metadata"]["managedFields"]} <= {"unknown", "moe-operator-status"}


async def test_the_command_reconciles_logs_json_answers_probes_and_stops_on_sigterm(site: Site) -> None:
    site.api.create(deployment())
    command = [str(Path(sys.executable).with_name("moe-operator")), "run", "--listen", f"{site.host}:0"]
    process = await asyncio.create_subprocess_exec(
        *command, "--kubeconfig", site.kubeconfig, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        lines = []
        while not lines or "reconciled" not in lines[-1]["event"]:
            raw = await asyncio.wait_for(process.stderr.readline(), DEADLINE)
            assert raw, lines
            lines.append(json.loads(raw))
        listen = next(line["listen"] for line in lines if line["event"] == "operator starting")
        async with httpx.AsyncClient(base_url=f"http://{listen}") as client:
            assert (await client.get("/readyz")).text == "watching\n"
            assert "moe_operator_is_leader 1.0" in (await client.get("/metrics")).text
            process.send_signal(signal.SIGTERM)  # with a connection kept alive, as a scraper's
            assert await asyncio.wait_for(process.wait(), DEADLINE) == 0
        rest = [json.loads(line) for line in (await process.stderr.read()).splitlines()]
        assert rest[-1]["event"] == "operator stopped"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    obj = site.api.get(MOE_DEPLOYMENT, "default", "kimi")
    assert obj["metadata"]["finalizers"] == ["moe-operator.io/teardown"]
