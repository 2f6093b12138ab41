from datetime import UTC, datetime
from typing import Any

from e2e.cluster.nodes import name_service_check, readiness, renewed_since

MOMENT = datetime(2026, 11, 30, 4, 0, tzinfo=UTC)


def node(name: str, ready: str | None) -> dict[str, Any]:
    conditions = [{"type": "MemoryPressure", "status": "True"}]
    if ready:
        conditions.append({"type": "Ready", "status": ready})
    return {"metadata": {"name": name}, "status": {"conditions": conditions}}


def lease(name: str, renewed: str | None) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"renewTime": renewed} if renewed else {}}


def test_a_node_is_ready_only_when_its_condition_says_true() -> None:
    nodes = [node("a", "True"), node("b", "False"), node("c", "Unknown"), node("d", None)]
    assert readiness(nodes) == {"a": True, "b": False, "c": False, "d": False}
    assert readiness(None) is None


def test_only_kubelets_that_spoke_after_the_moment_count() -> None:
    leases = [
        lease("before", "2026-11-30T03:59:59.999999Z"),
        lease("at", "2026-11-30T04:00:00.000000Z"),
        lease("after", "2026-11-30T04:00:10.123456Z"),
        lease("never", None),
    ]
    assert renewed_since(leases, MOMENT) == {"at", "after"}


def test_every_coredns_pod_and_their_service_must_answer() -> None:
    pods: list[dict[str, Any]] = [{"status": {"podIP": "10.244.0.2"}}, {"status": {}}]
    commands = name_service_check(pods, {"spec": {"clusterIP": "10.96.0.10"}}).split(" && ")
    assert [command.split()[-1] for command in commands] == [
        "http://10.244.0.2:8181/ready",
        "http://none:8181/ready",  # a pod without an address yet: the check fails and is made again
        "http://10.96.0.10:9153/metrics",
    ]
