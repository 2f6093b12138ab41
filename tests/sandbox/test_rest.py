"""The REST face of the in-memory API beyond what the contract tests cover: raw HTTP, as clients speak it."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from moe_operator.api.crd import custom_resource_definition
from moe_operator.gateway.watch import ApiServer, WatchState
from moe_operator.gateway.watch import watch as follow_intent
from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.api import MemoryApi
from moe_operator.sandbox.rest import LogRequest, PortTaken, RestServer, ServiceAccount

CRD = custom_resource_definition()
NOW = 1_796_000_000.0
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/moe-operator.io/v1alpha1/namespaces/default/moedeployments"
AGENT = ServiceAccount("default", "kimi-gateway")


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi(clock=lambda: NOW)
    api.create(CRD)
    return api


async def one_log(pod: Obj, wanted: LogRequest) -> AsyncGenerator[bytes, None]:
    yield f"{pod['metadata']['name']}/{wanted.container}/{wanted.tail_lines}\n".encode()
    if wanted.follow:
        yield b"waiting\n"
        await asyncio.Event().wait()


@pytest.fixture
async def server(api: MemoryApi) -> AsyncIterator[RestServer]:
    server = RestServer(api, logs=one_log, clock=lambda: NOW + 300, bookmark_seconds=0.05)
    async with server:
        yield server


@pytest.fixture
async def http(server: RestServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        yield client


def config_map(name: str = "cm", **fields: Any) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}, **fields}


def moe() -> Obj:
    return {
        "apiVersion": "moe-operator.io/v1alpha1",
        "kind": "MoEDeployment",
        "metadata": {"name": "kimi"},
        "spec": {
            "model": {"source": "https://models.example/kimi"},
            "engine": {"type": "vLLM", "image": "vllm:1"},
            "accelerators": {"product": "NVIDIA-H20", "nodes": 2},
        },
    }


async def frames(response: httpx.Response, count: int) -> list[Obj]:
    """The next frames of a watch."""
    found: list[Obj] = []
    async with asyncio.timeout(20):
        async for line in response.aiter_lines():
            found.append(json.loads(line))
            if len(found) == count:
                return found
    return found


async def test_discovery_lists_what_is_served(http: httpx.AsyncClient) -> None:
    groups = (await http.get("/apis")).json()["groups"]
    core = (await http.get("/api/v1")).json()["resources"]
    ours = (await http.get("/apis/moe-operator.io/v1alpha1")).json()["resources"]

    assert (await http.get("/api")).json()["versions"] == ["v1"]
    assert (await http.get("/version")).json()["major"] == "1"
    assert "moe-operator.io" in {group["name"] for group in groups}
    assert {"namespaces", "pods", "pods/status", "pods/log"} <= {entry["name"] for entry in core}
    assert [entry["name"] for entry in ours] == [
        "moedeployments",
        "moedeployments/status",
        "moedeployments/scale",
    ]
    assert ours[0]["shortNames"] == ["moed"]
    assert "watch" in ours[0]["verbs"]


async def test_a_custom_kind_comes_and_goes_with_its_crd(http: httpx.AsyncClient) -> None:
    name = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/moedeployments.moe-operator.io"
    conditions = (await http.get(name)).json()["status"]["conditions"]
    assert {c["type"]: c["status"] for c in conditions}["Established"] == "True"
    await http.post(DEPLOYMENTS, json=moe())

    await http.delete(name)

    assert (await http.get(name)).status_code == 404
    assert (await http.get(DEPLOYMENTS)).status_code == 404
    assert (await http.get("/apis/moe-operator.io/v1alpha1")).status_code == 404


async def test_refusals_are_status_objects(http: httpx.AsyncClient) -> None:
    for answer, code, reason in (
        (await http.get(f"{CONFIG_MAPS}/nobody"), 404, "NotFound"),
        (await http.get("/apis/absent.example/v1/things"), 404, "NotFound"),
        (await http.get("/nowhere"), 404, "NotFound"),
        (await http.post(CONFIG_MAPS, content=b"{not json"), 400, "BadRequest"),
        (await http.post(CONFIG_MAPS, json=[1]), 400, "BadRequest"),
        (await http.post(CONFIG_MAPS, json={**config_map(), "kind": "Secret"}), 400, "BadRequest"),
        (await http.post(CONFIG_MAPS, json={**config_map(), "metadata": {"labels": [1]}}), 400, "BadRequest"),
        (await http.post(f"{CONFIG_MAPS}?dryRun=All", json=config_map()), 400, "BadRequest"),
        (await http.put(CONFIG_MAPS, json=config_map()), 405, "MethodNotAllowed"),
        (await http.get(f"{CONFIG_MAPS}/x/status"), 404, "NotFound"),
    ):
        status = answer.json()
        assert (answer.status_code, status["kind"], status["status"]) == (code, "Status", "Failure")
        assert (status["code"], status["reason"]) == (code, reason)
        assert status["message"]


async def test_a_body_that_does_not_fit_its_url_is_refused(http: httpx.AsyncClient) -> None:
    elsewhere = config_map(metadata={"name": "cm", "namespace": "kube-system"})
    assert (await http.post(CONFIG_MAPS, json=elsewhere)).status_code == 400
    await http.post(CONFIG_MAPS, json=config_map())
    assert (await http.put(f"{CONFIG_MAPS}/cm", json=config_map("other"))).status_code == 400


async def test_protobuf_is_refused_with_the_way_round_it(http: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/vnd.kubernetes.protobuf"}

    answer = await http.post(CONFIG_MAPS, content=b"k8s\0", headers=headers)

    assert answer.status_code == 415
    assert "kubectl apply -f" in answer.json()["message"]


async def test_every_kind_of_patch(http: httpx.AsyncClient) -> None:
    async def patch(content_type: str, body: Any, query: str = "") -> Obj:
        headers = {"Content-Type": content_type}
        answer = await http.patch(f"{CONFIG_MAPS}/cm{query}", content=json.dumps(body), headers=headers)
        assert answer.status_code in (200, 201), answer.text
        found: Obj = answer.json()
        return found

    applied = await patch("application/apply-patch+yaml", config_map(), "?fieldManager=m")
    assert applied["metadata"]["managedFields"][0]["manager"] == "m"
    merged = await patch("application/merge-patch+json", {"data": {"a": None, "b": "2"}})
    assert merged["data"] == {"b": "2"}
    listed = await patch("application/json-patch+json", [{"op": "add", "path": "/data/c", "value": "3"}])
    assert listed["data"] == {"b": "2", "c": "3"}
    finalizers = {"metadata": {"finalizers": ["x.example/a"]}}
    await patch("application/strategic-merge-patch+json", finalizers)
    finalizers = {"metadata": {"finalizers": ["x.example/b"]}}
    both = await patch("application/strategic-merge-patch+json", finalizers)
    assert both["metadata"]["finalizers"] == ["x.example/a", "x.example/b"]


async def test_a_strategic_patch_merges_containers_by_name(http: httpx.AsyncClient) -> None:
    pods = "/api/v1/namespaces/default/pods"
    containers = [{"name": "a", "image": "x:1"}, {"name": "b", "image": "x:1"}]
    await http.post(pods, json={"metadata": {"name": "p"}, "spec": {"containers": containers}})
    patch = {"spec": {"containers": [{"name": "b", "image": "x:2"}]}}

    answer = await http.patch(
        f"{pods}/p",
        content=json.dumps(patch),
        headers={"Content-Type": "application/strategic-merge-patch+json"},
    )

    assert [c["image"] for c in answer.json()["spec"]["containers"]] == ["x:1", "x:2"]


async def test_apply_reads_yaml(http: httpx.AsyncClient) -> None:
    text = yaml.safe_dump(config_map())
    headers = {"Content-Type": "application/apply-patch+yaml"}

    first = await http.patch(f"{CONFIG_MAPS}/cm?fieldManager=m&force=true", content=text, headers=headers)
    second = await http.patch(f"{CONFIG_MAPS}/cm?fieldManager=m&force=true", content=text, headers=headers)

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()


async def test_the_manager_is_named_after_the_program_when_it_does_not_say(http: httpx.AsyncClient) -> None:
    answer = await http.post(CONFIG_MAPS, json=config_map(), headers={"User-Agent": "kubectl/v1.34 (linux)"})

    assert answer.json()["metadata"]["managedFields"][0]["manager"] == "kubectl"


async def test_unknown_fields_are_reported_as_asked(http: httpx.AsyncClient) -> None:
    sent = moe()
    sent["spec"]["accelerators"]["nodez"] = 4

    strict = await http.post(f"{DEPLOYMENTS}?fieldValidation=Strict", json=sent)
    assert strict.status_code == 400
    assert 'unknown field "spec.accelerators.nodez"' in strict.json()["message"]
    warned = await http.post(DEPLOYMENTS, json=sent)
    assert warned.status_code == 201
    assert "spec.accelerators.nodez" in warned.headers["Warning"]
    assert "nodez" not in warned.json()["spec"]["accelerators"]


async def test_a_list_comes_in_pages_of_one_moment(http: httpx.AsyncClient, api: MemoryApi) -> None:
    for name in ("a", "b", "c"):
        await http.post(CONFIG_MAPS, json=config_map(name))
    first = (await http.get(CONFIG_MAPS, params={"limit": 2})).json()
    await http.delete(f"{CONFIG_MAPS}/c")
    token = first["metadata"]["continue"]

    second = (await http.get(CONFIG_MAPS, params={"limit": 2, "continue": token})).json()

    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 1
    assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
    assert "continue" not in second["metadata"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "kind" not in second["items"][0]  # as a real server leaves it out
    assert (await http.get(CONFIG_MAPS, params={"limit": 2, "continue": token})).status_code == 410


async def test_a_collection_is_deleted_by_selector(http: httpx.AsyncClient) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "1"}), ("c", {})):
        await http.post(CONFIG_MAPS, json=config_map(name, metadata={"name": name, "labels": labels}))

    await http.delete(CONFIG_MAPS, params={"labelSelector": "x=1"})

    left = (await http.get(CONFIG_MAPS)).json()["items"]
    assert [item["metadata"]["name"] for item in left] == ["c"]


async def test_scale_reads_and_writes_replicas(http: httpx.AsyncClient) -> None:
    await http.post(DEPLOYMENTS, json=moe())
    scale = (await http.get(f"{DEPLOYMENTS}/kimi/scale")).json()
    assert (scale["kind"], scale["spec"]["replicas"]) == ("Scale", 1)

    merge = {"Content-Type": "application/merge-patch+json"}
    patch = json.dumps({"spec": {"replicas": 3}})
    patched = await http.patch(f"{DEPLOYMENTS}/kimi/scale", content=patch, headers=merge)
    assert patched.json()["spec"]["replicas"] == 3
    assert (await http.get(f"{DEPLOYMENTS}/kimi")).json()["spec"]["replicas"] == 3
    assert (await http.put(f"{DEPLOYMENTS}/kimi/scale", json=scale)).status_code == 409  # its version is old
    negative = json.dumps({"spec": {"replicas": -1}})
    refused = await http.patch(f"{DEPLOYMENTS}/kimi/scale", content=negative, headers=merge)
    assert refused.status_code == 422
    assert (await http.get(f"{CONFIG_MAPS}/x/scale")).status_code == 404


async def test_a_deployments_scale_has_its_selector(http: httpx.AsyncClient) -> None:
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": {"containers": [{"name": "a", "image": "x"}]},
    }
    spec = {"selector": {"matchLabels": {"app": "d"}}, "template": template}
    path = "/apis/apps/v1/namespaces/default/deployments"
    await http.post(path, json={"metadata": {"name": "d"}, "spec": spec})

    scale = (await http.get(f"{path}/d/scale")).json()

    assert (scale["spec"]["replicas"], scale["status"]["selector"]) == (1, "app=d")


async def test_a_pod_is_bound_once(http: httpx.AsyncClient) -> None:
    pods = "/api/v1/namespaces/default/pods"
    spec = {"containers": [{"name": "a", "image": "x"}]}
    await http.post(pods, json={"metadata": {"name": "p"}, "spec": spec})
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "node-1"}}

    assert (await http.post(f"{pods}/p/binding", json=binding)).status_code == 201
    pod = (await http.get(f"{pods}/p")).json()
    assert pod["spec"]["nodeName"] == "node-1"
    assert [(c["type"], c["status"]) for c in pod["status"]["conditions"]] == [("PodScheduled", "True")]
    assert (await http.post(f"{pods}/p/binding", json=binding)).status_code == 409


async def test_custom_columns_make_the_table(http: httpx.AsyncClient, api: MemoryApi) -> None:
    await http.post(DEPLOYMENTS, json=moe())
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Serving",
        "message": "",
        "lastTransitionTime": "2026-11-30T00:00:00Z",
    }
    status = {
        **moe(),
        "metadata": {"name": "kimi", "namespace": "default"},
        "status": {"conditions": [condition]},
    }
    api.apply(status, manager="s", subresource="status")

    table = (await http.get(DEPLOYMENTS, headers=TABLE)).json()

    names = [column["name"] for column in table["columnDefinitions"]]
    (row,) = table["rows"]
    cells = dict(zip(names, row["cells"], strict=True))
    assert table["kind"] == "Table"
    assert (cells["Name"], cells["Ready"], cells["Age"]) == ("kimi", "True", "5m")
    assert row["object"]["metadata"]["name"] == "kimi"


async def test_a_pods_row_says_what_is_wrong(http: httpx.AsyncClient, api: MemoryApi) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]},
    }
    api.create(pod)
    waiting = {
        "name": "b",
        "ready": False,
        "restartCount": 2,
        "state": {"waiting": {"reason": "ErrImagePull"}},
    }
    running = {"name": "a", "ready": True, "restartCount": 1, "state": {"running": {}}}
    status = {**pod, "status": {"phase": "Pending", "containerStatuses": [running, waiting]}}
    api.apply(status, manager="kubelet", subresource="status")

    table = (await http.get("/api/v1/namespaces/default/pods/p", headers=TABLE)).json()

    assert table["rows"][0]["cells"] == ["p", "1/2", "ErrImagePull", 3, "5m", "<none>", "<none>"]


async def test_a_watch_as_tables_has_one_row_an_event(http: httpx.AsyncClient) -> None:
    await http.post(CONFIG_MAPS, json=config_map())

    async with http.stream("GET", CONFIG_MAPS, params={"watch": "1"}, headers=TABLE) as response:
        (frame,) = await frames(response, 1)

    assert (frame["type"], frame["object"]["kind"]) == ("ADDED", "Table")
    assert frame["object"]["rows"][0]["cells"][:2] == ["cm", 1]


async def test_bookmarks_come_to_those_who_ask(http: httpx.AsyncClient, api: MemoryApi) -> None:
    now = str(api.store.revision)
    params = {"watch": "1", "resourceVersion": now, "allowWatchBookmarks": "true"}
    await http.post("/api/v1/namespaces/default/secrets", json={"metadata": {"name": "s"}})

    async with http.stream("GET", CONFIG_MAPS, params=params) as response:
        (frame,) = await frames(response, 1)

    assert frame["type"] == "BOOKMARK"
    assert int(frame["object"]["metadata"]["resourceVersion"]) > int(now)
    assert (frame["object"]["kind"], frame["object"]["apiVersion"]) == ("ConfigMap", "v1")


async def test_initial_events_end_with_a_bookmark(http: httpx.AsyncClient) -> None:
    await http.post(CONFIG_MAPS, json=config_map())
    params = {
        "watch": "1",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }

    async with http.stream("GET", CONFIG_MAPS, params=params) as response:
        added, end = await frames(response, 2)

    assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "cm")
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_ends_when_its_time_is_up(http: httpx.AsyncClient) -> None:
    answer = await http.get(CONFIG_MAPS, params={"watch": "1", "timeoutSeconds": "1"})

    assert (answer.status_code, answer.content) == (200, b"")


async def test_an_expired_watch_says_so_in_the_stream(http: httpx.AsyncClient, api: MemoryApi) -> None:
    await http.post(CONFIG_MAPS, json=config_map())
    api.compact()

    answer = await http.get(CONFIG_MAPS, params={"watch": "1", "resourceVersion": "1"})

    (line,) = answer.text.splitlines()
    frame = json.loads(line)
    assert (frame["type"], frame["object"]["code"], frame["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_a_version_from_the_future_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.get(CONFIG_MAPS, params={"watch": "1", "resourceVersion": "999999"})

    assert (answer.status_code, answer.json()["reason"]) == (504, "Timeout")


async def test_open_streams_end_in_good_order_when_the_server_closes(api: MemoryApi) -> None:
    server = RestServer(api, logs=one_log)
    await server.start()
    api.create({**config_map(), "metadata": {"name": "cm", "namespace": "default"}})
    pod_spec = {"containers": [{"name": "a", "image": "x"}]}
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default"},
            "spec": pod_spec,
        }
    )
    log = "/api/v1/namespaces/default/pods/p/log"
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=20) as http,
        http.stream("GET", CONFIG_MAPS, params={"watch": "1"}) as watch,
        http.stream("GET", log, params={"follow": "true"}) as followed,
    ):
        lines, chunks = watch.aiter_lines(), followed.aiter_lines()
        first = json.loads(await anext(lines))
        assert [await anext(chunks), await anext(chunks)] == ["p//None", "waiting"]

        closing = asyncio.create_task(server.close())
        rest = [line async for line in lines], [line async for line in chunks]  # a broken stream would raise
        await closing

    assert first["type"] == "ADDED"
    assert rest == ([], [])


async def test_a_log_is_read_as_asked(http: httpx.AsyncClient) -> None:
    spec = {"containers": [{"name": "a", "image": "x"}]}
    await http.post("/api/v1/namespaces/default/pods", json={"metadata": {"name": "p"}, "spec": spec})

    params: dict[str, str | int] = {"container": "a", "tailLines": 5}
    answer = await http.get("/api/v1/namespaces/default/pods/p/log", params=params)

    assert answer.text == "p/a/5\n"
    assert (await http.get("/api/v1/namespaces/default/pods/nobody/log")).status_code == 404


async def test_a_taken_port_is_a_clear_error(server: RestServer, api: MemoryApi) -> None:
    port = int(server.url.rpartition(":")[2])

    with pytest.raises(PortTaken, match=f"127.0.0.1:{port} is taken by"):
        await RestServer(api).start(port=port)


async def test_the_kubeconfig_is_the_owners_only(api: MemoryApi, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    async with RestServer(api, admin_token="secret") as server:
        server.write_kubeconfig(path)
        url = yaml.safe_load(path.read_text())["clusters"][0]["cluster"]["server"]
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"{url}{CONFIG_MAPS}")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert answer.status_code == 200


def grant(api: MemoryApi) -> None:
    """A Role for one ConfigMap, to be read and watched."""
    meta = {"name": AGENT.name, "namespace": AGENT.namespace}
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["kimi-gateway"],
        "verbs": ["get", "watch"],
    }
    rbac = "rbac.authorization.k8s.io"
    api.create({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": [rule]})
    api.create(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": AGENT.name},
            "subjects": [{"kind": "ServiceAccount", "name": AGENT.name, "namespace": AGENT.namespace}],
        }
    )


@pytest.fixture
async def guarded(api: MemoryApi) -> AsyncIterator[RestServer]:
    tokens = {"agents": AGENT}
    async with RestServer(api, admin_token="admins", authenticate=tokens.get) as server:
        yield server


@pytest.mark.parametrize(
    ("method", "path", "token", "expected"),
    [
        ("GET", "/api/v1/pods", "", 401),
        ("GET", "/api/v1/pods", "wrong", 401),
        ("GET", "/apis", "", 401),
        ("GET", "/healthz", "", 200),
        ("GET", "/api/v1/pods", "admins", 200),
        ("GET", "/admins/api/v1/pods", "", 200),
        ("GET", "/api", "agents", 200),
        ("GET", f"{CONFIG_MAPS}/kimi-gateway", "agents", 404),  # allowed to look; it is not there
        ("GET", f"{CONFIG_MAPS}/other", "agents", 403),
        ("GET", CONFIG_MAPS, "agents", 403),
        ("GET", f"{CONFIG_MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dother", "agents", 403),
        (
            "GET",
            f"{CONFIG_MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dkimi-gateway",
            "agents",
            200,
        ),
        ("DELETE", f"{CONFIG_MAPS}/kimi-gateway", "agents", 403),
        ("GET", "/api/v1/namespaces/kube-system/configmaps/kimi-gateway", "agents", 403),
    ],
)
async def test_everybody_may_do_what_his_token_grants(
    guarded: RestServer, api: MemoryApi, method: str, path: str, token: str, expected: int
) -> None:
    grant(api)
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    async with httpx.AsyncClient(base_url=guarded.url) as http:
        answer = await http.request(method, path, headers=headers)

    assert answer.status_code == expected


async def test_the_gateways_agent_follows_its_one_config_map(
    guarded: RestServer, api: MemoryApi, tmp_path: Path
) -> None:
    grant(api)
    (tmp_path / "token").write_text("agents")
    meta = {"name": "kimi-gateway", "namespace": "default"}
    intent = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"intent.json": "1"}}
    api.create(intent)

    texts = follow_intent(ApiServer(guarded.url, tmp_path), "default/kimi-gateway", WatchState())
    async with asyncio.timeout(20):
        first = await anext(texts)
        api.apply({**intent, "data": {"intent.json": "2"}}, manager="operator")
        second = await anext(texts)
    await texts.aclose()

    assert (first, second) == ("1", "2")
