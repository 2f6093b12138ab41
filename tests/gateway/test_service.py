"""The agent's own HTTP face under good and bad requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from moe_operator.api.intent import Intent
from moe_operator.gateway.address import Address
from moe_operator.gateway.admin import Admin, EnvoyAway
from moe_operator.gateway.agent import Agent
from moe_operator.gateway.drain import Drain
from moe_operator.gateway.keys import InForce
from moe_operator.gateway.listen import listening
from moe_operator.gateway.readback import Reading
from moe_operator.gateway.service import Service
from moe_operator.gateway.store import Store
from moe_operator.gateway.watch import WatchState

from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.pod import DEADLINE, colour, intent, loopback


async def test_metrics_are_per_colour_and_carry_envoys_own(engine: StartEngine, serving: StartPod) -> None:
    blue, green = await engine("blue"), await engine("green")
    pod = await serving(intent(4, colour("b", 100, blue.address), colour("g", 0, green.address)))
    await pod.healthy(blue.address, green.address)
    for _ in range(3):
        assert (await pod.client().chat()).status == 200

    answer = await pod.client(9902).get("/metrics")

    lines = answer.body.decode().splitlines()
    assert answer.headers["content-type"].startswith("text/plain")
    for expected in (
        "moe_gateway_envoy_live 1.0",
        "moe_gateway_generation 4.0",
        'moe_gateway_weight{revision="b"} 100.0',
        'moe_gateway_weight{revision="g"} 0.0',
        f'moe_gateway_requests_total{{endpoint="{blue.address}:8000",revision="b"}} 3.0',
        f'moe_gateway_requests_total{{endpoint="{green.address}:8000",revision="g"}} 0.0',
        f'moe_gateway_endpoint_healthy{{endpoint="{green.address}:8000",revision="g"}} 1.0',
        'envoy_cluster_upstream_rq_total{envoy_cluster_name="all"} 3',
        'envoy_http_downstream_rq_active{envoy_http_conn_manager_prefix="ingress"} 0',
    ):
        assert expected in lines


async def _nothing_else(_: Intent) -> tuple[str, ...]:
    """Nothing else has to be in force before routes are."""
    return ()


def _no_keys(_: Reading | None) -> InForce:
    """None are asked for."""
    return InForce()


@pytest.fixture
async def agent_address(tmp_path: Path) -> AsyncIterator[tuple[str, int]]:
    """An agent whose Envoy never came."""
    address = loopback()
    async with Admin(Address(address, 9901)) as admin:
        agent = Agent(Store(tmp_path), admin, None, Address(address, 9903), _nothing_else, _no_keys)
        service = Service(agent, admin, Drain(admin), WatchState())
        async with listening(Address(address, 9902), service.handle):
            yield address, 9902


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /nope HTTP/1.1\r\n\r\n", 404),
        ("POST /drain HTTP/1.1\r\n\r\n", 404),
        ("GET /ack?wait_generation=x HTTP/1.1\r\n\r\n", 400),
        ("hello\r\n\r\n", 400),
        ("GET http://x/ack HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/2\r\n\r\n", 400),
        ("GET /" + "a" * 20_000 + " HTTP/1.1\r\n\r\n", 431),
        ("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", 200),
        ("GET /readyz HTTP/1.1\r\n\r\n", 503),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_odd_requests(agent_address: tuple[str, int], request_text: str, status: int) -> None:
    reader, writer = await asyncio.open_connection(*agent_address)
    writer.write(request_text.encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"connection: close\r\n" in answer


async def test_who_waits_for_an_intent_does_not_read_envoy_while_it_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = 0

    async def count(_: Admin) -> Reading:
        nonlocal readings
        readings += 1
        raise EnvoyAway

    monkeypatch.setattr(Admin, "read", count)
    address = loopback()
    async with Admin(Address(address, 9901)) as admin:
        agent = Agent(Store(tmp_path), admin, None, Address(address, 9903), _nothing_else, _no_keys)
        waiting = asyncio.create_task(agent.ack_of(5, timeout=0.5))
        for generation in range(2, 6):
            await asyncio.sleep(0.05)
            agent.offer(intent(generation).model_dump_json(by_alias=True), "api")
        answer = await waiting
    assert (answer.received_generation, answer.generation) == (5, -1)
    assert readings == 2, "at the beginning and at the end"


async def test_leaving_the_server_ends_a_wait_that_is_still_open(tmp_path: Path) -> None:
    address = loopback()
    async with Admin(Address(address, 9901)) as admin:
        agent = Agent(Store(tmp_path), admin, None, Address(address, 9903), _nothing_else, _no_keys)
        service = Service(agent, admin, Drain(admin), WatchState())
        async with listening(Address(address, 9902), service.handle):
            reader, writer = await asyncio.open_connection(address, 9902)
            writer.write(b"GET /ack?wait_generation=1&timeout=60 HTTP/1.1\r\n\r\n")
            await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE):
        assert await reader.read() == b""
    writer.close()
