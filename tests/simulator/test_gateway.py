"""The managed gateway: what its pods are told, what they may refuse, who may reach whom."""

from __future__ import annotations

import json
from typing import Any

import pytest
from moe_operator.api.intent import INTENT_KEY, Intent
from moe_operator.api.policy import NetworkPolicies, OperatorPolicy
from moe_operator.runtime.kube import CONFIG_MAP, NETWORK_POLICY, POD_DISRUPTION_BUDGET

from tests.simulator.scenes import fresh_world, serving
from tests.simulator.world import World, Write

Obj = dict[str, Any]
REFRESH = "moe-operator.io/refresh-keys"


def intent(world: World) -> Intent:
    config_map = world.api.get(CONFIG_MAP, "default", "k3-gateway")
    return Intent.model_validate_json(config_map["data"][INTENT_KEY])


def gateway_uids(world: World) -> set[str]:
    return {p["metadata"]["uid"] for p in world.gateway_pods()}


def gateway_ready(world: World) -> Obj:
    return world.condition("k3", "GatewayReady")


def names(world: World, kind: Any) -> set[str]:
    return {o["metadata"]["name"] for o in world.api.list(kind, "default").items}


async def test_a_refused_configuration_is_told_in_envoys_words_and_the_last_good_one_serves(
    served: World,
) -> None:
    engines = {p["metadata"]["uid"] for p in served.engine_pods()}
    good = intent(served).generation
    refusing = served.gateway_pods()[0]["metadata"]["name"]
    served.probes.refusing[refusing] = "route config: duplicate path /v1/models"
    await served.edit("k3", lambda s: s.update(gateway={"allowedPaths": ["/v1/models"]}))
    await served.until(lambda: gateway_ready(served).get("reason") == "GatewayConfigRejected")
    said = gateway_ready(served)["message"]
    assert f"configuration {good} goes on serving" in said
    assert f"{refusing}: route config: duplicate path /v1/models" in said
    await served.settle()
    assert served.is_ready("k3") and {p["metadata"]["uid"] for p in served.engine_pods()} == engines
    served.probes.refusing.clear()
    await served.until(lambda: gateway_ready(served)["status"] == "True")


async def test_a_rollout_waits_for_a_gateway_that_refuses(served: World) -> None:
    old = served.status("k3")["activeRevision"]
    served.probes.refusing[served.gateway_pods()[0]["metadata"]["name"]] = "no"
    await served.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await served.until(lambda: served.status("k3")["rollout"]["phase"] == "Shifting")
    for _ in range(30):
        await served.step()
        assert served.status("k3")["activeRevision"] == old and len(served.pods_of("k3", old)) == 2


def pod_marks(writes: list[Write]) -> list[str]:
    return [w.name for w in writes if (w.verb, w.kind) == ("apply", "Pod") and "spec" not in w.object]


async def test_asking_for_a_refresh_of_keys_annotates_every_gateway_pod_once_and_restarts_none(
    served: World,
) -> None:
    before, pods = gateway_uids(served), sorted(p["metadata"]["name"] for p in served.gateway_pods())
    for wish in ("1", "2"):
        served.kube.log.clear()
        await served.annotate("k3", REFRESH, wish)
        await served.settle()
        assert sorted(pod_marks(served.kube.log)) == pods
        assert {p["metadata"]["annotations"][REFRESH] for p in served.gateway_pods()} == {wish}
    served.kube.log.clear()
    for _ in range(10):
        await served.step(60.0)
    assert served.kube.log == [] and gateway_uids(served) == before


async def test_budget_and_policies_are_there_and_a_resync_writes_nothing(served: World) -> None:
    group = f"k3-{served.status('k3')['activeRevision']}-0"
    assert names(served, POD_DISRUPTION_BUDGET) == {"k3-gateway"}
    assert names(served, NETWORK_POLICY) == {"k3-engine", "k3-gateway", "k3-stager", "k3-peers", group}
    served.kube.log.clear()
    for _ in range(10):
        await served.step(60.0)
    assert served.kube.log == []


async def test_the_policy_of_a_group_goes_with_the_group(served: World) -> None:
    old = served.status("k3")["activeRevision"]
    await served.edit("k3", lambda s: s["engine"].update(image="vllm:green"))
    await served.until(lambda: served.stable("k3") and served.status("k3")["activeRevision"] != old)
    await served.settle()
    groups = names(served, NETWORK_POLICY) - {"k3-engine", "k3-gateway", "k3-stager", "k3-peers"}
    assert groups == {f"k3-{served.status('k3')['activeRevision']}-0"}


