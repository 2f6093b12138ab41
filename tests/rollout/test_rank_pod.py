from __future__ import annotations

import json
from typing import Any

import pytest
from moe_operator.api.conditions import Reason
from moe_operator.api.manifest import StageExit, TerminationMessage
from moe_operator.rollout.rank_pod import (
    REJECTED,
    STAGE_REASONS,
    RankPod,
    Trouble,
    ended_trouble,
    pod_trouble,
    rank_pod,
    waits_silently,
)

Obj = dict[str, Any]
RUNNING: Obj = {"running": {}}


def container(name: str, state: Obj) -> Obj:
    return {"name": name, "state": state}


def ended(code: int, message: str = "", reason: str = "Error") -> Obj:
    return {"terminated": {"exitCode": code, "message": message, "reason": reason}}


def waiting(reason: str, message: str = "") -> Obj:
    return {"waiting": {"reason": reason, "message": message}}


def pod(engine: Obj | None = None, stage: Obj | None = None, phase: str = "Pending", **status: Any) -> Obj:
    said: Obj = {"phase": phase, **status}
    if stage is not None:
        said["initContainerStatuses"] = [container("stage", stage)]
    if engine is not None:
        said["containerStatuses"] = [container("engine", engine)]
    labels = {"revision": "abc", "replica": "2", "rank": "1"}
    return {
        "metadata": {
            "name": "m-abc-2-1",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {f"moe-operator.io/{k}": v for k, v in labels.items()},
            "annotations": {"moe-operator.io/incarnation": "3"},
        },
        "spec": {"nodeName": "n1"},
        "status": said,
    }


def ready(true: str = "True") -> list[Obj]:
    return [{"type": "Ready", "status": true}]


def test_a_ready_pod_is_read() -> None:
    seen = rank_pod(pod(RUNNING, ended(0), "Running", podIP="10.0.0.1", conditions=ready()))
    assert seen == RankPod(
        name="m-abc-2-1",
        uid="u",
        resource_version="7",
        revision="abc",
        replica=2,
        rank=1,
        incarnation=3,
        node="n1",
        ip="10.0.0.1",
        staged=True,
        running=True,
        ready=True,
        terminating=False,
        grace_seconds=0,
        ended=False,
        over=False,
        rejected=False,
        trouble=None,
    )


def deleting(obj: Obj) -> Obj:
    obj["metadata"] |= {"deletionTimestamp": "2026-11-30T00:00:00Z", "deletionGracePeriodSeconds": 30}
    return obj


@pytest.mark.parametrize(
    ("obj", "facts"),
    [
        (pod(), {"staged": True, "running": False, "ready": False, "ended": False}),
        (pod(waiting("PodInitializing"), RUNNING), {"staged": False, "running": False}),
        (pod(RUNNING, ended(0), "Running"), {"staged": True, "running": True, "ready": False}),
        (
            pod(ended(0), ended(0), "Succeeded", conditions=ready()),
            {"ended": True, "over": True, "ready": False},
        ),
        (pod(ended(137), ended(0), "Failed"), {"ended": True, "running": False, "rejected": False}),
        # a sidecar still runs, so the pod does too; the engine's end is the rank's end
        (
            pod(ended(0), ended(0), "Running", conditions=ready()),
            {"ended": True, "over": False, "ready": False},
        ),
        (
            deleting(pod(RUNNING, ended(0), "Running", conditions=ready())),
            {"terminating": True, "ready": False, "ended": False, "grace_seconds": 30},
        ),
        (pod(phase="Failed", reason="OutOfnvidia.com/gpu"), {"ended": True, "rejected": True}),
        (pod(phase="Failed", reason="Evicted"), {"ended": True, "rejected": True}),
        (pod(ended(1), phase="Failed", reason=""), {"ended": True, "rejected": False}),
    ],
)
def test_what_a_pod_has_reached(obj: Obj, facts: Obj) -> None:
    seen = rank_pod(obj)
    assert {name: getattr(seen, name) for name in facts} == facts


@pytest.mark.parametrize(
    ("obj", "reason", "words"),
    [
        (
            pod(waiting("ErrImagePull", "not found")),
            Reason.IMAGE_PULL_FAILED,
            "engine: ErrImagePull: not found",
        ),
        (pod(waiting("ImagePullBackOff")), Reason.IMAGE_PULL_FAILED, "container engine: ImagePullBackOff"),
        (pod(waiting("InvalidImageName")), Reason.IMAGE_PULL_FAILED, "InvalidImageName"),
        (pod(waiting("ErrImageNeverPull")), Reason.IMAGE_PULL_FAILED, "ErrImageNeverPull"),
        (
            pod(waiting("CreateContainerConfigError", 'secret "hf" not found')),
            Reason.CONTAINER_CONFIG_ERROR,
            'secret "hf" not found',
        ),
        (pod(waiting("CreateContainerError", "no runtime")), Reason.CONTAINER_CONFIG_ERROR, "no runtime"),
        (
            pod(waiting("PodInitializing"), waiting("ErrImagePull", "x")),
            Reason.IMAGE_PULL_FAILED,
            "container stage: ErrImagePull: x",
        ),
        (
            pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "0/4 nodes"}]),
            Reason.POD_UNSCHEDULABLE,
            "0/4 nodes",
        ),
        (
            pod(conditions=[{"type": "PodScheduled", "status": "False"}]),
            Reason.POD_UNSCHEDULABLE,
            "gave no reason",
        ),
        (pod(ended(0), phase="Succeeded"), Reason.ENGINE_FAILED, "container engine ended with exit code 0"),
        (
            pod(ended(1, "INFO up\nValueError: bad thing\nbye"), phase="Failed"),
            Reason.ENGINE_FAILED,
            "exit code 1 (Error): ValueError: bad thing",
        ),
        (pod(ended(137, reason="OOMKilled"), phase="Failed"), Reason.ENGINE_FAILED, "137 (OOMKilled)"),
        (
            pod(ended(128, 'exec: "vllm": not found', "StartError"), phase="Failed"),
            Reason.ENGINE_FAILED,
            "128 (StartError)",
        ),
        (
            pod(phase="Failed", reason="UnexpectedAdmissionError", message="no GPUs"),
            Reason.POD_REJECTED,
            "UnexpectedAdmissionError: no GPUs",
        ),
        (pod(phase="Failed", reason="OutOfcpu"), Reason.POD_REJECTED, "OutOfcpu: no message"),
        (pod(phase="Failed", reason="DeadlineExceeded"), Reason.ENGINE_FAILED, "DeadlineExceeded"),
    ],
)
def test_what_keeps_a_pod_from_running_is_said_in_its_own_words(obj: Obj, reason: Reason, words: str) -> None:
    trouble = pod_trouble(obj)
    assert trouble is not None and trouble.reason is reason
    assert words in trouble.message and not trouble.permanent


