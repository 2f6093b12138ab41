"""Builders of planner questions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moe_operator.engines.known import ENGINES
from moe_operator.hardware.catalogue import CATALOGUE
from moe_operator.planning.plan import Pinned, Plan, Request
from moe_operator.planning.planner import plan

from tests.planning.known_models import checkpoint

MIB = 1 << 20
GIB = 1 << 30


def request(
    name: str = "deepseek-ai/DeepSeek-V3",
    product: str = "NVIDIA-H20",
    nodes: int | None = 2,
    pinned: Pinned | None = None,
    engine: str = "vLLM",
    **changes: Any,
) -> Request:
    """A question about a model of tests/data/planner/models.json on whole nodes of ``product``."""
    gpu = CATALOGUE[product]
    base = Request(
        engine=engine,
        checkpoint=checkpoint(name),
        pinned=pinned or Pinned(),
        nodes=nodes,
        gpus_per_node=gpu.nvlink_gpus,
        domain_gpus=gpu.nvlink_gpus,
        gpu_memory_bytes=gpu.memory_mib * MIB,
        memory_utilization=0.92,
        gpu=gpu,
    )
    return replace(base, **changes)


def planned(asked: Request) -> Plan:
    return plan(asked, ENGINES[asked.engine].judges)


def codes(answer: Plan) -> list[str]:
    return [r.code for r in answer.refusals]
