from __future__ import annotations

from typing import Any

import pytest
from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.policy import GpuProduct, OperatorPolicy, Preset
from moe_operator.api.spec import Domain
from moe_operator.api.status import Status
from moe_operator.reconcile.accept import NOT_YET, accept
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.snapshot import Snapshot

from tests.reconcile.snapshots import SPEC, snapshot

Obj = dict[str, Any]
ENGINE, MODEL, ACCELERATORS = SPEC["engine"], SPEC["model"], SPEC["accelerators"]


def accepted(seen: Snapshot, **status: Any) -> Draft:
    return accept(seen, Draft(status=Status(**status)))


def refusal(draft: Draft) -> tuple[Reason, str]:
    assert draft.wish is None
    plan, stalled = draft.condition(ConditionType.PLAN_ACCEPTED), draft.condition(ConditionType.STALLED)
    assert (plan.status, stalled.status) == ("False", "True")
    assert plan.message == stalled.message
    return plan.reason, plan.message


def test_a_good_spec_is_taken_with_the_gpus_of_its_product() -> None:
    draft = accepted(snapshot())
    assert draft.wish is not None and draft.wish.accelerators.gpus_per_node == 8
    assert not draft.conditions


@pytest.mark.parametrize(
    ("product", "policy", "gpus"),
    [
        ("NVIDIA-GB200", OperatorPolicy(), 4),
        ("NVIDIA-UNHEARD-OF", OperatorPolicy(), 8),
        (
            "NVIDIA-UNHEARD-OF",
            OperatorPolicy(gpu_products={"NVIDIA-UNHEARD-OF": GpuProduct(memory_mib=99_999, nvlink_gpus=2)}),
            2,
        ),
    ],
)
def test_omitted_gpus_per_node_are_what_the_product_has(
    product: str, policy: OperatorPolicy, gpus: int
) -> None:
    draft = accepted(snapshot({"accelerators": {"product": product}}, policy=policy))
    assert draft.wish is not None and draft.wish.accelerators.gpus_per_node == gpus


def test_a_preset_is_filled_in() -> None:
    rack = Preset(
        product="NVIDIA-GB200", gpus_per_node=4, domain=Domain(type="Label", key="nvidia.com/gpu.clique")
    )
    policy = OperatorPolicy(presets={"rack": rack})
    wish = accepted(snapshot({"accelerators": {"product": "rack", "nodes": 2}}, policy=policy)).wish
    assert wish is not None
    assert (wish.accelerators.product, wish.accelerators.gpus_per_node) == ("NVIDIA-GB200", 4)
    assert wish.placement.domain.key == "nvidia.com/gpu.clique"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replicas": -1}, "spec.replicas"),
        ({"engine": {"type": "TGI", "image": "x"}}, "spec.engine.type"),
        ({"engine": {"type": "vLLM"}}, "spec.engine.image"),
        ({"parallelism": {"tensor": 8, "decodeContext": 3}}, "spec.parallelism.decodeContext"),
        ({"model": "none"}, "spec.model"),
    ],
)
def test_an_object_written_past_admission_is_refused_by_field(spec: Obj, words: str) -> None:
    reason, said = refusal(accepted(snapshot(spec)))
    assert reason is Reason.INVALID_SPEC and words in said


STRICT = OperatorPolicy(
    allowed_image_prefixes=["vllm:", "tune:"],
    allowed_source_hosts=["models.example"],
    pod_extras_allowed=False,
)
NO_HOST = OperatorPolicy(host_access_allowed=False)


@pytest.mark.parametrize(
    ("policy", "spec", "words"),
    [
        (STRICT, {"engine": {**ENGINE, "image": "evil:1"}}, "spec.engine.image evil:1 (allowed: vllm:"),
        (STRICT, {"model": {"source": "https://other.example/m"}}, "spec.model.source: its host"),
        (STRICT, {"pod": {"volumes": [{"name": "v", "emptyDir": {}}]}}, "spec.pod.volumes"),
        (STRICT, {"pod": {"sidecars": [{"name": "s", "image": "evil:1"}]}}, "image evil:1 is not allowed"),
        (NO_HOST, {"engine": {**ENGINE, "env": [{"name": "LD_PRELOAD", "value": "x"}]}}, "env LD_PRELOAD"),
        (NO_HOST, {"engine": {**ENGINE, "env": [{"name": "PYTHONPATH", "value": "x"}]}}, "env PYTHONPATH"),
        (NO_HOST, {"weights": {"cacheClass": "other"}}, "cacheClass other is not defined (known: nvme)"),
        (NO_HOST, {"network": {"hostNetwork": True}}, "spec.network.hostNetwork"),
        (NO_HOST, {"pod": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}, "hostPath"),
        (NO_HOST, {"pod": {"securityContext": {"privileged": True}}}, "privileged"),
        (NO_HOST, {"pod": {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}}, "capabilities"),
        (
            NO_HOST,
            {"pod": {"sidecars": [{"name": "s", "image": "i", "securityContext": {"privileged": True}}]}},
            "privileged",
        ),
    ],
)
def test_what_the_admin_forbids_is_refused_by_field(policy: OperatorPolicy, spec: Obj, words: str) -> None:
    reason, said = refusal(accepted(snapshot(spec, policy=policy)))
    assert reason is Reason.DENIED_BY_POLICY and words in said


