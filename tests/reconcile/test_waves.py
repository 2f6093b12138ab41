"""Whose turn it is at a source, from nothing but the Jobs and statuses that exist."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe_operator.api.policy import OperatorPolicy, SourceLimit, Staging
from moe_operator.api.spec import MoESpec
from moe_operator.reconcile.snapshot import Fleet
from moe_operator.reconcile.waves import bandwidth_of, free_places, limit_of
from moe_operator.resources.model_source import source_host

Obj = dict[str, Any]
HOST = "models.example"


def job(owner: str, *, over: bool = False, host: str = HOST, peers: bool = False) -> Obj:
    annotations = {
        "moe-operator.io/source-host": host,
        **({"moe-operator.io/from-peers": "true"} if peers else {}),
    }
    conditions = [{"type": "Complete", "status": "True"}] if over else []
    references = [{"kind": "MoEDeployment", "name": owner, "controller": True}]
    meta = {"namespace": "team", "name": "j", "annotations": annotations, "ownerReferences": references}
    return {"metadata": meta, "status": {"conditions": conditions}}


def deployment(name: str, *, waits: bool, host: str = HOST) -> Obj:
    rows = [{"node": "n", "phase": "Waiting" if waits else "Pulling"}]
    status = {"model": {"source": f"https://{host}/m"}, "staging": rows}
    return {"metadata": {"namespace": "team", "name": name}, "status": status}


def places(me: str, limit: int, jobs: list[Obj], waiting: str = "") -> int:
    fleet = Fleet(jobs=tuple(jobs), deployments=tuple(deployment(n, waits=True) for n in waiting))
    return free_places(f"team/{me}", HOST, limit, fleet)


def test_what_is_under_way_counts_whoever_owns_it() -> None:
    assert places("a", 3, [job("a"), job("b")]) == 1
    assert places("a", 2, [job("a"), job("b")]) == 0
    assert places("a", 1, [job("a"), job("b")]) == 0, "a smaller limit than what runs already"


def test_finished_pulls_other_hosts_and_pulls_from_peers_take_no_place() -> None:
    assert places("a", 2, [job("a", over=True), job("b", host="other"), job("b", peers=True)]) == 2


def test_while_others_wait_places_go_one_by_one_to_who_has_least() -> None:
    assert places("a", 4, [], "b") == 1 and places("b", 4, [], "a") == 0, "by name when all else is equal"
    assert places("a", 4, [job("a")], "b") == 0 and places("b", 4, [job("a")], "a") == 1
    assert places("a", 1, [job("a", over=True)], "b") == 0, "who had a turn lets the others have theirs"
    assert places("b", 1, [job("a", over=True)], "a") == 1


def test_a_nodes_own_disk_is_nobody_elses_business() -> None:
    assert free_places("team/a", "", 1, Fleet(jobs=(job("b", host=""),))) > 1000


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 4), st.sets(st.sampled_from("abc")))
def test_some_waiting_deployment_can_always_go_on_and_the_limit_always_holds(
    owners: list[str], limit: int, waiting: set[str]
) -> None:
    jobs = [job(owner) for owner in owners]
    given_out = {me: places(me, limit, jobs, "".join(waiting)) for me in waiting}
    free = limit - len(jobs)
    assert all(len(jobs) + n <= max(limit, len(jobs)) for n in given_out.values())
    if waiting and free > 0:
        assert sum(n > 0 for n in given_out.values()) == 1, "exactly one is next"


def spec(**weights: Any) -> MoESpec:
    return MoESpec.model_validate(
        {
            "model": {"source": f"https://{HOST}/m"},
            "engine": {"type": "vLLM", "image": "vllm:1"},
            "accelerators": {"product": "NVIDIA-H20"},
            "weights": weights,
        }
    )


def admin(**limit: int) -> OperatorPolicy:
    return OperatorPolicy(staging=Staging(source_limits={HOST: SourceLimit(**limit)}))


@pytest.mark.parametrize(
    ("weights", "policy", "limit", "bandwidth"),
    [
        ({}, OperatorPolicy(), 2, 0),
        ({"maxConcurrentNodes": 9, "bandwidthPerNode": "1Gi"}, OperatorPolicy(), 9, 1 << 30),
        ({"maxConcurrentNodes": 9}, admin(max_concurrent_nodes=3, bytes_per_second=900), 3, 300),
        ({"maxConcurrentNodes": 2}, admin(max_concurrent_nodes=3, bytes_per_second=900), 2, 450),
        ({"bandwidthPerNode": "100"}, admin(bytes_per_second=900), 2, 100),
        ({}, admin(bytes_per_second=1), 2, 1),
    ],
)
def test_the_smaller_limit_holds_and_a_total_is_split(
    weights: Obj, policy: OperatorPolicy, limit: int, bandwidth: int
) -> None:
    found = spec(**weights)
    assert (limit_of(found, HOST, policy), bandwidth_of(found, HOST, policy)) == (limit, bandwidth)


@pytest.mark.parametrize(
    ("source", "host"),
    [
        ("https://Models.example:8443/a/b", "models.example:8443"),
        ("hf://org/model@main", "huggingface.co"),
        ("s3://bucket/prefix", "s3://bucket"),
        ("oci://registry.example/repo:tag", "registry.example"),
        ("az://account/container/x", "az://account"),
        ("pvc://claim/dir", "pvc://team/claim"),
        ("node://models/k3", ""),
        ("none", ""),
    ],
)
def test_a_source_is_known_by_whom_it_loads(source: str, host: str) -> None:
    assert source_host(source, "team") == host
