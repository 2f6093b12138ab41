"""Services: who is behind them, and bytes that pass through."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from moe_operator.runtime.kube import POD, SERVICE
from moe_operator.sandbox import service_proxy
from moe_operator.sandbox.api import MemoryApi, MemoryKube
from moe_operator.sandbox.loopback import claim_block
from moe_operator.sandbox.objects import Key, status_patch
from moe_operator.sandbox.service_proxy import ANNOTATION_PORT, ServiceProxy
from moe_operator.sandbox.services import endpoints

from tests.sandbox.conftest import RANGE
from tests.sandbox.objects import Obj, container, pod, service

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def backend(name: str, address: str = "127.60.0.9", *, ready: bool = True, **meta: Any) -> Obj:
    made = pod(name, container(ports=[{"name": "http", "containerPort": 8000}]), labels={"app": "web"})
    made["metadata"] |= meta
    ready_word = "True" if ready else "False"
    made["status"] = {
        "phase": "Running",
        "podIP": address,
        "conditions": [{"type": "Ready", "status": ready_word}],
    }
    return made


def names_behind(spec: dict[str, Any], *pods: Obj) -> list[str]:
    made = service("web", {"app": "web"}, 80)
    made["spec"] |= spec
    return [e.pod for e in endpoints(made, pods)]


def test_only_ready_pods_that_stay_are_endpoints() -> None:
    pods = [
        backend("b"),
        backend("a"),
        backend("unready", ready=False),
        backend("leaving", deletionTimestamp="2026-11-30T00:00:00Z"),
        backend("other", labels={"app": "else"}),
        backend("elsewhere", namespace="kube-system"),
        {**backend("done"), "status": {"phase": "Succeeded", "podIP": "127.60.0.9"}},
        {**backend("no-address"), "status": {"phase": "Pending"}},
    ]
    assert names_behind({}, *pods) == ["a", "b"]
    assert names_behind({"publishNotReadyAddresses": True}, *pods) == ["a", "b", "leaving", "unready"]
    assert names_behind({"selector": {}}, *pods) == []


@pytest.mark.parametrize(("target", "port"), [(None, 80), (8000, 8000), ("http", 8000), ("9000", 9000)])
def test_a_target_port_is_a_number_or_a_name(target: int | str | None, port: int) -> None:
    made = service("web", {"app": "web"}, 80)
    if target is not None:
        made["spec"]["ports"][0]["targetPort"] = target
    (only,) = endpoints(made, [backend("a")])
    assert only.ports == {80: port}


def test_a_port_by_a_name_that_the_pod_lacks_leads_nowhere() -> None:
    made = service("web", {"app": "web"}, 80)
    made["spec"]["ports"][0]["targetPort"] = "grpc"
    (only,) = endpoints(made, [backend("a")])
    assert only.ports == {}


class Network:
    """A proxy over an API without kubelets; the test's own servers stand in for pods."""

    def __init__(self, host: str) -> None:
        self.said: list[str] = []
        self.kube = MemoryKube(MemoryApi(service_address=lambda _: host))
        self.proxy = ServiceProxy(self.kube, self.said.append)
        self.servers: list[asyncio.Server] = []

    async def pod(self, name: str, serve: Serve) -> None:
        server = await asyncio.start_server(serve, "127.60.255.1", 0)
        self.servers.append(server)
        port = server.sockets[0].getsockname()[1]
        made = backend(name, "127.60.255.1")
        made["spec"]["containers"][0]["ports"][0]["containerPort"] = port
        await self.kube.create(made)
        await self.kube.apply_status(status_patch(made, made["status"]), manager="kubelet")

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.proxy.address(Key("default", "web"), port))

    async def ask(self, port: int) -> str:
        """What one connection is answered; "" when it is refused or reset."""
        try:
            reader, writer = await self.connect(port)
            answer = await reader.read()
        except ConnectionError:
            return ""
        writer.close()
        await writer.wait_closed()
        return answer.decode()


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    block = claim_block(RANGE)
    made = Network(block.host)
    yield made
    await made.proxy.close()
    for server in made.servers:
        server.close()
        await server.wait_closed()
    block.close()


def saying(word: str) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(word.encode())
        writer.close()
        await writer.wait_closed()

    return serve