@pytest.mark.parametrize(
    "spec",
    [
        {"pod": {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}},
        {"pod": {"volumes": [{"name": "v", "emptyDir": {}}]}},
        {"model": {"source": "https://models.example/m"}},
    ],
)
def test_what_is_not_forbidden_is_allowed(spec: Obj) -> None:
    assert accepted(snapshot(spec, policy=NO_HOST)).wish is not None


IN_A_POOL = {"inferencePool": {"name": "pool", "endpointPicker": {"name": "picker"}}}


@pytest.mark.parametrize(
    ("gateway", "words"),
    [
        (
            {"external": IN_A_POOL, "allowedPaths": ["/v1/models"]},
            "spec.gateway.allowedPaths does not go with",
        ),
        (
            {"external": IN_A_POOL, "affinityHeader": "x-user"},
            "spec.gateway.affinityHeader is for the managed",
        ),
    ],
)
def test_what_nobody_would_do_in_front_of_a_pool_is_refused(gateway: Obj, words: str) -> None:
    assert accepted(snapshot({"gateway": {"external": IN_A_POOL}})).wish is not None
    reason, said = refusal(accepted(snapshot({"gateway": gateway})))
    assert reason is Reason.INVALID_SPEC and words in said


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"model": {**MODEL, "manifestRef": {"name": "m"}}}, "spec.model.manifestRef"),
        ({"health": {"probeSeconds": 6}}, "spec.health.probeSeconds"),
        ({"rollout": {"paused": True}}, "spec.rollout.paused"),
        ({"rollout": {"strategy": "RollingReplica"}}, "spec.rollout.strategy RollingReplica"),
        ({"network": {"preflight": False}}, "spec.network.preflight"),
        ({"placement": {"maxReplans": 1}}, "spec.placement.maxReplans"),
        ({"disruption": {"policy": "Block"}}, "spec.disruption.policy"),
        ({"schedule": [{"cron": "0 0 * * *", "replicas": 1}]}, "spec.schedule"),
    ],
)
def test_a_field_of_a_later_version_is_refused_and_never_ignored(spec: Obj, words: str) -> None:
    draft = accepted(snapshot(spec))
    reason, said = refusal(draft)
    assert reason is Reason.NOT_YET_SUPPORTED and words in said
    progressing = draft.condition(ConditionType.PROGRESSING)
    assert (progressing.status, progressing.reason) == ("False", Reason.NOT_YET_SUPPORTED)


def test_saying_the_default_of_such_a_field_is_no_request() -> None:
    spec = {"weights": {"verify": "Full", "retainRevisions": 1}, "rollout": {"steps": [1, 10, 50, 100]}}
    assert accepted(snapshot(spec)).wish is not None


def test_every_member_of_the_table_exists() -> None:
    for model, members in NOT_YET.items():
        assert set(members) <= set(model.model_fields)


def test_while_something_serves_a_refused_edit_says_that_it_goes_on() -> None:
    draft = accepted(snapshot({"replicas": -1}), active_revision="abcd1234")
    stalled = draft.condition(ConditionType.STALLED)
    assert stalled.reason is Reason.EDIT_REFUSED
    assert "revision abcd1234 keeps serving" in stalled.message


def test_in_a_namespace_that_is_being_deleted_nothing_new_is_accepted() -> None:
    reason, said = refusal(accepted(snapshot(namespace_terminating=True)))
    assert reason is Reason.NAMESPACE_TERMINATING and "namespace team is being deleted" in said


def test_a_long_list_of_faults_is_cut() -> None:
    env = [{"name": f"LD_{i}", "value": "x"} for i in range(20)]
    _, said = refusal(accepted(snapshot({"engine": {**ENGINE, "env": env}})))
    assert "LD_7" in said and "LD_8" not in said and "and 12 more" in said
