"""Who may ask: API keys by hash, in the real Envoy, and the Secret that changes under it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest
from moe_operator.api.intent import Intent, Keys, Limits
from moe_operator.gateway.discovered import KEYS
from moe_operator.gateway.keys import keyring
from moe_operator.gateway.store import Store

from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.pod import Pod, colour, intent, until
from tests.gateway.secret import Mount, api_key, entry

RELOAD_DEADLINE = 120.0  # ten thousand files are written and read on a machine that has other things to do
ALICE, BOB, OLD = api_key("alice"), api_key("bob"), api_key("old")


@pytest.fixture
def secret(tmp_path: Path) -> Mount:
    mount = Mount(tmp_path / "keys")
    mount.write(alice=entry(ALICE), bob=entry(BOB), old=entry(OLD, "2026-01-01T00:00:00Z"))
    return mount


def keyed(generation: int, secret: Mount, *addresses: str, **changes: object) -> Intent:
    keys = Keys(directory=str(secret.directory))
    return intent(generation, colour("b", 100, *addresses), keys=keys, **changes)


async def status_of(pod: Pod, key: str | None) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    client = pod.client()
    try:
        return (await client.chat(**headers)).status
    finally:
        client.close()


def opens(pod: Pod, key: str, status: int = 200) -> Callable[[], Awaitable[bool]]:
    async def so() -> bool:
        with suppress(ConnectionError):  # Envoy does not listen yet
            return await status_of(pod, key) == status
        return False

    return so


@dataclass
class Load:
    """Clients that ask one after the other; ``key`` may change under them."""

    pod: Pod
    key: str
    clients: int = 4
    statuses: Counter[int] = field(default_factory=Counter)
    answered: list[float] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Load:
        self.tasks = [asyncio.create_task(self._ask()) for _ in range(self.clients)]
        await self.more(20)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _ask(self) -> None:
        client = self.pod.client()
        while True:
            answer = await client.chat(authorization=f"Bearer {self.key}")
            self.statuses[answer.status] += 1
            self.answered.append(time.perf_counter())

    async def more(self, requests: int) -> None:
        """Wait for so many further answers."""
        wanted = len(self.answered) + requests

        async def so() -> bool:
            assert not any(task.done() for task in self.tasks), "a client died"
            return len(self.answered) >= wanted

        await until(so)

    @property
    def largest_gap(self) -> float:
        """Seconds between two answers, at most."""
        return max(b - a for a, b in zip(self.answered, self.answered[1:], strict=False))


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        (None, "missing_api_key"),
        ("Basic YWxpY2U6eA==", "missing_api_key"),
        (f"Bearer {api_key('nobody')}", "invalid_api_key"),
        (f"Bearer {entry(ALICE)}", "invalid_api_key"),  # the hash is not the key
        (f"Bearer {OLD}", "expired_api_key"),
    ],
)
async def test_without_a_good_key_nothing_reaches_an_engine(
    engine: StartEngine, serving: StartPod, secret: Mount, authorization: str | None, code: str
) -> None:
    blue = await engine("blue")
    pod = await serving(keyed(1, secret, blue.address))
    await pod.healthy(blue.address)

    answer = await pod.client().chat(**({"authorization": authorization} if authorization else {}))

    assert answer.status == 401
    error = answer.json["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)
    assert answer.headers["x-request-id"]
    assert answer.headers["www-authenticate"].startswith("bearer")
    assert blue.requests == 0


async def test_openais_client_understands_the_refusal(
    engine: StartEngine, serving: StartPod, secret: Mount
) -> None:
    blue = await engine("blue")
    pod = await serving(keyed(1, secret, blue.address))
    await pod.healthy(blue.address)
    url = f"http://{pod.address}:8080/v1"

    async with openai.AsyncOpenAI(api_key=ALICE, base_url=url) as client:
        assert [model.id async for model in client.models.list()] == ["blue"]
    async with openai.AsyncOpenAI(api_key="sk-wrong", base_url=url) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.models.list()
    assert refused.value.code == "invalid_api_key"


async def test_an_engine_sees_neither_the_key_nor_what_a_client_claims_to_be(
    engine: StartEngine, serving: StartPod, secret: Mount
) -> None:
    blue = await engine("blue")
    pod = await serving(keyed(1, secret, blue.address))
    await pod.healthy(blue.address)

    answer = await pod.client().chat(authorization=f"Bearer {BOB}", x_moe_key_id="alice", x_moe_slot="7")

    assert answer.status == 200
    assert ALICE not in blue.heads[-1]
    assert BOB not in blue.heads[-1]
    assert "authorization" not in blue.heads[-1]
    assert "x-moe-slot" not in blue.heads[-1]
    assert "alice" not in blue.heads[-1]
    await until(lambda: logged(pod, 1))
    assert pod.access_log()[-1]["key_id"] == "bob"


async def test_an_engine_with_keys_of_its_own_may_see_the_clients(
    engine: StartEngine, serving: StartPod, secret: Mount
) -> None:
    blue = await engine("blue")
    keys = Keys(directory=str(secret.directory), forward=True)
    pod = await serving(intent(1, colour("b", 100, blue.address), keys=keys))
    await pod.healthy(blue.address)

    assert await status_of(pod, ALICE) == 200
    assert f"authorization: bearer {ALICE}" in blue.heads[-1]


async def logged(pod: Pod, lines: int) -> bool:
    return len(pod.access_log()) >= lines


async def test_keys_are_rotated_under_load_without_a_failure(
    engine: StartEngine, serving: StartPod, secret: Mount
) -> None:
    blue, new = await engine("blue"), api_key("alice-2027")
    pod = await serving(keyed(1, secret, blue.address))
    await pod.healthy(blue.address)

    async with Load(pod, ALICE) as load:
        secret.put({"alice": entry(ALICE), "alice.2": entry(new)})
        await until(opens(pod, new))
        load.key = new
        await load.more(20)
        secret.put({"alice.2": entry(new)})
        await until(opens(pod, ALICE, 401))
        await load.more(20)

    assert set(load.statuses) == {200}
    await until(lambda: logged(pod, load.statuses[200]))
    seen = {line["key_id"] for line in pod.access_log() if line["status"] == 200}
    assert seen == {"alice"}


async def test_the_digest_of_the_keys_is_told_once_envoy_goes_by_them(
    engine: StartEngine, serving: StartPod, secret: Mount
) -> None:
    blue, new = await engine("blue"), api_key("new")
    pod = await serving(keyed(1, secret, blue.address))
    await pod.healthy(blue.address)
    first = {"alice": entry(ALICE), "bob": entry(BOB), "old": entry(OLD, "2026-01-01T00:00:00Z")}
    second = {"alice": entry(ALICE), "new": entry(new)}

    async def in_force(entries: dict[str, str]) -> bool:
        ack = await pod.ack()
        return (ack.keys, ack.keys_digest) == (len(entries), keyring(entries).digest)

    await until(lambda: in_force(first))
    secret.put(second)
    await until(lambda: in_force(second))
    assert [await status_of(pod, key) for key in (ALICE, new, BOB)] == [200, 200, 401]


async def test_keys_that_are_not_in_force_are_not_told_and_hold_the_acknowledgement_back(
    engine: StartEngine, serving: StartPod, secret: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the filters stay where Envoy does not look for them, as on a disk that forgets."""
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.ack(1)
    replace = Store._replace

    def elsewhere(store: Store, name: str, text: str) -> None:
        if name == KEYS:
            (pod.xds / KEYS).write_text(text)  # not by a rename: Envoy sees nothing of it
        else:
            replace(store, name, text)

    monkeypatch.setattr(Store, "_replace", elsewhere)
    pod.api.put(keyed(2, secret, blue.address))

    async def routes_are_new() -> bool:
        stats = await pod.client(9901).get("/stats?filter=rds.gateway.version_text")
        return b'"2-' in stats.body

    await until(routes_are_new)
    ack = await pod.ack()
    assert (ack.generation, ack.received_generation, ack.keys, ack.keys_digest) == (1, 2, 3, "")

    monkeypatch.setattr(Store, "_replace", replace)
    secret.put({"alice": entry(ALICE)})
    ack = await pod.ack(2)
    assert ack.generation == 2
    assert await status_of(pod, BOB) == 401


