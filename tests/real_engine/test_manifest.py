"""The object that the real engine is started from: valid, honest, and without a way around the product."""

from __future__ import annotations

from typing import Any

from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.spec import MoEDeployment
from moe_operator.engines.launch import Launch, args_conflict, canonical_flag
from moe_operator.engines.vllm import VLLM
from moe_operator.planning.plan import Layout

from e2e.real_engine import manifest
from e2e.real_engine.engine_image import INSTALLATION

LAYOUT = Layout(tensor=2, pipeline=1, data=1, expert=False, nodes=2, gpus_per_node=1)


def wish() -> MoEDeployment:
    return MoEDeployment.parse(manifest.deployment("moe-real-engine:1", "vllm-1", "model-1"))


def argv(rank: int) -> tuple[str, ...]:
    deployment = wish()
    launch = Launch(deployment.spec, LAYOUT, "/weights/views/1", deployment.name, "leader.example.svc")
    return VLLM.rank_command(launch, rank).args


def test_its_arguments_contradict_nothing_that_the_operator_generates() -> None:
    own = wish().spec.engine.args
    for rank in range(manifest.NODES):
        assert args_conflict(VLLM, own, argv(rank)[: -len(own)]) is None


def test_no_flag_is_given_twice() -> None:
    for rank in range(manifest.NODES):
        flags = [canonical_flag(VLLM, arg) for arg in argv(rank) if arg.startswith("-")]
        assert sorted(flags) == sorted(set(flags))


def test_one_tensor_parallel_rank_of_two_nodes_is_started() -> None:
    for rank in range(manifest.NODES):
        args = argv(rank)
        assert args[args.index("--tensor-parallel-size") + 1] == "2"
        assert args[args.index("--node-rank") + 1] == str(rank)
    assert "--headless" in argv(manifest.WORKER)
    assert "--headless" not in argv(manifest.LEADER)


def test_the_default_policy_admits_its_variables_and_volumes() -> None:
    spec, policy = wish().spec, OperatorPolicy()
    assert all(policy.env_allowed(variable.name) for variable in spec.engine.env)
    assert policy.pod_extras_allowed
    assert not any("hostPath" in (volume.model_extra or {}) for volume in spec.pod.volumes)


def test_engine_and_model_come_from_the_one_claim() -> None:
    spec = wish().spec
    volume, claimed = manifest.claim("/moe-shared/real-engine")
    assert spec.model.source == f"pvc://{claimed['metadata']['name']}/model-1"
    assert [v.model_extra for v in spec.pod.volumes] == [
        {"persistentVolumeClaim": {"claimName": claimed["metadata"]["name"], "readOnly": True}}
    ]
    assert [(m.mount_path, extra(m)["subPath"], extra(m)["readOnly"]) for m in spec.pod.volume_mounts] == [
        (INSTALLATION, "vllm-1", True)
    ]
    assert volume["spec"]["hostPath"]["path"] == "/moe-shared/real-engine"
    assert claimed["spec"]["volumeName"] == volume["metadata"]["name"]


def extra(model: Any) -> dict[str, Any]:
    return dict(model.model_extra or {})
