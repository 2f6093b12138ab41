from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe_operator.planning.stages import partition


@pytest.mark.parametrize(
    ("layers", "sizes"),
    [
        (93, [93]),
        (93, [47, 46]),
        (93, [23, 23, 24, 23]),
        (61, [31, 30]),
        (61, [20, 21, 20]),
        (4, [1, 1, 1, 1]),
    ],
)
def test_layers_are_cut_as_vllm_does(layers: int, sizes: list[int]) -> None:
    assert [len(stage) for stage in partition(layers, len(sizes))] == sizes


@given(st.integers(1, 200), st.integers(1, 32))
def test_stages_follow_each_other_and_are_almost_equal(layers: int, stages: int) -> None:
    stages = min(stages, layers)
    found = partition(layers, stages)
    assert [layer for stage in found for layer in stage] == list(range(layers))
    assert max(map(len, found)) - min(map(len, found)) <= 1
