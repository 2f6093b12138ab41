"""The in-memory API's own switches: injected time and names, the step-by-step collector, bounded history."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from moe_operator.api.crd import custom_resource_definition
from moe_operator.runtime.kube import (
    CONFIG_MAP,
    CRD,
    JOB,
    MOE_DEPLOYMENT,
    NAMESPACE,
    NODE,
    POD,
    ApiError,
    Obj,
)
from moe_operator.sandbox.api import MemoryApi, MemoryKube

DEFINITION = custom_resource_definition()


def config_map(name: str, **meta: Any) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", **meta},
        "data": {"a": "1"},
    }


def moe(**meta: Any) -> Obj:
    return {
        "apiVersion": "moe-operator.io/v1alpha1",
        "kind": "MoEDeployment",
        "metadata": {"name": "kimi", "namespace": "default", **meta},
        "spec": {
            "model": {"source": "https://models.example/kimi"},
            "engine": {"type": "vLLM", "image": "vllm:1"},
            "accelerators": {"product": "NVIDIA-H20", "nodes": 2},
        },
    }


def owner(obj: Obj) -> Obj:
    meta = obj["metadata"]
    return {"apiVersion": "v1", "kind": obj["kind"], "name": meta["name"], "uid": meta["uid"]}


def names(api: MemoryApi) -> list[str]:
    return [item["metadata"]["name"] for item in api.list(CONFIG_MAP).items]


def refusal(call: Any, *args: Any, **options: Any) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        call(*args, **options)
    return caught.value.status, caught.value.reason


def test_times_and_identities_are_injected() -> None:
    numbers = count()

    def build() -> Obj:
        return MemoryApi(clock=lambda: 1_700_000_000.9, new_uid=lambda: f"uid-{next(numbers)}").create(
            {**config_map(""), "metadata": {"generateName": "cm-", "namespace": "default"}}
        )

    first, numbers = build(), count()
    second = build()

    assert first == second
    assert first["metadata"]["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert first["metadata"]["managedFields"][0]["time"] == "2023-11-14T22:13:20Z"


def test_garbage_can_wait_for_its_collector() -> None:
    api = MemoryApi(auto_collect=False)
    parent = api.create(config_map("parent"))
    api.create(config_map("child", ownerReferences=[owner(parent)]))
    api.delete(CONFIG_MAP, "default", "parent")
    assert names(api) == ["child"]

    api.collect_garbage()

    assert names(api) == []


def test_a_namespace_waits_for_the_collector_too() -> None:
    api = MemoryApi(auto_collect=False)
    api.create(config_map("cm"))
    api.delete(NAMESPACE, None, "default")
    assert api.get(NAMESPACE, None, "default")["status"]["phase"] == "Terminating"
    assert names(api) == ["cm"]

    api.collect_garbage()

    assert refusal(api.get, NAMESPACE, None, "default") == (404, "NotFound")


def test_a_custom_kind_is_unknown_without_its_crd() -> None:
    api = MemoryApi()
    assert refusal(api.create, moe()) == (404, "NotFound")
    assert refusal(api.list, MOE_DEPLOYMENT) == (404, "NotFound")

    api.create(DEFINITION)

    assert api.create(moe())["spec"]["replicas"] == 1


def test_a_crd_goes_after_the_last_of_its_objects() -> None:
    api = MemoryApi()
    api.create(DEFINITION)
    name = DEFINITION["metadata"]["name"]
    api.create(moe(finalizers=["x.example/hold"]))

    api.delete(CRD, None, name)
    assert "deletionTimestamp" in api.get(MOE_DEPLOYMENT, "default", "kimi")["metadata"]
    assert api.get(CRD, None, name)["metadata"]["finalizers"]

    release = [{"op": "remove", "path": "/metadata/finalizers"}]
    api.patch(MOE_DEPLOYMENT, "default", "kimi", release, patch_type="json")
    assert refusal(api.get, CRD, None, name) == (404, "NotFound")
    assert refusal(api.list, MOE_DEPLOYMENT) == (404, "NotFound")


def test_a_changed_crd_judges_the_next_write() -> None:
    api = MemoryApi()
    api.create(DEFINITION)
    api.create(moe())
    replicas = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/replicas/maximum"
    change = [{"op": "add", "path": replicas, "value": 3}]
    api.patch(CRD, None, DEFINITION["metadata"]["name"], change, patch_type="json")

    tall = {"spec": {"replicas": 4}}
    assert refusal(api.patch, MOE_DEPLOYMENT, "default", "kimi", tall, patch_type="merge") == (422, "Invalid")


def test_a_kubelet_registers_its_node_with_a_status() -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"capacity": {"x/gpu": "8"}},
    }

    assert MemoryApi().create(node)["status"]["capacity"] == {"x/gpu": "8"}
    assert NODE.namespaced is False


def test_a_job_knows_its_pods_by_its_own_uid() -> None:
    api = MemoryApi()
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x"}]}}
    job = api.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "j", "namespace": "default"},
            "spec": {"template": template},
        },
        manager="m",
    )

    uid = job["metadata"]["uid"]
    assert job["spec"]["selector"]["matchLabels"] == {"batch.kubernetes.io/controller-uid": uid}
    assert job["spec"]["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "j"
    assert api.get(JOB, "default", "j")["spec"]["backoffLimit"] == 6


@pytest.mark.parametrize(
    "nonsense",
    [
        {"metadata": {"name": "x"}, "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": object()}},
        {"metadata": {"name": "x"}, "apiVersion": "v1", "kind": "ConfigMap", "data": {1: "a"}},
        {"metadata": "x", "apiVersion": "v1", "kind": "ConfigMap"},
        {"metadata": {"name": "x", "namespace": "default"}, "apiVersion": "v1", "kind": "Pod", "spec": []},
        {"metadata": {"name": "x"}, "apiVersion": "v1", "kind": "ConfigMap"},  # no namespace
    ],
)
def test_what_json_could_not_carry_is_refused(nonsense: Obj) -> None:
    assert refusal(MemoryApi().create, nonsense) == (400, "BadRequest")


@pytest.mark.parametrize("plural", ["Pod", "Deployment", "Job", "ReplicaSet", "Service", "Secret"])
def test_an_empty_object_is_refused_or_defaulted_never_a_crash(plural: str) -> None:
    api = MemoryApi()
    group = {"Deployment": "apps/v1", "ReplicaSet": "apps/v1", "Job": "batch/v1"}.get(plural, "v1")
    empty = {"apiVersion": group, "kind": plural, "metadata": {"name": "x", "namespace": "default"}}

    if plural == "Secret":
        assert api.create(empty)["type"] == "Opaque"
    else:
        assert refusal(api.create, empty) == (422, "Invalid")


@pytest.mark.parametrize(
    "patch", [{"not": "a list"}, ["not an operation"], [{"op": "add", "path": "/data/x"}]]
)
def test_a_json_patch_that_is_none_is_refused(patch: Any) -> None:
    api = MemoryApi()
    api.create(config_map("cm"))

    assert refusal(api.patch, CONFIG_MAP, "default", "cm", patch, patch_type="json") == (422, "Invalid")


async def test_a_watcher_that_is_too_slow_has_to_start_again() -> None:
    api = MemoryApi(history=5)
    kube = MemoryKube(api)
    stream = kube.watch(CONFIG_MAP, "default")
    first = await _started(stream)
    for index in range(20):
        api.create(config_map(f"cm-{index}"))

    with pytest.raises(ApiError, match="too old resource version"):
        async with asyncio.timeout(20):
            await first
            async for _ in stream:
                pass


async def _started(stream: Any) -> asyncio.Task[Any]:
    """The next event of a watch that is already waiting for it."""
    task = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    return task


async def test_many_watchers_see_the_same_changes() -> None:
    api = MemoryApi()
    kube = MemoryKube(api)
    start = str(api.store.revision)
    streams = [kube.watch(CONFIG_MAP, "default", resource_version=start) for _ in range(5)]
    waiting = [await _started(stream) for stream in streams]

    api.create(config_map("cm"))
    events = await asyncio.gather(*waiting)

    assert {(event.type, event.object["metadata"]["name"]) for event in events} == {("ADDED", "cm")}
    events[0].object["data"]["a"] = "mine"
    assert events[1].object["data"] == {"a": "1"}


def test_a_bound_pod_is_bound_for_good() -> None:
    api = MemoryApi()
    spec = {"containers": [{"name": "a", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "spec": spec}
    applied = api.apply(pod, manager="m")

    bound = api.bind("default", "p", "node-1")

    assert refusal(api.bind, "default", "p", "node-2") == (409, "Conflict")
    assert api.apply(pod, manager="m") == bound  # our apply does not unbind it
    assert int(bound["metadata"]["resourceVersion"]) > int(applied["metadata"]["resourceVersion"])
    api.delete(POD, "default", "p")
    assert api.get(POD, "default", "p")["metadata"]["deletionGracePeriodSeconds"] == 30
