from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe_operator.hardware.nodes import GpuNode, Taint
from moe_operator.placement.assign import Assignment, Need, assign
from moe_operator.planning.plan import Refusal

CLIQUE = "nvidia.com/gpu.clique"
LEAF = "fabric/leaf"
NEED = Need(nodes=2, gpus_per_node=8, products=("H20",))
RACK = Need(nodes=2, gpus_per_node=8, products=("H20",), domain_key=CLIQUE)


def node(name: str, labels: Mapping[str, str] | None = None, **facts: Any) -> GpuNode:
    return GpuNode(
        name,
        f"uid-{name}",
        **{"product": "H20", "allocatable": 8, "capacity": 8, **facts},
        labels=labels or {},
    )


def row(count: int, labels: Mapping[str, str] | None = None, first: int = 0) -> list[GpuNode]:
    return [node(f"n{i}", labels) for i in range(first, first + count)]


def names(answer: Assignment | Refusal) -> list[str]:
    assert isinstance(answer, Assignment), answer
    return [n.name for n in answer.nodes]


def refusal(answer: Assignment | Refusal) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer


def test_a_replica_gets_whole_nodes_by_name() -> None:
    assert names(assign(NEED, row(4), {})) == ["n0", "n1"]


def test_the_order_in_which_nodes_are_listed_does_not_matter() -> None:
    assert names(assign(NEED, row(4)[::-1], {})) == ["n0", "n1"]


@pytest.mark.parametrize(
    ("used", "expected"), [({"n0": 1}, ["n1", "n2"]), ({"n0": 8, "n2": 8}, ["n1", "n3"])]
)
def test_a_node_with_too_few_free_gpus_is_left_out(used: dict[str, int], expected: list[str]) -> None:
    assert names(assign(NEED, row(4), used)) == expected


def test_half_a_node_fits_beside_what_takes_the_other_half() -> None:
    half = Need(nodes=1, gpus_per_node=4, products=("H20",))
    assert names(assign(half, row(1), {"n0": 4})) == ["n0"]
    assert refusal(assign(half, row(1), {"n0": 5})).code == "InsufficientGPUs"


def test_nodes_that_hold_the_weights_come_first() -> None:
    assert names(assign(NEED, row(4), {}, {"n3", "n1"})) == ["n1", "n3"]


def test_only_nodes_of_the_product_count() -> None:
    nodes = [node("a", product="H100"), *row(2)]
    assert names(assign(NEED, nodes, {})) == ["n0", "n1"]


def test_a_node_selector_holds() -> None:
    need = Need(2, 8, ("H20",), node_selector={"pool": "x"})
    nodes = [*row(2), *row(2, {"pool": "x"}, first=2)]
    assert names(assign(need, nodes, {})) == ["n2", "n3"]


def test_a_tolerated_taint_is_no_obstacle() -> None:
    nodes = [node(f"n{i}", taints=(Taint("gpu", "", "NoSchedule"),)) for i in range(2)]
    assert refusal(assign(NEED, nodes, {})).code == "NoUsableNodes"
    need = Need(2, 8, ("H20",), tolerations=({"key": "gpu", "operator": "Exists"},))
    assert names(assign(need, nodes, {})) == ["n0", "n1"]


# Domains by label


TWO_CLIQUES = [*row(3, {CLIQUE: "a"}), *row(3, {CLIQUE: "b"}, first=3)]


def test_a_replica_never_spans_two_cliques() -> None:
    used = {"n0": 8, "n1": 8, "n3": 8, "n4": 8}
    said = refusal(assign(RACK, TWO_CLIQUES, used))
    assert said.code == "InsufficientGPUs"
    assert "a has 1 of 3 free; b has 1 of 3 free" in said.message
    assert "1 node(s) (8 GPUs) missing" in said.message


def test_the_clique_that_leaves_the_least_behind_is_taken() -> None:
    answer = assign(RACK, TWO_CLIQUES, {"n3": 8})
    assert names(answer) == ["n4", "n5"] and answer.domain == "b"  # type: ignore[union-attr]


def test_among_equal_cliques_the_name_decides() -> None:
    assert assign(RACK, TWO_CLIQUES, {}).domain == "a"  # type: ignore[union-attr]


def test_the_clique_that_holds_the_weights_wins_over_a_tighter_fit() -> None:
    assert names(assign(RACK, TWO_CLIQUES, {"n0": 8}, {"n4"}))[0] == "n4"


def test_preferred_spills_over_cliques_when_none_is_large_enough() -> None:
    need = Need(4, 8, ("H20",), domain_key=CLIQUE, required=False)
    assert names(assign(need, TWO_CLIQUES, {})) == ["n0", "n1", "n2", "n3"]
    assert assign(need, TWO_CLIQUES, {}).domain == ""  # type: ignore[union-attr]


