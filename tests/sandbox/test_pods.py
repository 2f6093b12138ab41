"""Pods as processes, end to end on a whole cluster."""

from __future__ import annotations

from moe_operator.sandbox.cluster import Cluster

from tests.sandbox.objects import container, pod
from tests.sandbox.waiting import container_status, phase, pod_when, ready, state


async def test_init_containers_run_in_order_before_the_container_starts(cluster: Cluster) -> None:
    shared = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    inits = [
        container("first", script="echo first >> /work/order", **shared),
        container("second", script="echo second >> /work/order", **shared),
    ]
    main = container("main", script="echo main >> /work/order; cat /work/order", **shared)
    await cluster.kube.create(
        pod("ordered", main, initContainers=inits, volumes=[{"name": "work", "emptyDir": {}}])
    )
    done = await pod_when(cluster, "ordered", phase("Succeeded"))
    assert cluster.logs("ordered", "main") == "first\nsecond\nmain\n"
    assert [state(done, name, "terminated")["reason"] for name in ("first", "second", "main")] == [
        "Completed"
    ] * 3
    assert done["spec"]["nodeName"].startswith("h20-")
    assert {c["type"]: c["status"] for c in done["status"]["conditions"]} == {
        "PodScheduled": "True",
        "PodReadyToStartContainers": "False",
        "Initialized": "True",
        "ContainersReady": "False",
        "Ready": "False",
    }


async def test_a_failing_init_container_fails_a_pod_that_never_restarts(cluster: Cluster) -> None:
    stage = container("stage", script="echo '{\"code\": 12}' > /dev/termination-log; exit 12")
    await cluster.kube.create(pod("bad", container("main", script="echo never"), initContainers=[stage]))
    failed = await pod_when(cluster, "bad", phase("Failed"))
    ended = state(failed, "stage", "terminated")
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (12, "Error", '{"code": 12}\n')
    assert state(failed, "main", "waiting")["reason"] == "PodInitializing"
    assert cluster.logs("bad", "main") == ""
    assert container_status(failed, "main")["restartCount"] == 0
    assert not ready(failed)
