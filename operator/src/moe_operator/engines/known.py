"""The engines that the operator can drive, by the name in ``spec.engine.type``."""

from __future__ import annotations

from collections.abc import Mapping

from moe_operator.api.spec import MoESpec
from moe_operator.engines.launch import Engine, Launch, args_conflict
from moe_operator.engines.sglang import SGLANG
from moe_operator.engines.vllm import VLLM
from moe_operator.planning.plan import Layout, Refusal

ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (VLLM, SGLANG)}


def args_refusal(spec: MoESpec, layout: Layout) -> Refusal | None:
    """Refuse ``spec.engine.args`` that contradict what ``layout`` and the spec generate."""
    engine = ENGINES[spec.engine.type]
    without = spec.model_copy(update={"engine": spec.engine.model_copy(update={"args": []})})
    generated = engine.rank_command(Launch(without, layout, "", "", ""), 0).args
    return args_conflict(engine, spec.engine.args, generated)
