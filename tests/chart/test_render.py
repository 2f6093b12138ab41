"""What the chart installs, over a matrix of values and every supported Kubernetes."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import moe_operator
import pytest
from moe_operator.api import names
from moe_operator.api.crd import custom_resource_definition
from moe_operator.api.policy import OperatorPolicy

from e2e.chart import generate, render
from tests.chart.values import DIGEST, MATRIX

Obj = dict[str, Any]
KUBERNETES = ("1.33", "1.34", "1.35", "1.36", "1.37")
# Kinds of other projects have no schema in Kubernetes.
FOREIGN = {"ServiceMonitor"}
RENDERED = {name: render.objects(values) for name, values in MATRIX.items()}


def find(objects: list[Obj], kind: str, suffix: str = "") -> Obj:
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, [(o["kind"], o["metadata"]["name"]) for o in objects]
    return found[0]


def operator_pod(objects: list[Obj]) -> Obj:
    return dict(find(objects, "Deployment")["spec"]["template"]["spec"])


def operator_container(objects: list[Obj]) -> Obj:
    (container,) = operator_pod(objects)["containers"]
    return dict(container)


def policy_of(objects: list[Obj]) -> OperatorPolicy:
    return OperatorPolicy.from_yaml(find(objects, "ConfigMap")["data"]["policy.yaml"])


def test_what_is_committed_is_what_is_generated() -> None:
    assert generate.drift() == ""


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_helm_lint_has_no_complaint(values: Obj) -> None:
    assert render.lint(values) == []


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_in_kubernetes(version: str) -> None:
    distinct = {json.dumps(o, sort_keys=True) for objects in RENDERED.values() for o in objects}
    kinds = set()
    for obj in map(json.loads, distinct):
        if obj["kind"] not in FOREIGN:
            assert kubernetes_validate.validate(obj, version, strict=True).startswith(version)
            kinds.add(obj["kind"])
    assert {"Deployment", "DaemonSet", "CustomResourceDefinition", "NetworkPolicy", "Role"} <= kinds


def test_the_schemas_do_refuse_a_misspelt_field() -> None:
    broken = find(RENDERED["defaults"], "Deployment")
    broken = {**broken, "spec": {**broken["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(broken, KUBERNETES[0], strict=True)


@pytest.mark.parametrize("objects", RENDERED.values(), ids=RENDERED)
def test_no_two_objects_share_a_name(objects: list[Obj]) -> None:
    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("objects", RENDERED.values(), ids=RENDERED)
def test_the_operators_pod_is_restricted_and_writes_nothing(objects: list[Obj]) -> None:
    pod = operator_pod(objects)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all(set(volume) & {"configMap"} for volume in pod["volumes"])
    assert operator_container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_the_crd_is_the_operators_and_stays_when_the_chart_goes() -> None:
    crd = find(RENDERED["defaults"], "CustomResourceDefinition")
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert crd["spec"] == custom_resource_definition()["spec"]


def test_the_crd_can_be_left_out_and_can_be_let_go() -> None:
    assert "CustomResourceDefinition" not in {o["kind"] for o in RENDERED["smallest"]}
    let_go = find(RENDERED["cluster with everything"], "CustomResourceDefinition")
    assert "annotations" not in let_go["metadata"]


def test_the_policy_is_what_the_operator_reads_without_one() -> None:
    """The chart's defaults are the operator's, but for its images and its own pods, which it knows better."""
    policy, plain = policy_of(RENDERED["defaults"]), OperatorPolicy()
    chart_knows = {"images": plain.images, "network_policies": plain.network_policies}
    assert policy.model_copy(update=chart_knows) == plain

    version = render.chart_yaml()["appVersion"]
    assert (
        policy.images.operator
        == f"moe-operator:{version}"
        == operator_container(RENDERED["defaults"])["image"]
    )
    assert policy.images.envoy == f"moe-operator-envoy:{version}"


def test_deployments_let_in_exactly_this_operator() -> None:
    for objects in RENDERED.values():
        rules = policy_of(objects).network_policies
        pod = next(o for o in objects if o["kind"] == "Deployment")
        labels = pod["spec"]["template"]["metadata"]["labels"]
        assert rules.operator_namespace == pod["metadata"]["namespace"]
        assert rules.operator_labels and rules.operator_labels.items() <= labels.items()


def test_the_chart_and_the_operator_have_one_version() -> None:
    about = render.chart_yaml()
    assert about["version"] == about["appVersion"] == moe_operator.__version__


def test_the_admins_values_reach_the_operator() -> None:
    policy = policy_of(RENDERED["cluster with everything"])
    assert policy.cache_classes["raid"].root == "/mnt/raid/moe"
    assert policy.cache_classes["raid"].reserve_bytes == 107_374_182_400
    assert policy.cache_classes["nvme"].root == "/var/lib/moe-operator/store"
    assert policy.presets["rack"].domain.key == "nvidia.com/gpu.clique"
    assert policy.gpu_products["NVIDIA-B300"].memory_mib == 294_912
    assert policy.images.operator == f"registry.example:5000/ai/moe:1.2@{DIGEST}"


def test_a_cache_class_of_the_defaults_can_be_taken_away() -> None:
    values = {"policy": {"cacheClasses": {"nvme": None, "raid": {"root": "/mnt/raid"}}}}
    assert set(policy_of(render.objects(values)).cache_classes) == {"raid"}


def test_a_change_of_policy_restarts_the_operator_and_nothing_else_does() -> None:
    def checksum(values: Obj) -> Obj:
        deployment = find(render.objects(values), "Deployment")
        return dict(deployment["spec"]["template"]["metadata"]["annotations"])

    assert checksum({}) != checksum({"policy": {"hostAccessAllowed": True}})
    assert checksum({}) == checksum({"metrics": {"service": {"port": 9090}}})


def test_the_operator_is_started_as_the_values_say() -> None:
    assert operator_container(RENDERED["two namespaces"])["args"] == [
        "run",
        "--config=/etc/moe-operator/policy.yaml",
        "--listen=0.0.0.0:8080",
        f"--lease-namespace={render.NAMESPACE}",
        "--workers=4",
        "--log-level=info",
        "--namespace=team-a",
        "--namespace=team-b",
    ]


@pytest.mark.parametrize("objects", RENDERED.values(), ids=RENDERED)
def test_the_command_line_is_one_that_the_operator_accepts(objects: list[Obj]) -> None:
    from moe_operator.cli.operator import run

    args = operator_container(objects)["args"]
    assert args[0] == "run"
    run.make_context("run", args[1:]).close()


def test_probes_ask_what_the_health_server_answers() -> None:
    container = operator_container(RENDERED["defaults"])
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]


def test_the_network_policy_opens_the_ports_that_the_operator_probes() -> None:
    policy = find(RENDERED["cluster with everything"], "NetworkPolicy")["spec"]
    api, own = policy["egress"]
    assert [p["port"] for p in api["ports"]] == [443, 6443]
    assert {p["port"] for p in own["ports"]} == {
        names.PORT_ENGINE_HTTP,
        names.PORT_STAGE_PROGRESS,
        names.PORT_GATEWAY_AGENT,
    }
    assert policy["ingress"] == [{"ports": [{"port": "http"}], "from": [{"namespaceSelector": {}}]}]


def test_a_service_monitor_finds_the_metrics_service() -> None:
    objects = RENDERED["cluster with everything"]
    service, monitor = find(objects, "Service"), find(objects, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    with pytest.raises(render.ValuesRefused, match=r"needs metrics\.service\.enabled"):
        render.objects({"metrics": {"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}})


def test_one_replica_has_no_disruption_budget() -> None:
    assert "PodDisruptionBudget" in {o["kind"] for o in RENDERED["defaults"]}
    assert "PodDisruptionBudget" not in {o["kind"] for o in RENDERED["smallest"]}


def test_nothing_is_written_to_nodes_unless_asked() -> None:
    assert not any("hostPath" in json.dumps(o) for o in RENDERED["defaults"] if o["kind"] != names.KIND)
    assert "DaemonSet" not in {o["kind"] for o in RENDERED["defaults"]}


def test_the_node_store_is_root_for_one_step_per_class_and_mounts_the_admins_roots_only() -> None:
    daemon_set = find(RENDERED["cluster with everything"], "DaemonSet")
    assert daemon_set["metadata"]["namespace"] == "moe-nodes"
    pod = daemon_set["spec"]["template"]["spec"]
    assert {v["hostPath"]["path"] for v in pod["volumes"]} == {"/mnt/raid/moe", "/var/lib/moe-operator/store"}
    root = [c for c in pod["initContainers"] if c["securityContext"].get("runAsUser") == 0]
    assert [c["command"][:2] for c in root] == [["chown", "65532:65532"]] * 2
    assert all(c["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]} for c in root)
    others = [c for c in [*pod["initContainers"], *pod["containers"]] if c not in root]
    assert all(c["securityContext"]["runAsNonRoot"] for c in others)
    assert pod["automountServiceAccountToken"] is False


def test_long_release_names_still_give_valid_names() -> None:
    for obj in render.objects({"nodeStore": {"enabled": True}}, release="r" * 53):
        if obj["kind"] != "CustomResourceDefinition":
            assert len(obj["metadata"]["name"]) <= names.DNS_LABEL_MAX
        assert all(len(v) <= names.DNS_LABEL_MAX for v in obj["metadata"]["labels"].values())


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_the_notes_say_where_weights_go(values: Obj) -> None:
    notes = render.templates(values)[render.NOTES]
    assert "/var/lib/moe-operator/store" in notes
    assert ("node-store prepares them" in notes) == bool(values.get("nodeStore"))