async def test_an_admin_who_wants_no_policies_gets_rid_of_them(served: World) -> None:
    served.policy = OperatorPolicy(network_policies=NetworkPolicies(enabled=False))
    await served.until(lambda: not names(served, NETWORK_POLICY))
    await served.settle()
    assert served.is_ready("k3")


async def test_where_none_are_wanted_none_is_made_while_files_are_handed_on_either(fresh: World) -> None:
    fresh.policy = OperatorPolicy(network_policies=NetworkPolicies(enabled=False))
    await serving(fresh)
    made = {w.kind for w in fresh.kube.log if w.verb == "apply"}
    assert "NetworkPolicy" not in made
    assert fresh.kubelet.stores.from_peers, "nodes helped each other"


# Keys and certificates

AUTH = {"auth": {"secretRef": {"name": "keys"}}}
TLS = {"tls": {"secretRef": {"name": "certificate"}}}


async def test_a_deployment_that_asks_for_keys_is_never_open(fresh: World) -> None:
    await serving(fresh, gateway=AUTH)
    told = [w.object for w in fresh.kube.log if (w.kind, w.name) == ("ConfigMap", "k3-gateway")]
    assert told
    assert all(
        json.loads(c["data"][INTENT_KEY])["keys"] == {"directory": "../keys", "forward": False} for c in told
    )
    assert "Secret keys are asked for, and it has none: nobody gets in" in gateway_ready(fresh)["message"]
    secret = {"name": "keys", "namespace": "default"}
    await fresh.user.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret, "stringData": {"alice": "ab" * 32}}
    )
    await fresh.until(lambda: gateway_ready(fresh)["message"].endswith("Secret keys are asked for"))


async def test_switching_keys_on_waits_until_every_gateway_pod_has_them(served: World) -> None:
    assert "no API keys are asked for" in gateway_ready(served)["message"]
    before = gateway_uids(served)
    await served.edit("k3", lambda s: s.update(gateway=AUTH))
    await served.step()
    for _ in range(100):
        if intent(served).keys:
            break
        assert "asked for" not in gateway_ready(served)["message"] or before & gateway_uids(served)
        await served.step()
    mounted = [any(v["name"] == "keys" for v in p["spec"]["volumes"]) for p in served.gateway_pods()]
    assert mounted and all(mounted) and intent(served).keys
    await served.until(lambda: "Secret keys are asked for" in gateway_ready(served)["message"])


async def test_keys_that_were_asked_for_stay_asked_for_while_pods_are_replaced(fresh: World) -> None:
    await serving(fresh, gateway=AUTH)
    fresh.kube.log.clear()
    await fresh.edit("k3", lambda s: s.update(gateway={"auth": {"secretRef": {"name": "others"}}}))
    await fresh.settle()
    told = [w.object for w in fresh.kube.log if (w.kind, w.name) == ("ConfigMap", "k3-gateway")]
    assert all(json.loads(c["data"][INTENT_KEY])["keys"] for c in told) and intent(fresh).keys


async def test_without_its_certificate_no_new_gateway_pod_replaces_one_that_serves(served: World) -> None:
    before = gateway_uids(served)
    await served.edit("k3", lambda s: s.update(gateway=TLS))
    await served.until(lambda: 'secret "certificate" not found' in gateway_ready(served).get("message", ""))
    await served.settle()
    assert before <= gateway_uids(served) and served.is_ready("k3")
    await served.secret("certificate")
    await served.until(lambda: not before & gateway_uids(served))
    await served.until(lambda: gateway_ready(served)["status"] == "True")


@pytest.mark.parametrize("gone", ["ConfigMap", "status"])
async def test_a_lost_configuration_is_written_anew_with_a_newer_number(served: World, gone: str) -> None:
    before = intent(served).generation
    if gone == "ConfigMap":
        await served.user.delete(CONFIG_MAP, "default", "k3-gateway")
    else:
        broken = {**served.api.get(CONFIG_MAP, "default", "k3-gateway"), "data": {INTENT_KEY: "{"}}
        await served.user.replace(broken)
    await served.settle()
    assert intent(served).generation == before + 1


async def test_the_estimate_of_the_return_grows_while_nothing_serves() -> None:
    world = await fresh_world()
    await serving(world)
    assert intent(world).retry_after_seconds == 15
    world.kubelet.crashes["vllm:blue"] = 1
    world.kubelet.kill(world.engine_pods()[0])
    await world.until(lambda: intent(world).retry_after_seconds > 15)
    world.kubelet.crashes.clear()
    await world.until(lambda: world.stable("k3"), seconds=5.0)
    await world.settle()
    assert intent(world).retry_after_seconds == 15
