"""The planner's answer: a layout with its numbers, or refusals that say what to change.

Names are the field's: a *layout* is TP×PP×DP over ``nodes × gpus_per_node`` GPUs. With ``expert`` on,
vLLM spreads the routed experts over EP = TP·DP ranks of one pipeline stage (vllm/config/parallel.py).
Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from moe_operator.checkpoint.model_facts import Checkpoint


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something cannot work: a stable code, the numbers, and what would work."""

    code: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class Shortage(Refusal):
    """GPUs are missing: ``gpus`` more would do for one replica."""

    gpus: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How the ranks of one replica are split; one pod per node."""

    tensor: int
    pipeline: int
    data: int
    expert: bool
    nodes: int
    gpus_per_node: int
    decode_context: int = 1

    @property
    def world(self) -> int:
        """GPUs that the split asks for: TP·PP·DP."""
        return self.tensor * self.pipeline * self.data

    @property
    def gpus(self) -> int:
        """GPUs that the nodes hold."""
        return self.nodes * self.gpus_per_node

    @property
    def expert_ranks(self) -> int:
        """Ranks over which routed experts are spread: TP·DP, or 1 without expert parallelism."""
        return self.tensor * self.data if self.expert else 1

    @property
    def model_parallel(self) -> int:
        """GPUs of one data-parallel rank: TP·PP."""
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        parts = [f"TP{self.tensor}"]
        parts += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"DP{self.data}"] if self.data > 1 else []
        parts += [f"EP{self.expert_ranks}"] if self.expert else []
        return f"{'·'.join(parts)} on {self.nodes}×{self.gpus_per_node}"


@dataclass(frozen=True, slots=True)
class Pinned:
    """The parts of a layout that the user pinned; None = the planner's choice."""

    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    expert: bool | None = None
    decode_context: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be planned. ``checkpoint`` None = the model's facts are unknown (source ``none``)."""

    engine: str
    checkpoint: Checkpoint | None
    pinned: Pinned
    nodes: int | None  # per replica; None = the fewest that fit
    gpus_per_node: int
    domain_gpus: int | None  # GPUs that one NVLink domain gives a replica; None = may be left behind
    gpu_memory_bytes: int | None  # None = the product's memory is unknown
    memory_utilization: float
    max_model_len: int | None = None
    balanced_experts: bool = False
    redundant_experts: int = 0


Rule = Callable[[Layout, Checkpoint, Request], Refusal | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a rank's memory."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``refusals`` empty = the layout stands."""

    layout: Layout | None
    rows: tuple[Row, ...] = ()
    max_model_len: int | None = None
    assumptions: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = field(default_factory=tuple)

    @property
    def verdict(self) -> str:
        """Fits or Refused."""
        return "Refused" if self.refusals or self.layout is None else "Fits"
