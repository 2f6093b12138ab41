"""The planner's question and answer.

Names are the field's: a *layout* is TP×PP×DP over ``nodes × gpus_per_node`` GPUs. With ``expert`` on,
vLLM spreads the routed experts over EP = TP·DP ranks of one pipeline stage (vllm/config/parallel.py).
Sizes are bytes, times seconds, bandwidths bytes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from moe_operator.checkpoint.model import Checkpoint
from moe_operator.hardware.catalogue import Gpu
from moe_operator.planning.assumed import DEFAULTS, Assumed

Verdict = Literal["Fits", "Tight", "Refused"]


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
    def expert_slices(self) -> int:
        """Ranks that share one expert's matrices: TP·DP without expert parallelism, else 1."""
        return 1 if self.expert else self.tensor * self.data

    @property
    def model_parallel(self) -> int:
        """GPUs of one data-parallel rank: TP·PP."""
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        return f"{self.short} on {self.nodes}×{self.gpus_per_node}"

    @property
    def short(self) -> str:
        """The split without the nodes, such as ``TP8·DP4·EP32``."""
        parts = [f"TP{self.tensor}"]
        parts += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"DP{self.data}"] if self.data > 1 else []
        parts += [f"EP{self.expert_ranks}"] if self.expert else []
        parts += [f"DCP{self.decode_context}"] if self.decode_context > 1 else []
        return "·".join(parts)


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
    max_model_len: int | None = None  # None = what fits, at most the model's own
    balanced_experts: bool = False
    redundant_experts: int = 0
    engine_version: tuple[int, int] = (0, 0)  # (0, 0) = the version that the rules are written for
    gpu: Gpu | None = None
    concurrency: int = 1  # requests of max_model_len that must fit at the same time, all DP ranks together
    max_num_seqs: int | None = None  # per data-parallel rank
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str = "Auto"  # Auto | BF16 | FP8
    prefix_caching: bool = True
    draft_tokens: int = 0
    eager: bool = False  # no CUDA graphs
    moe_backend: str = ""  # as the user forces it; "" = the engine's choice
    all_to_all: str = ""
    assumed: Assumed = DEFAULTS


Rule = Callable[[Layout, Checkpoint, Request], Refusal | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a rank's memory."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Memory of one rank of one pipeline stage; every rank of a stage needs the same or less."""

    number: int
    layers: int
    rows: tuple[Row, ...]  # all but KV cache and slack
    weight_bytes: int  # as held by the rank, kernel padding included
    file_bytes: int  # the part of it that comes from the checkpoint's files
    pool_bytes: int  # what is left for KV cache and state; negative = does not fit


@dataclass(frozen=True, slots=True)
class Speed:
    """Estimates that rank layouts. All are bounds from bandwidths, none is a promise."""

    communication_seconds: float  # of one decode step, over links and network
    step_seconds: float  # reading the weights of one full decode step, all stages
    stream_tokens_per_second: float  # ceiling for one lone stream
    inner_pipeline: bool  # a pipeline that lies inside one NVLink domain


@dataclass(frozen=True, slots=True)
class Assessment:
    """One layout with its numbers."""

    layout: Layout
    verdict: Verdict
    stages: tuple[Stage, ...] = ()
    worst: int = 0  # index of the stage that limits the KV cache
    kv_token_bytes: float = 0.0  # per rank of the worst stage, at full length
    state_bytes: int = 0  # per request and rank of the worst stage
    kv_request_bytes: int = 0  # KV cache and state of one request of max_model_len
    max_model_len: int | None = None  # as asked, else what fits; None = not known
    longest: int | None = None  # most tokens that the asked number of requests can have at once
    max_concurrency: int | None = None  # requests of max_model_len, all DP ranks together
    slack_bytes: int | None = None
    speed: Speed | None = None
    refusals: tuple[Refusal, ...] = ()
    cautions: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """``refusals`` empty = the layout stands. ``alternatives`` are ranked and start with the chosen one."""

    layout: Layout | None
    verdict: Verdict
    rows: tuple[Row, ...] = ()
    max_model_len: int | None = None
    concurrency: int | None = None
    assumptions: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    cautions: tuple[Refusal, ...] = ()
    chosen: Assessment | None = None
    alternatives: tuple[Assessment, ...] = field(default_factory=tuple)
    why: str = ""
    considered: int = 0  # layouts that were looked at