def web(port: int) -> Obj:
    made = service("web", {"app": "web"}, port)
    made["spec"]["ports"][0]["targetPort"] = "http"
    return made


async def test_connections_take_turns_over_ready_pods(network: Network) -> None:
    await network.pod("a", saying("a"))
    await network.pod("b", saying("b"))
    await network.kube.create(web(8080))
    await network.proxy.sync()
    answers = [await network.ask(8080) for _ in range(4)]
    assert sorted(answers) == ["a", "a", "b", "b"]
    await network.kube.delete(POD, "default", "a")
    await network.proxy.sync()
    assert [await network.ask(8080) for _ in range(3)] == ["b"] * 3


async def test_a_pod_that_refuses_is_passed_over(network: Network) -> None:
    await network.pod("dead", saying("never"))
    network.servers[0].close()
    await network.servers[0].wait_closed()
    await network.pod("live", saying("live"))
    await network.kube.create(web(8080))
    await network.proxy.sync()
    assert [await network.ask(8080) for _ in range(3)] == ["live"] * 3


async def test_a_service_without_pods_resets_and_one_that_is_gone_refuses(network: Network) -> None:
    await network.kube.create(web(8080))
    await network.proxy.sync()
    assert await network.ask(8080) == ""
    address = network.proxy.address(Key("default", "web"), 8080)
    await network.kube.delete(SERVICE, "default", "web")
    await network.proxy.sync()
    with pytest.raises(LookupError):
        network.proxy.address(Key("default", "web"), 8080)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


async def test_bytes_pass_as_they_come_and_one_side_may_finish_first(network: Network) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first\n")
        received = await reader.read()
        writer.write(str(len(received)).encode())
        writer.close()
        await writer.wait_closed()

    await network.pod("a", count)
    await network.kube.create(web(8080))
    await network.proxy.sync()
    reader, writer = await network.connect(8080)
    assert await reader.readline() == b"first\n"  # before anything was sent
    writer.write(b"x" * 1_000_000)
    writer.write_eof()
    assert await reader.read() == b"1000000"  # after our side has finished
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_leaves_ends_the_connection_to_the_pod(network: Network) -> None:
    ended = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            ended.set()
        finally:
            writer.transport.abort()

    await network.pod("a", endless)
    await network.kube.create(web(8080))
    await network.proxy.sync()
    reader, writer = await network.connect(8080)
    await reader.read(10)
    writer.transport.abort()
    async with asyncio.timeout(10):
        await ended.wait()


async def test_a_client_that_is_gone_when_its_pod_finishes_is_no_error(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """shutdown() of a socket whose peer has reset it says ENOTCONN, which is no ConnectionError."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def too_late(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(service_proxy, "_pass", too_late)
    await network.pod("a", saying("a"))
    await network.kube.create(web(8080))
    await network.proxy.sync()
    assert await network.ask(8080) == ""
    assert complaints == []


async def test_a_port_that_needs_a_privilege_is_shifted_and_said(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = service_proxy.listen_on

    def unprivileged(address: str, port: int) -> Any:
        if port < 1024:
            raise PermissionError(13, "Permission denied")
        return real(address, port)

    monkeypatch.setattr(service_proxy, "listen_on", unprivileged)
    await network.pod("a", saying("a"))
    await network.kube.create(web(80))
    await network.proxy.sync()
    assert network.proxy.address(Key("default", "web"), 80)[1] == 8080
    assert await network.ask(80) == "a"
    made = await network.kube.get(SERVICE, "default", "web")
    assert made["metadata"]["annotations"] == {ANNOTATION_PORT: '{"80": 8080}'}
    assert len(network.said) == 1
    assert "port 80 needs a privilege" in network.said[0]


@asynccontextmanager
async def listener(host: str, port: int) -> AsyncIterator[int]:
    server = await asyncio.start_server(lambda r, w: w.close(), host, port)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def test_a_taken_port_is_said_once_with_its_holder_and_taken_later(network: Network) -> None:
    await network.pod("a", saying("a"))
    async with listener("0.0.0.0", 0) as port:
        await network.kube.create(web(port))
        await network.proxy.sync()
        await network.proxy.sync()
        assert len(network.said) == 1
        assert f"listening on 0.0.0.0:{port}" in network.said[0]
    await network.proxy.sync()
    assert await network.ask(port) == "a"
