"""HTTPS in the real Envoy: certificates that change while streams live, and clients that must show one."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from moe_operator.api.intent import Tls

from tests.gateway.client import Client
from tests.gateway.conftest import StartEngine
from tests.gateway.engine_double import EngineDouble
from tests.gateway.pod import Pod, colour, intent, until
from tests.gateway.secret import Mount

DATA = Path(__file__).parents[1] / "data" / "gateway-tls"
NAME = "gateway.test"


def text(name: str) -> str:
    return (DATA / name).read_text()


def shown(name: str) -> dict[str, str]:
    """What the Secret of a certificate holds."""
    return {"tls.crt": text(f"{name}.crt"), "tls.key": text(f"{name}.key")}


def trusting(client: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=DATA / "ca.crt")
    if client:
        context.load_cert_chain(DATA / f"{client}.crt", DATA / f"{client}.key")
    return context


@pytest.fixture
def certificate(tmp_path: Path) -> Mount:
    mount = Mount(tmp_path / "tls")
    mount.put(shown("one"))
    return mount


@pytest.fixture
async def blue(engine: StartEngine) -> EngineDouble:
    return await engine("blue")


async def start(pod: Pod, blue: EngineDouble, tls: Tls) -> None:
    first = intent(1, colour("b", 100, blue.address), tls=tls)
    pod.prepare(first)
    pod.api.put(first)
    await pod.start()
    await pod.healthy(blue.address)


def https(pod: Pod, client: str = "") -> Client:
    pod.clients.append(Client(pod.address, tls=trusting(client), name=NAME))
    return pod.clients[-1]


async def subject(pod: Pod) -> str:
    """Whose certificate a new connection is shown."""
    client = https(pod)
    try:
        await client.get("/v1/models")
        return client.peer
    finally:
        client.close()


def shows(pod: Pod, name: str) -> Callable[[], Awaitable[bool]]:
    async def so() -> bool:
        return await subject(pod) == name

    return so


async def test_a_new_certificate_is_shown_to_new_connections_and_streams_live_on(
    pod: Pod, blue: EngineDouble, certificate: Mount
) -> None:
    await start(pod, blue, Tls(directory=str(certificate.directory)))
    blue.hold = asyncio.Event()
    before = https(pod)
    stream = asyncio.create_task(before.chat(stream=True))

    async def runs() -> bool:
        return blue.active == 1

    await until(runs)
    assert await subject(pod) == "gateway one"

    certificate.put(shown("two"))

    await until(shows(pod, "gateway two"))
    assert not stream.done()
    blue.hold.set()
    assert (await stream).complete
    assert before.peer == "gateway one"
    assert (await before.get("/v1/models")).status == 200  # on the connection it had


async def test_a_pair_that_does_not_fit_changes_nothing(
    pod: Pod, blue: EngineDouble, certificate: Mount
) -> None:
    await start(pod, blue, Tls(directory=str(certificate.directory)))

    certificate.put({"tls.crt": text("two.crt"), "tls.key": text("one.key")})

    async def refused() -> bool:
        metrics = (await pod.client(9902).get("/metrics")).body.decode()
        return bool(re.search(r"^envoy_sds_key_rotation_failed\{.*\"tls\"\} [1-9]", metrics, re.MULTILINE))

    await until(refused)
    assert await subject(pod) == "gateway one"
    certificate.put(shown("two"))
    await until(shows(pod, "gateway two"))


async def test_clients_must_show_a_certificate_where_an_authority_is_named(
    pod: Pod, blue: EngineDouble, certificate: Mount, tmp_path: Path
) -> None:
    authority = Mount(tmp_path / "ca")
    authority.put({"ca.crt": text("ca.crt")})
    await start(
        pod, blue, Tls(directory=str(certificate.directory), client_ca_directory=str(authority.directory))
    )

    assert (await https(pod, "client").get("/v1/models")).status == 200
    for stranger in ("", "stranger"):
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await https(pod, stranger).get("/v1/models")
    assert blue.requests == 1


async def test_plain_http_gets_no_answer_from_a_listener_that_speaks_https(
    pod: Pod, blue: EngineDouble, certificate: Mount
) -> None:
    await start(pod, blue, Tls(directory=str(certificate.directory)))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await pod.client().get("/v1/models")
