"""The engines that the operator can drive, by the name in ``spec.engine.type``."""

from __future__ import annotations

from collections.abc import Mapping

from moe_operator.engines.launch import Engine
from moe_operator.engines.sglang import SGLANG
from moe_operator.engines.vllm import VLLM

ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (VLLM, SGLANG)}
