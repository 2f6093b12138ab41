"""What starts one rank: the values every engine builds its command line from.

A *rank* is one pod, that is one node of a replica; rank 0 is the leader and the only one that clients
may reach. Seconds and tokens are plain integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moe_operator.api.spec import EngineSpec, MoESpec
from moe_operator.planning.assess import Judges
from moe_operator.planning.plan import Layout, Refusal


@dataclass(frozen=True, slots=True)
class Launch:
    """One group about to start. ``leader`` is the DNS name of rank 0.

    ``planned_model_len``: tokens that the plan found to fit, used where the spec is silent.
    """

    spec: MoESpec
    layout: Layout
    model_path: str
    served_name: str
    leader: str
    planned_model_len: int | None = None

    @property
    def max_model_len(self) -> int | None:
        """Longest request in tokens; None leaves it to the engine."""
        return self.engine.max_model_len or self.planned_model_len

    @property
    def engine(self) -> EngineSpec:
        """The engine section of the spec."""
        return self.spec.engine

    @property
    def startup_seconds(self) -> int:
        """How long a start may take: every engine time limit derives from it."""
        return self.spec.startup.timeout_seconds

    @property
    def drain_seconds(self) -> int:
        """How long running requests may go on after SIGTERM."""
        return self.spec.rollout.drain_seconds


@dataclass(frozen=True, slots=True)
class RankCommand:
    """argv and environment of one rank; ``env`` keeps its order, later entries may use earlier ones."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Engine:
    """One serving engine as the operator knows it."""

    name: str
    rank_command: Callable[[Launch, int], RankCommand]
    judges: Judges
    aliases: dict[str, str]  # short or older spelling of a flag → the one we generate
    reserved: frozenset[str]  # flags that are ours even when a given rank does not carry them
    worker_drains: bool  # SIGTERM leaves a worker up until its leader has drained


def args_conflict(engine: Engine, args: Sequence[str], generated: Sequence[str]) -> Refusal | None:
    """Refuse user args that contradict what the operator generates, naming both."""
    ours = {canonical_flag(engine, a): a for a in generated if a.startswith("-")}
    for arg in args:
        flag = canonical_flag(engine, arg)
        if arg.startswith("-") and (flag in ours or flag in engine.reserved):
            return Refusal(
                "ARG_CONTRADICTS_SPEC",
                f"engine.args has {arg.split('=')[0]!r}, which the operator sets itself as {flag}",
                "remove it from engine.args and use the field of the spec that it stands for",
            )
    return None


def canonical_flag(engine: Engine, arg: str) -> str:
    """``--tensor_parallel_size=8`` and ``-tp`` are both ``--tensor-parallel-size``."""
    flag = arg.split("=", 1)[0]
    flag = flag.replace("_", "-") if flag.startswith("--") else flag
    flag = engine.aliases.get(flag, flag)
    return flag.replace("--no-", "--", 1) if flag.startswith("--no-") else flag
