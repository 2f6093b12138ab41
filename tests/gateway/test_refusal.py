"""Intents that cannot be served: what served goes on serving, and the reason is told."""

from __future__ import annotations

import errno

import pytest
from moe_operator.api.intent import Colour, Endpoint
from moe_operator.gateway import running
from moe_operator.gateway.store import Store

from tests.gateway.api_double import ApiDouble
from tests.gateway.conftest import StartEngine, StartPod
from tests.gateway.pod import Pod, colour, happened, intent, until

NOT_AN_ADDRESS = Colour(revision="g", weight=100, endpoints=[Endpoint(address="not-an-ip", port=8000)])


async def test_what_envoy_refuses_changes_nothing_and_is_told_in_envoys_words(
    api: ApiDouble, engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)

    api.put(intent(2, NOT_AN_ADDRESS))
    ack = await pod.ack(2)

    assert (ack.accepted, ack.received_generation) == (False, 2)
    assert "malformed IP address: not-an-ip" in ack.rejected
    assert [host.address for host in ack.hosts] == [blue.address]
    assert (await pod.client().chat()).json["model"] == "blue"

    async def back_to_the_good_one() -> bool:
        return (await pod.ack()).generation == 1

    await until(back_to_the_good_one)
    await pod.kill("envoy")  # and what it would start from is good, too
    await pod.start_envoy()
    await pod.healthy(blue.address)

    api.put(intent(3, colour("b", 100, blue.address)))
    ack = await pod.ack(3)
    assert (ack.generation, ack.accepted, ack.rejected) == (3, True, "")
    metrics = (await pod.client(9902).get("/metrics")).body.decode()
    assert "moe_gateway_rejections_total 1.0" in metrics


async def test_a_bad_intent_that_arrives_while_envoy_is_down_does_not_keep_it_down(
    api: ApiDouble, engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.ack(1)
    await pod.kill("envoy")
    api.put(intent(2, NOT_AN_ADDRESS))

    async def written() -> bool:
        return '"2-' in (pod.xds / "rds.json").read_text()

    await until(written)
    await pod.start_envoy()

    assert "malformed IP address" in (await pod.ack(2)).rejected
    await pod.healthy(blue.address)
    assert (await pod.client().chat()).json["model"] == "blue"


async def test_a_pod_falls_back_to_what_it_was_born_with_while_nothing_newer_was_accepted(
    api: ApiDouble, engine: StartEngine, pod: Pod
) -> None:
    blue = await engine("blue")
    pod.prepare(intent(1, colour("b", 100, blue.address)))
    api.put(intent(2, NOT_AN_ADDRESS))  # the kubelet's copy was older than the object
    await pod.start()

    assert "malformed IP address" in (await pod.ack(2)).rejected
    await pod.healthy(blue.address)
    assert (await pod.client().chat()).json["model"] == "blue"


async def test_a_first_intent_that_envoy_refused_before_the_agent_came_is_told(
    api: ApiDouble, pod: Pod
) -> None:
    bad = intent(1, NOT_AN_ADDRESS)
    pod.prepare(bad)
    api.put(bad)
    pod.write_files()

    async def refused_by_envoy() -> bool:
        stats = await pod.client(9901).get("/stats?filter=cluster.all.update_rejected")
        return b"update_rejected: 1" in stats.body

    await pod.start_envoy()
    await until(pod.envoy_listens)
    await until(refused_by_envoy)
    pod.start_agent()
    await until(pod.agent_listens)

    async def refused() -> bool:
        return not (await pod.ack()).accepted

    await until(refused)
    ack = await pod.ack()
    assert (ack.accepted, ack.generation) == (False, -1)
    answer = await pod.client().chat()
    assert (answer.status, answer.json["error"]["code"]) == (503, "no_engine_available")
    assert (await pod.client(9902).get("/readyz")).status == 503


async def test_an_intent_that_cannot_be_read_is_refused_with_the_field_that_is_wrong(
    api: ApiDouble, engine: StartEngine, serving: StartPod
) -> None:
    blue = await engine("blue")
    pod = await serving(intent(1, colour("b", 100, blue.address)))
    await pod.healthy(blue.address)

    api.put('{"schema": "moe.gateway/v1", "generation": 2, "model": "kimi", "colours": [{"revision": 1}]}')
    ack = await pod.ack(2)

    assert (ack.accepted, ack.generation, ack.received_generation) == (False, 1, 2)
    assert "colours.0.revision" in ack.rejected
    assert (await pod.client().chat()).status == 200


async def test_text_without_a_generation_is_refused_and_the_next_intent_is_taken(
    api: ApiDouble, serving: StartPod
) -> None:
    pod = await serving(intent(1))
    await happened(api.watching)

    async def refused() -> bool:
        return not (await pod.ack()).accepted

    texts = ["", "not json", "[]", '{"generation": "x"}', '{"generation": -1}', "{"]
    for generation, text in enumerate(texts, start=2):
        api.put(text)
        await until(refused)
        assert (await pod.ack()).received_generation == generation - 1
        api.put(intent(generation))
        ack = await pod.ack(generation)
        assert (ack.generation, ack.accepted) == (generation, True)


async def test_restoring_what_somebody_broke_by_hand_clears_the_refusal(
    api: ApiDouble, serving: StartPod
) -> None:
    pod = await serving(intent(1))
    await happened(api.watching)
    api.put("by hand")

    async def refused() -> bool:
        return not (await pod.ack()).accepted

    async def accepted() -> bool:
        return (await pod.ack()).accepted

    await until(refused)
    api.put(intent(1))
    await until(accepted)


@pytest.mark.parametrize("mounted", [None, "not json"])
async def test_a_pod_without_a_usable_mount_starts_and_waits_for_the_api(
    api: ApiDouble, engine: StartEngine, pod: Pod, mounted: str | None
) -> None:
    blue = await engine("blue")
    pod.prepare(mounted)
    await pod.start()

    async def up() -> bool:
        return (await pod.ack()).envoy_live

    await until(up)
    assert (await pod.client().get("/v1/models")).status == 503
    assert not await pod.ready()

    api.put(intent(1, colour("b", 100, blue.address)))
    await until(pod.ready)
    await pod.healthy(blue.address)


async def test_without_an_envoy_command_the_refused_file_is_named(
    api: ApiDouble, serving: StartPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "find_envoy", lambda: None)
    pod = await serving(intent(1))

    api.put(intent(2, NOT_AN_ADDRESS))

    assert (await pod.ack(2)).rejected == "Envoy refused eds.json; its log says why"


async def test_a_full_disk_is_told_and_the_intent_applied_once_there_is_room(
    api: ApiDouble, serving: StartPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = await serving(intent(1))
    await pod.ack(1)
    replace = Store._replace

    def full(store: Store, name: str, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "_replace", full)
    api.put(intent(2))

    async def told() -> bool:
        return "No space left" in (await pod.ack()).rejected

    await until(told)
    assert (await pod.ack()).generation == 1
    monkeypatch.setattr(Store, "_replace", replace)

    async def applied() -> bool:
        ack = await pod.ack()
        return (ack.generation, ack.accepted) == (2, True)

    await until(applied)