async def test_ten_thousand_keys_are_reloaded_without_a_pause(
    engine: StartEngine, pod: Pod, secret: Mount, record_property: Callable[[str, object], None]
) -> None:
    """Prints the largest gap between two answers while all keys change, beside that while nothing does."""
    blue = await engine("blue")
    limits = Limits(concurrent_per_key=100)  # every key has a counter, too
    first = keyed(1, secret, blue.address, limits=limits)
    pod.prepare(first)
    pod.api.put(first)
    pod.write_files()
    await pod.start_envoy()
    await pod.run_agent()  # not in this process, where it would stand in the clients' way
    await until(opens(pod, ALICE))
    many = {"alice": entry(ALICE), **{f"tenant-{n}": entry(api_key(n)) for n in range(10_000)}}

    async with Load(pod, ALICE) as load:
        await load.more(300)
        quiet = load.largest_gap
        load.answered.clear()
        await asyncio.to_thread(secret.put, many, links=False)
        await until(opens(pod, api_key(9_999)), RELOAD_DEADLINE)
        await asyncio.to_thread(secret.put, {**many, "late": entry(api_key("late"))}, links=False)
        await until(opens(pod, api_key("late")), RELOAD_DEADLINE)
        await load.more(20)

    assert set(load.statuses) == {200}
    assert await status_of(pod, api_key(4_711)) == 200
    assert await status_of(pod, api_key(10_000)) == 401
    gaps = f"largest gap {load.largest_gap * 1000:.0f} ms while reloading, {quiet * 1000:.0f} ms before"
    record_property("gaps", gaps)
    print(gaps)


