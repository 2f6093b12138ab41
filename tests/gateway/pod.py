"""A gateway pod on loopback: the real Envoy and the real agent as child processes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moe_operator.api.intent import Ack, Colour, Endpoint, Intent, Queue
from moe_operator.gateway.address import Address
from moe_operator.gateway.boot import prepare
from moe_operator.gateway.running import serve
from moe_operator.gateway.watch import ApiServer

from tests.gateway.api_double import ApiDouble
from tests.gateway.client import Client

BIN = Path(sys.executable).parent
DEADLINE = 60.0
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/models", "/health"]


def loopback() -> str:
    """An address of this room that nobody listens on."""
    while True:
        address = f"127.71.{random.randint(1, 250)}.{random.randint(1, 250)}"
        if all(_free(address, port) for port in (6443, 8000, 8080, 9901, 9902, 9903, 9904)):
            return address


def _free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex((address, port)) != 0


def intent(generation: int, *colours: Colour, **changes: Any) -> Intent:
    """As the operator writes it; nobody waits for an engine unless ``queue`` says so."""
    told = {"allowed_paths": PATHS, "queue": Queue(max_waiting=0), **changes}
    return Intent(generation=generation, model="kimi", colours=list(colours), **told)


def colour(revision: str, weight: int, *addresses: str) -> Colour:
    endpoints = [
        Endpoint(address=a, port=8000, pod=f"kimi-{revision}-{n}-0") for n, a in enumerate(addresses)
    ]
    return Colour(revision=revision, weight=weight, endpoints=endpoints)


def text_of(value: Intent | str) -> str:
    return value if isinstance(value, str) else value.model_dump_json(by_alias=True)


async def until(what: Callable[[], Awaitable[bool]], seconds: float = DEADLINE) -> None:
    """Wait for a condition; TimeoutError when it does not come."""
    async with asyncio.timeout(seconds):
        while not await what():
            await asyncio.sleep(0.05)


async def happened(event: asyncio.Event, seconds: float = DEADLINE) -> None:
    """Wait for an event; TimeoutError when it does not come."""
    async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a cancellation
        await event.wait()


@dataclass(eq=False)
class Pod:
    """What the kubelet would run for ``{cr}-gateway``."""

    directory: Path
    address: str
    api: ApiDouble
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    agent: asyncio.Task[None] | None = None
    workers: int = 1  # of Envoy

    @property
    def xds(self) -> Path:
        return self.directory / "xds"

    @property
    def mount(self) -> Path:
        return self.directory / "intent" / "intent.json"

    @property
    def credentials(self) -> Path:
        return self.directory / "service-account"

    def prepare(self, mounted: Intent | str | None) -> None:
        self.mount.parent.mkdir(parents=True)
        self.credentials.mkdir()
        (self.credentials / "token").write_text("first-token\n")
        if mounted is not None:
            self.mount.write_text(text_of(mounted))

    def write_files(self) -> None:
        """What ``init`` does, in this process."""
        prepare(self.xds, self.mount, Address(self.address, 8080), Address(self.address, 9901))

    async def start(self) -> None:
        self.write_files()
        await self.start_envoy()
        self.start_agent()
        await until(self.agent_listens)

    def start_agent(self) -> None:
        """The agent as a task of this process: starts in no time, ends without a trace."""
        api = ApiServer(self.api.url, self.credentials)
        admin, listen, own = (Address(self.address, port) for port in (9901, 9902, 9904))
        work = serve(self.xds, self.mount, api, "team/kimi-gateway", admin, listen, own)
        self.agent = asyncio.create_task(work)

    async def agent_listens(self) -> bool:
        return not _free(self.address, 9902)

    async def envoy_listens(self) -> bool:
        return not _free(self.address, 9901)

    async def stop_agent(self) -> None:
        if self.agent is not None:
            self.agent.cancel()
            await asyncio.wait([self.agent])
            self.agent = None

    async def run_init(self) -> int:
        """``init`` as its own process."""
        process = await self._spawn(
            "init", "moe-gateway-agent", "init", "--xds", self.xds, "--intent", self.mount,
            "--listen", f"{self.address}:8080", "--admin", f"{self.address}:9901",
        )  # fmt: skip
        return await process.wait()

    async def start_envoy(self) -> None:
        await self._spawn(
            "envoy", "envoy", "-c", self.xds / "bootstrap.json", "--use-dynamic-base-id",
            "--concurrency", str(self.workers), "--drain-time-s", "600", "--reject-unknown-dynamic-fields",
            "-l", "warning", "--file-flush-interval-msec", "200",
        )  # fmt: skip

    async def run_agent(self) -> None:
        """The agent as its own process, to be killed."""
        await self._spawn(
            "agent", "moe-gateway-agent", "run", "--xds", self.xds, "--intent", self.mount,
            "--config-map", "team/kimi-gateway", "--admin", f"{self.address}:9901",
            "--listen", f"{self.address}:9902", "--own", f"{self.address}:9904",
            "--service-account", self.credentials,
        )  # fmt: skip

    async def run_drain(self) -> int:
        """The preStop hook as its own process."""
        process = await self._spawn("drain", "moe-gateway-agent", "drain", "--agent", f"{self.address}:9904")
        return await process.wait()

    async def kill(self, name: str) -> None:
        """SIGKILL, and wait until it is gone."""
        process = self.processes.pop(name)
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def stop(self) -> None:
        for client in self.clients:
            client.close()
        await self.stop_agent()
        for name in tuple(self.processes):
            await self.kill(name)

    def client(self, port: int = 8080) -> Client:
        self.clients.append(Client(self.address, port))
        return self.clients[-1]

    async def ready(self) -> bool:
        client = self.client(9902)
        try:
            return (await client.get("/readyz")).status == 200
        except ConnectionError:
            return False

    async def ack(self, generation: int | None = None) -> Ack:
        """``GET /ack``; with a generation, as the operator waits for it."""
        query = f"?wait_generation={generation}&timeout={DEADLINE}" if generation is not None else ""
        answer = await self.client(9902).get(f"/ack{query}")
        assert answer.status == 200, answer
        return Ack.model_validate_json(answer.body)

    async def healthy(self, *addresses: str) -> None:
        """Wait until exactly these endpoints are healthy."""

        async def so() -> bool:
            return {h.address for h in (await self.ack()).hosts if h.healthy} == set(addresses)

        await until(so)

    def access_log(self) -> list[dict[str, Any]]:
        text = (self.directory / "envoy.log").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    async def _spawn(self, name: str, command: str, *args: str | Path) -> asyncio.subprocess.Process:
        with (self.directory / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                BIN / command, *map(str, args), stdout=log, stderr=log,
                env={**os.environ, "MOE_API_URL": self.api.url},
            )  # fmt: skip
        self.processes[name] = process
        return process
