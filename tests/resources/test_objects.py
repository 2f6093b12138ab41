"""Every object that the operator applies, as a golden file each; a difference is reviewed like code."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

import click
import pytest
from moe_operator.api.intent import Colour, Endpoint, Intent
from moe_operator.api.manifest import Manifest, ManifestFile
from moe_operator.api.policy import CacheClass, Images, NetworkPolicies, OperatorPolicy
from moe_operator.api.spec import HttpRouteRef, InferencePoolRef, MoESpec
from moe_operator.gateway.cli import main as moe_gateway_agent
from moe_operator.planning.plan import Layout
from moe_operator.resources.engine_pod import RankSeat, engine_pod
from moe_operator.resources.gateway import gateway_objects, intent_config_map
from moe_operator.resources.gc_job import gc_job
from moe_operator.resources.group_service import group_service
from moe_operator.resources.http_route import backend_service, http_route
from moe_operator.resources.inference_pool import inference_pool
from moe_operator.resources.manifest_config_map import (
    KEY_COMPRESSED,
    KEY_PLAIN,
    PLAIN_LIMIT,
    manifest_config_map,
    manifest_key,
    manifest_of,
)
from moe_operator.resources.network_policy import deployment_policies, group_policy
from moe_operator.resources.ownership import Owner
from moe_operator.resources.peers import peers_config, seeder_pod
from moe_operator.resources.resolver_job import resolver_job
from moe_operator.resources.revision_record import revision_record
from moe_operator.resources.scrub_job import scrub_job
from moe_operator.resources.staging_job import Pull, staging_job
from moe_operator.rollout.revision import NodeFiles, Revision, recorded
from moe_operator.sandbox.api import MemoryApi
from moe_operator.staging.cli import main as moestage

from tests.golden import assert_golden
from tests.simulator import gateway_api

Obj = dict[str, Any]
GOLDEN = Path(__file__).parent / "golden"
OWNER = Owner("k3", "team", "uid-of-k3")
POLICY = OperatorPolicy(
    images=Images(operator="moe-operator:1", envoy="envoy:1"),
    cache_classes={"nvme": CacheClass(root="/mnt/nvme", reserve_bytes=1 << 40)},
)
POLICY_WITH_SECRETS = POLICY.model_copy(
    update={"images": POLICY.images.model_copy(update={"pull_secrets": ["mirror"]})}
)
FILE = ManifestFile(path="model-00001-of-00001.safetensors", size=5, sha256="ab" * 32)
MANIFEST = Manifest(source="hf://org/model@main", resolved="c0ffee", files=[FILE], config={"a": 1})
EVERYTHING: Obj = {
    "model": {
        "name": "served",
        "source": "pvc://claim/dir",
        "credentialsRef": {"name": "hf"},
        "trustRemoteCode": True,
    },
    "engine": {
        "type": "vLLM",
        "image": "vllm:1",
        "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "pull"}],
        "env": [
            {"name": "HF_HUB_OFFLINE", "value": "0"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
    },
    "accelerators": {
        "product": "NVIDIA-H20",
        "nodes": 2,
        "gpusPerNode": 8,
        "extraResources": {"rdma/ib": "1"},
        "claims": [{"name": "imex", "resourceClaimTemplateName": "imex-channel"}],
    },
    "placement": {
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "priorityClassName": "high",
        "schedulerName": "own",
        "runtimeClassName": "nvidia",
    },
    "resources": {"cpu": "64", "memory": "512Gi", "ephemeralStorage": "100Gi", "sharedMemory": "32Gi"},
    "network": {
        "hostNetwork": True,
        "interface": "bond0",
        "rdma": {"hcas": ["mlx5_0", "mlx5_1"], "gidIndex": 3},
    },
    "startup": {"timeoutSeconds": 600},
    "pod": {
        "labels": {"team": "a", "moe-operator.io/rank": "9"},
        "annotations": {"note": "x"},
        "serviceAccountName": "engines",
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "initContainers": [{"name": "tune", "image": "tune:1", "command": ["tune"]}],
        "sidecars": [{"name": "logs", "image": "logs:1"}],
    },
    "rollout": {"drainSeconds": 120},
    "gateway": {
        "replicas": 3,
        "auth": {"secretRef": {"name": "api-keys"}},
        "otlp": {"endpoint": "collector.tracing:4317"},
        "tls": {"secretRef": {"name": "certificate"}, "clientCaRef": {"name": "clients"}},
        "service": {"type": "LoadBalancer", "port": 443, "annotations": {"lb": "internal"}},
    },
}
PLAIN: Obj = {
    "model": {"source": "hf://org/model@main"},
    "engine": {"type": "vLLM", "image": "vllm:1"},
    "accelerators": {"product": "NVIDIA-H20", "nodes": 2, "gpusPerNode": 8},
}


def spec(content: Obj) -> MoESpec:
    return MoESpec.model_validate(content)


def revision(content: Obj, view: str = "v" * 8) -> Revision:
    manifest = "k3-manifest" if view else ""
    return Revision("abcd1234", spec(content), Layout(8, 1, 2, True, 2, 8), view, manifest, 1)


def pod(content: Obj, rank: int, view: str = "v" * 8) -> Obj:
    key = KEY_PLAIN if view else ""
    seat = RankSeat(0, rank, f"node-{rank}", 4, NodeFiles(view))
    return engine_pod(OWNER, revision(content, view), seat, POLICY, "served", key)


INTENT = Intent(
    generation=3,
    model="k3",
    colours=[
        Colour(revision="abcd1234", weight=100, endpoints=[Endpoint(address="10.0.0.1", port=8000, pod="p")])
    ],
)
GATEWAY = {o["kind"]: o for o in gateway_objects(OWNER, spec(PLAIN), POLICY)}
FULL_GATEWAY = {o["kind"]: o for o in gateway_objects(OWNER, spec(EVERYTHING), POLICY_WITH_SECRETS)}
PROMETHEUS: Obj = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
FENCE = NetworkPolicies(metrics_from=[PROMETHEUS], external_gateways_from=[{"podSelector": {}}])


def policies(rules: NetworkPolicies, *, external: bool = False) -> dict[str, Obj]:
    made = deployment_policies(OWNER, rules, external_gateway=external)
    return {o["metadata"]["name"]: o for o in made}


POLICIES = policies(NetworkPolicies())
SINCE = "2026-11-30T08:00:00Z"
EDGE: Obj = {"name": "edge", "namespace": "infra", "sectionName": "https", "hostnames": ["k3.example.com"]}
BEHIND: Obj = {**PLAIN, "gateway": {"external": {"httpRouteRef": EDGE}, "allowedPaths": ["/v1/models"]}}
BEHIND_ROUTE = HttpRouteRef.model_validate(EDGE)
IN_A_POOL = InferencePoolRef.model_validate({"name": "k3-pool", "endpointPicker": {"name": "k3-epp"}})
CACHE = POLICY.cache_classes["nvme"]


def job(**model: Any) -> Obj:
    content = spec({**PLAIN, "model": {**PLAIN["model"], **model}})
    return resolver_job(OWNER, "k3-resolve-1", content.model, CACHE, POLICY)


def stage(content: Obj, **facts: Any) -> Obj:
    pull = Pull("k3-stage-1", "node-0", NodeFiles("v" * 8), "huggingface.co", **facts)
    return staging_job(OWNER, spec(content), POLICY, "k3-manifest", KEY_PLAIN, pull)


PEERS: Obj = {"peers": ("http://10.0.0.7:9109",), "peers_config": "k3-peers"}


OBJECTS: dict[str, Obj] = {
    "engine-pod-leader": pod(PLAIN, 0),
    "engine-pod-worker": pod(PLAIN, 1),
    "engine-pod-with-everything": pod(EVERYTHING, 0),
    "engine-pod-without-files": pod({**PLAIN, "model": {"source": "none"}}, 0, view=""),
    "group-service": group_service(OWNER, "abcd1234", 0),
    "gateway-service-account": GATEWAY["ServiceAccount"],
    "gateway-role": GATEWAY["Role"],
    "gateway-role-binding": GATEWAY["RoleBinding"],
    "gateway-deployment": GATEWAY["Deployment"],
    "gateway-service": GATEWAY["Service"],
    "gateway-budget": GATEWAY["PodDisruptionBudget"],
    "gateway-deployment-with-everything": FULL_GATEWAY["Deployment"],
    "gateway-service-with-everything": FULL_GATEWAY["Service"],
    "http-route": http_route(OWNER, spec(BEHIND), BEHIND_ROUTE, {"abcd1234": 90, "0123abcd": 10}, 7, SINCE),
    "inference-pool": inference_pool(OWNER, IN_A_POOL, {"abcd1234": 100, "0123abcd": 0}, 7, SINCE),
    "http-route-backend": backend_service(OWNER, "abcd1234"),
    "network-policy-engine": POLICIES["k3-engine"],
    "network-policy-stager": POLICIES["k3-stager"],
    "network-policy-peers": POLICIES["k3-peers"],
    "network-policy-gateway": POLICIES["k3-gateway"],
    "network-policy-engine-behind-anothers-gateway": policies(FENCE, external=True)["k3-engine"],
    "network-policy-group": group_policy(OWNER, "abcd1234", 0),
    "gateway-intent": intent_config_map(OWNER, INTENT),
    "resolver-job": job(),
    "resolver-job-with-credentials": job(credentialsRef={"name": "hf"}, trustRemoteCode=True),
    "resolver-job-of-a-claim": job(source="pvc://claim/some/dir"),
    "resolver-job-of-a-node-path": job(source="node://models/k3"),
    "staging-job": stage(PLAIN),
    "staging-job-from-peers": stage(PLAIN, **PEERS, all_from_peers=True, bandwidth=1 << 30),
    "staging-job-with-everything": stage({**EVERYTHING, "weights": {"verify": "Fast"}}, **PEERS),
    "seeder-pod": seeder_pod(OWNER, spec(PLAIN), POLICY, "k3-seed-1", "node-0"),
    "peers-config": peers_config(OWNER, "0123456789abcdef"),
    "gc-job": gc_job(OWNER, POLICY, CACHE, "k3-gc-1", "node-0", {"b" * 64, "a" * 64}),
    "scrub-job": scrub_job(OWNER, spec(PLAIN), POLICY, CACHE, "k3-scrub-1", "node-0"),
    "manifest": manifest_config_map(OWNER, "k3-manifest-1", MANIFEST),
    "revision-record": revision_record(OWNER, revision(PLAIN), 7),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_the_object_is_this_one(name: str) -> None:
    assert_golden(GOLDEN / f"{name}.yaml", OBJECTS[name])


@pytest.mark.parametrize("name", OBJECTS)
def test_the_api_server_takes_it_and_applying_it_twice_changes_nothing(name: str) -> None:
    api = MemoryApi(auto_collect=False)  # the owner is only a name here
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    api.create(gateway_api.CRD)
    api.create(gateway_api.POOL_CRD)
    first = api.apply(OBJECTS[name], manager="moe-operator")
    again = api.apply(OBJECTS[name], manager="moe-operator")
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]


@pytest.mark.parametrize("name", OBJECTS)
def test_every_child_is_owned_and_labelled(name: str) -> None:
    meta = OBJECTS[name]["metadata"]
    [owner] = meta["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("uid-of-k3", True, True)
    assert meta["labels"]["moe-operator.io/deployment"] == "k3"
    assert meta["namespace"] == "team"


PROGRAMS: dict[str, click.Group] = {"moestage": moestage, "moe-gateway-agent": moe_gateway_agent}


def own_commands(obj: Obj) -> list[tuple[str, list[str]]]:
    """Program and arguments of every container of an object that runs a program of ours."""
    body = obj.get("spec", {})
    pod = body if obj["kind"] == "Pod" else body.get("template", {}).get("spec", {})
    containers = [*pod.get("initContainers", ()), *pod.get("containers", ())]
    found = [(c["command"][0], c.get("args", [])) for c in containers if c.get("command")]
    return [(program, args) for program, args in found if program in PROGRAMS]


@pytest.mark.parametrize("name", [name for name, obj in OBJECTS.items() if own_commands(obj)])
def test_our_programs_understand_what_we_tell_them(name: str) -> None:
    for program, (command, *args) in own_commands(OBJECTS[name]):
        group = PROGRAMS[program]
        parent = click.Context(group)
        found = group.get_command(parent, command)
        assert found, command
        found.make_context(command, args, parent=parent)  # click.UsageError says what it does not know


def test_a_users_label_never_wins_over_ours() -> None:
    assert pod(EVERYTHING, 0)["metadata"]["labels"]["moe-operator.io/rank"] == "0"


def test_a_users_variable_wins_over_ours() -> None:
    env = pod(EVERYTHING, 0)["spec"]["containers"][0]["env"]
    assert [v["value"] for v in env if v["name"] == "HF_HUB_OFFLINE"] == ["0"]


def test_an_engine_outlives_its_drain_and_a_worker_that_cannot_drain_is_not_waited_for() -> None:
    def grace(engine: str, rank: int) -> int:
        content = {**EVERYTHING, "engine": {**EVERYTHING["engine"], "type": engine, "args": []}}
        return int(pod(content, rank)["spec"]["terminationGracePeriodSeconds"])

    drain = spec(EVERYTHING).rollout.drain_seconds
    assert grace("vLLM", 0) == grace("SGLang", 0) == grace("SGLang", 1) > drain
    assert 10 < grace("vLLM", 1) < drain


def test_startup_probes_give_the_engine_more_time_than_it_gives_itself() -> None:
    probe = pod(EVERYTHING, 0)["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > 600


def test_engines_and_seeders_can_only_read_the_nodes_store() -> None:
    for name in ("engine-pod-leader", "engine-pod-with-everything", "seeder-pod"):
        containers = OBJECTS[name]["spec"]["containers"]
        mounts = [m for c in containers for m in c.get("volumeMounts", ())]
        assert [m["readOnly"] for m in mounts if m["name"] == "store"] == [True], name


OF_STORES = ("staging-job", "seeder-pod", "gc-job", "scrub-job")
STORE_PODS = {name: obj for name, obj in OBJECTS.items() if name.startswith(OF_STORES)}


def test_every_pod_of_our_own_images_has_the_admins_pull_secrets() -> None:
    pull = Pull("k3-stage-1", "node-0", NodeFiles("v" * 8), "huggingface.co")
    wanted, policy = spec(PLAIN), POLICY_WITH_SECRETS
    made = [
        resolver_job(OWNER, "k3-resolve-1", wanted.model, CACHE, policy),
        staging_job(OWNER, wanted, policy, "k3-manifest", KEY_PLAIN, pull),
        gc_job(OWNER, policy, CACHE, "k3-gc-1", "node-0", set()),
        scrub_job(OWNER, wanted, policy, CACHE, "k3-scrub-1", "node-0"),
        seeder_pod(OWNER, wanted, policy, "k3-seed-1", "node-0"),
        engine_pod(
            OWNER, revision(PLAIN), RankSeat(0, 0, "node-0", 4, NodeFiles("v" * 8)), policy, "m", KEY_PLAIN
        ),
        *gateway_objects(OWNER, wanted, policy),
    ]
    pods = [o["spec"].get("template", o)["spec"] for o in made if o["kind"] in {"Job", "Pod", "Deployment"}]
    assert [pod["imagePullSecrets"] for pod in pods] == [[{"name": "mirror"}]] * 7


@pytest.mark.parametrize("name", STORE_PODS)
def test_pods_on_a_store_take_no_gpu_no_token_and_no_right(name: str) -> None:
    found = STORE_PODS[name]["spec"]
    pod = found["template"]["spec"] if "template" in found else found
    [container] = pod["containers"]
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod
    assert container["resources"]["limits"].keys() == {"memory"}
    context = container["securityContext"]
    assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"]
    assert context["capabilities"] == {"drop": ["ALL"]} and not context["allowPrivilegeEscalation"]
    host_paths = [v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v]
    assert host_paths == ["/mnt/nvme"]


@pytest.mark.parametrize("name", STORE_PODS)
def test_pods_on_a_store_go_to_their_node_and_no_other(name: str) -> None:
    found = STORE_PODS[name]["spec"]
    pod = found["template"]["spec"] if "template" in found else found
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    field = {"key": "metadata.name", "operator": "In", "values": ["node-0"]}
    assert terms == {"nodeSelectorTerms": [{"matchFields": [field]}]} and "nodeName" not in pod


# The manifest's ConfigMap


def large() -> Manifest:
    files = [
        ManifestFile(path=f"model-{i:05d}.safetensors", size=i, sha256=f"{i:064x}")
        for i in range(PLAIN_LIMIT // 100)
    ]
    return MANIFEST.model_copy(update={"files": files})


@pytest.mark.parametrize(("manifest", "key"), [(MANIFEST, KEY_PLAIN), (large(), KEY_COMPRESSED)])
def test_a_manifest_comes_back_as_it_was_kept(manifest: Manifest, key: str) -> None:
    kept = manifest_config_map(OWNER, "m", manifest)
    assert manifest_of(kept) == manifest and manifest_key(kept) == key
    assert manifest_config_map(OWNER, "m", manifest) == kept, "the same facts, the same bytes"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"data": {"other": "x"}},
        {"data": {KEY_PLAIN: "{"}},
        {"data": {KEY_PLAIN: "{}"}},
        {"binaryData": {KEY_COMPRESSED: "not base64!"}},
        {"binaryData": {KEY_COMPRESSED: base64.b64encode(b"not gzip").decode()}},
        {"binaryData": {KEY_COMPRESSED: base64.b64encode(gzip.compress(b"{")).decode()}},
        {"binaryData": {KEY_COMPRESSED: base64.b64encode(gzip.compress(b"{}")[:-4]).decode()}},
        {"binaryData": {KEY_COMPRESSED: base64.b64encode(gzip.compress(b"{}")[:12] + b"xxxxxxx").decode()}},
    ],
)
def test_something_else_in_its_place_is_a_value_error(body: Obj) -> None:
    with pytest.raises(ValueError, match=r"."):
        manifest_of({"metadata": {"name": "m"}, **body})


def test_a_revision_comes_back_from_its_record() -> None:
    for content in (PLAIN, EVERYTHING):
        kept = revision_record(OWNER, revision(content), 1)
        assert recorded([kept]) == {"abcd1234": revision(content)}