def test_preferred_counts_what_is_missing_over_all_cliques() -> None:
    need = Need(6, 8, ("H20",), domain_key=CLIQUE, required=False)
    assert "1 node(s) (8 GPUs) missing" in refusal(assign(need, TWO_CLIQUES, {"n0": 8})).message


def test_preferred_stays_inside_a_clique_that_is_large_enough() -> None:
    need = Need(2, 8, ("H20",), domain_key=CLIQUE, required=False)
    assert names(assign(need, TWO_CLIQUES, {"n0": 8, "n1": 8})) == ["n3", "n4"]


def test_a_node_without_the_label_is_in_no_domain() -> None:
    said = refusal(assign(RACK, row(2), {}))
    assert said.code == "NoUsableNodes" and f"has no label {CLIQUE}" in said.message


# Fabric: closeness is a wish


def test_nodes_of_one_leaf_stay_together_where_a_leaf_is_large_enough() -> None:
    need = Need(2, 8, ("H20",), fabric_key=LEAF)
    nodes = [*row(2, {LEAF: "l0"}), *row(2, {LEAF: "l1"}, first=2)]
    assert names(assign(need, nodes, {"n1": 8})) == ["n2", "n3"]


def test_a_replica_larger_than_a_leaf_takes_nodes_of_several() -> None:
    need = Need(3, 8, ("H20",), fabric_key=LEAF)
    nodes = [*row(2, {LEAF: "l0"}), *row(2, {LEAF: "l1"}, first=2)]
    assert names(assign(need, nodes, {})) == ["n0", "n1", "n2"]


# Why not


def test_an_unknown_product_is_answered_with_those_that_exist() -> None:
    said = refusal(assign(NEED, [node("a", product="H100"), node("b", product="H200")], {}))
    assert said.code == "UnknownProduct"
    assert "no node has H20; the cluster has H100, H200" in said.message
    assert "accelerators.product" in said.fix


def test_a_cluster_without_gpu_nodes_says_so() -> None:
    assert "no labelled GPU nodes" in refusal(assign(NEED, [], {})).message


def test_every_unusable_node_is_named_with_its_reason() -> None:
    said = refusal(assign(NEED, [node("a", cordoned=True), node("b", ready=False)], {}))
    assert said.code == "NoUsableNodes"
    assert "a is cordoned; b is NotReady" in said.message


def test_unusable_nodes_are_counted_beside_those_that_are_short() -> None:
    said = refusal(assign(NEED, [node("a"), node("b", cordoned=True)], {}))
    assert "has 1 of 1 free" in said.message and "1 node(s) cannot be used" in said.message
    assert "1 node(s) (8 GPUs) missing" in said.message


def test_long_lists_are_cut() -> None:
    nodes = [node(f"n{i}", {CLIQUE: f"c{i}"}) for i in range(9)]
    assert "and 4 more" in refusal(assign(RACK, nodes, {})).message


# Whatever the cluster


clusters = st.lists(
    st.builds(
        lambda clique, free, ready: (clique, free, ready),
        st.sampled_from(["a", "b", ""]),
        st.integers(0, 8),
        st.booleans(),
    ),
    max_size=12,
)


@given(clusters, st.integers(1, 4), st.integers(1, 8), st.booleans(), st.booleans(), st.randoms())
def test_an_answer_is_always_whole_free_distinct_and_the_same_again(
    cluster: list[tuple[str, int, bool]], count: int, gpus: int, by_label: bool, required: bool, rng: Any
) -> None:
    nodes = [
        node(f"n{i:02d}", {CLIQUE: clique} if clique else {}, ready=ready)
        for i, (clique, _, ready) in enumerate(cluster)
    ]
    used = {n.name: 8 - free for n, (_, free, _) in zip(nodes, cluster, strict=True)}
    need = Need(count, gpus, ("H20",), domain_key=CLIQUE if by_label else "", required=required)
    answer = assign(need, nodes, used)
    shuffled = rng.sample(nodes, len(nodes))
    assert assign(need, shuffled, used) == answer
    fits = [n for n in nodes if n.ready and 8 - used[n.name] >= gpus and (not by_label or n.labels)]
    if isinstance(answer, Refusal):
        largest = max((sum(n.labels == m.labels or not by_label for m in fits) for n in fits), default=0)
        assert largest < count and answer.message and answer.fix
        return
    assert len(answer.nodes) == count == len({n.name for n in answer.nodes})
    assert all(n in fits for n in answer.nodes)
    if by_label and required:
        assert len({n.labels[CLIQUE] for n in answer.nodes}) == 1