async def test_a_secret_that_is_empty_or_gone_opens_nothing(
    engine: StartEngine, serving: StartPod, secret: Mount
) -> None:
    blue = await engine("blue")
    pod = await serving(keyed(1, secret, blue.address))
    await pod.healthy(blue.address)
    assert await status_of(pod, ALICE) == 200

    secret.put({})
    await until(opens(pod, ALICE, 401))
    served = blue.requests
    pod.api.put(keyed(2, Mount(secret.directory / "nowhere"), blue.address))
    await pod.ack(2)
    assert await status_of(pod, ALICE) == 401
    assert blue.requests == served


async def test_keys_are_asked_for_from_the_first_request_of_a_pod_whose_api_server_is_away(
    engine: StartEngine, pod: Pod, secret: Mount
) -> None:
    blue = await engine("blue")
    beside_the_files = Mount(Path("..") / secret.directory.name)  # as the operator names it
    pod.prepare(keyed(1, beside_the_files, blue.address))
    pod.write_files()
    await pod.start_envoy()  # and no agent at all
    await until(opens(pod, ALICE))
    assert await status_of(pod, None) == 401


async def test_a_spoilt_entry_does_not_close_the_others_and_is_not_logged(
    engine: StartEngine, serving: StartPod, secret: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    blue = await engine("blue")
    pod = await serving(keyed(1, secret, blue.address))
    await pod.healthy(blue.address)

    secret.put({"alice": entry(ALICE), "bob": BOB})  # somebody put the key itself there

    await until(opens(pod, BOB, 401))
    assert await status_of(pod, ALICE) == 200
    problems = [record.__dict__["fields"] for record in caplog.records if record.message == "keys read"]
    assert problems[-1]["problems"] == ("entry 'bob': not the SHA-256 of a key in 64 hex digits",)
    assert BOB not in caplog.text + str(problems)


async def test_without_a_secret_everybody_may_ask_and_nobody_can_claim_to_be_a_key(
    engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)

    assert (await pod.client().chat(x_moe_key_id="alice")).status == 200
    await until(lambda: logged(pod, 1))
    assert pod.access_log()[-1]["key_id"] is None