@pytest.mark.parametrize(
    "obj",
    [
        pod(),
        pod(waiting("PodInitializing"), RUNNING),
        pod(waiting("ContainerCreating")),
        pod(RUNNING, ended(0), "Running"),
        pod(conditions=[{"type": "PodScheduled", "status": "True"}]),
    ],
)
def test_a_pod_that_gets_on_has_no_trouble(obj: Obj) -> None:
    assert pod_trouble(obj) is None
    assert pod_trouble(obj, "FailedMount: x") == Trouble(Reason.CONTAINER_CONFIG_ERROR, "FailedMount: x")


def test_a_containers_own_words_go_before_the_events() -> None:
    trouble = pod_trouble(pod(waiting("ErrImagePull", "x")), "FailedMount: y")
    assert trouble is not None and "ErrImagePull" in trouble.message


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (pod(), True),
        (pod(waiting("ContainerCreating")), True),
        (pod(waiting("PodInitializing"), waiting("PodInitializing")), True),
        (pod(waiting("PodInitializing"), RUNNING), False),
        (pod(waiting("ErrImagePull")), False),
        (pod(RUNNING, ended(0), "Running"), False),
        (pod(phase="Failed", reason="Evicted"), False),
        ({**pod(), "spec": {}}, False),
    ],
)
def test_only_a_bound_pod_in_which_nothing_has_begun_waits_silently(obj: Obj, expected: bool) -> None:
    assert waits_silently(obj) is expected


@pytest.mark.parametrize("reason", sorted(REJECTED))
def test_every_way_in_which_a_node_refuses_a_pod_is_known(reason: str) -> None:
    assert rank_pod(pod(phase="Failed", reason=reason)).rejected


# What a stager leaves behind


@pytest.mark.parametrize("code", [c for c in StageExit if c is not StageExit.OK])
def test_a_stagers_exit_is_read_from_its_termination_message(code: StageExit) -> None:
    left = TerminationMessage(
        code=code, reason=code.name, message="what happened", hint="What to do.", file="f"
    )
    text = left.model_dump_json(by_alias=True)
    trouble = ended_trouble("stage", ended(code, text)["terminated"])
    assert trouble.message == f"{code.name}: what happened What to do."
    of_the_node = code in {StageExit.INSUFFICIENT_DISK, StageExit.STORE_UNUSABLE}
    assert trouble.permanent is (code.permanent and not of_the_node), "an admin mends a node's disk"
    assert trouble.reason is STAGE_REASONS.get(int(code), Reason.STAGING_FAILED)


def test_only_passing_troubles_have_no_reason_of_their_own() -> None:
    unnamed = {c for c in StageExit if c is not StageExit.OK and int(c) not in STAGE_REASONS}
    assert unnamed == {StageExit.LOCK_TIMEOUT, StageExit.BUG}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"code": 30}', "Killed", json.dumps({"reason": "X"}), "null"]
)
def test_anything_else_in_a_termination_log_is_quoted_not_trusted(text: str) -> None:
    trouble = ended_trouble("stage", ended(30, text)["terminated"])
    assert trouble.reason is Reason.STAGING_FAILED and not trouble.permanent
    assert "container stage ended with exit code 30" in trouble.message


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a\nRuntimeError: NCCL\n  at x\nEngineCore failed", "RuntimeError: NCCL"),
        ("(EngineCore pid=9) ERROR 11-30 ValueError: no room", "ValueError: no room"),
        ("vllm: error: unrecognized arguments: --x", "vllm: error: unrecognized arguments: --x"),
        ("starting\nlast words", "last words"),
        ("\n \n", ""),
    ],
)
def test_the_first_error_is_picked_from_a_tail(text: str, first: str) -> None:
    trouble = ended_trouble("engine", ended(1, text)["terminated"])
    assert trouble.message == f"container engine ended with exit code 1 (Error){': ' if first else ''}{first}"


def test_a_tail_without_end_is_cut() -> None:
    assert len(ended_trouble("engine", ended(1, "ValueError: " + "x" * 9000)["terminated"]).message) < 600
