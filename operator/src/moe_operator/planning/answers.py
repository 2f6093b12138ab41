"""What people ask after the verdict: how long, how many, how few nodes, how much disk, how soon."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moe_operator.planning.assess import Judges
from moe_operator.planning.plan import Plan, Request
from moe_operator.planning.planner import fewest_nodes


@dataclass(frozen=True, slots=True)
class Answers:
    """None = cannot be said without the GPU's memory or the model's facts."""

    longest_at_concurrency: int | None  # tokens of each of the asked requests
    concurrency_at_length: int | None  # requests of the asked or planned length, all DP ranks together
    fewest_nodes: int | None
    gpus: int
    gpus_while_replacing: int  # both revisions of a blue-green rollout
    disk_bytes_per_node: int | None  # weights of all retained revisions and of the next one
    load_seconds: float | None  # a node reads the whole checkpoint once
    stream_tokens_per_second: float | None  # ceiling from memory and link bandwidth, one lone stream


def answers(
    request: Request,
    plan: Plan,
    judges: Judges,
    replicas: int = 1,
    retained: int = 1,
    read_bytes_per_second: float = 2e9,
) -> Answers:
    """``retained`` revisions stay on disk for rollback, and a rollout brings one more."""
    chosen, checkpoint = plan.chosen, request.checkpoint
    gpus = plan.layout.gpus * replicas if plan.layout else 0
    size = checkpoint.weight_bytes if checkpoint else None
    return Answers(
        longest_at_concurrency=chosen.longest if chosen else None,
        concurrency_at_length=plan.concurrency,
        fewest_nodes=fewest_nodes(replace(request, nodes=None), judges) if request.gpu_memory_bytes else None,
        gpus=gpus,
        gpus_while_replacing=2 * gpus,
        disk_bytes_per_node=size * (retained + 1) if size else None,
        load_seconds=size / read_bytes_per_second if size else None,
        stream_tokens_per_second=chosen.speed.stream_tokens_per_second if chosen and chosen.speed else None,
    )
