"""How a pipeline cuts the layers (vllm/distributed/utils.py: get_pp_indices).

Every stage gets layers // stages. What remains goes to stages from the second-last backwards, so the last
stage, which has the output head, never gets one; 93 layers over 4 stages are 23, 23, 24, 23.
"""

from __future__ import annotations


def partition(layers: int, stages: int) -> tuple[range, ...]:
    """The layers of every stage. Needs ``1 ≤ stages ≤ layers``."""
    sizes = [layers // stages] * stages
    for extra in range(layers % stages):
        sizes[-(extra + 2)] += 1
    starts = [sum(sizes[:i]) for i in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))
