"""How the ranks of a group split a model, and which of them live on this node.

A *rank* here is one GPU; a *node* is one process of the group (the stub starts no children). Ranks are
numbered as the engine numbers them, and every node holds an equal, consecutive run of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """One GPU's place in the group."""

    number: int
    tensor: int
    pipeline: int
    data: int
    expert: int


@dataclass(frozen=True, slots=True)
class Parallel:
    """Sizes of each kind of parallelism. ``tensor`` is the number of ranks that split attention."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts_whole: bool = False  # expert parallelism: each rank holds whole experts
    nodes: int = 1
    node: int = 0
    pipeline_outermost: bool = False  # SGLang numbers stages first, vLLM data-parallel ranks

    @property
    def world(self) -> int:
        """GPUs of the whole group."""
        return self.tensor * self.pipeline * self.data

    @property
    def expert_ranks(self) -> int:
        """Over how many ranks of one stage routed experts are spread or split."""
        return self.tensor * self.data

    @property
    def local_ranks(self) -> tuple[Rank, ...]:
        """The ranks of this node."""
        per_node = self.world // self.nodes
        return tuple(self.rank(self.node * per_node + i) for i in range(per_node))

    def rank(self, number: int) -> Rank:
        """Place of rank ``number``."""
        tensor, rest = number % self.tensor, number // self.tensor
        if self.pipeline_outermost:
            data, pipeline = rest % self.data, rest // self.data
        else:
            pipeline, data = rest % self.pipeline, rest // self.pipeline
        return Rank(number, tensor, pipeline, data, data * self.tensor + tensor)
