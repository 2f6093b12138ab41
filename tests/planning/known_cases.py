"""Public runs as planner questions: tests/data/planner/{cases,inputs}.json → Request.

cases.json holds what was published; inputs.json what a case leaves open, with the reason why that value and
no other, and which cases cannot be judged from facts at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from moe_operator.hardware.catalogue import CATALOGUE, Gpu
from moe_operator.planning.plan import Layout, Pinned, Request

from tests.planning.known_models import DATA, checkpoint, models

Json = dict[str, Any]
MIB = 1 << 20
SGLANG_LIKE = ("sglang", "trtllm")  # TensorRT-LLM counts ranks as SGLang does
DEFAULT_UTILIZATION = {"vLLM": 0.92, "SGLang": 0.90}


@cache
def _read(name: str) -> Json:
    return dict(json.loads((DATA / "planner" / f"{name}.json").read_text()))


@dataclass(frozen=True)
class Case:
    """One published run. ``unjudged``: why facts cannot decide it; "" = they can."""

    raw: Json
    more: Json

    @property
    def id(self) -> str:
        return str(self.raw["id"])

    @property
    def model(self) -> str:
        return str(self.more.get("model") or self.raw["model"])

    @property
    def unjudged(self) -> str:
        return str(self.more.get("unjudged", ""))

    @property
    def works(self) -> bool:
        return bool(self.raw["status"] == "works")

    @property
    def kind(self) -> str:
        return str(self.raw["kind"])

    @property
    def numbers(self) -> Json:
        return dict(self.raw["numbers"] or {})

    def given(self, name: str, default: Any = None) -> Any:
        found = self.more.get(name)
        found = self.raw.get(name) if found is None else found
        return default if found is None else found


def filled_in() -> dict[str, Json]:
    """What was added to a published case, by its id."""
    return dict(_read("inputs")["cases"])


def cases() -> list[Case]:
    inputs = filled_in()
    return [Case(raw, inputs.get(raw["id"], {})) for raw in _read("cases")["cases"]]


def roles() -> list[Json]:
    return list(_read("cases")["roles"])


def explained() -> dict[str, str]:
    """Why the planner and a published number differ, by the number's key."""
    return dict(_read("inputs")["explained"])


def gpu_of(name: str) -> Gpu:
    if name in CATALOGUE:
        return CATALOGUE[name]
    known = _read("inputs")["gpus"][name]
    return CATALOGUE[known] if isinstance(known, str) else Gpu(name, known)


def engine_of(name: str) -> str:
    return "SGLang" if name.startswith(SGLANG_LIKE) else "vLLM"


def question(case: Case) -> Request:
    """What the run would have asked the planner before it was started."""
    engine, gpu = engine_of(case.raw["engine"]), gpu_of(case.given("gpu"))
    nodes, gpus = case.given("nodes", 1), case.given("gpus", 8)
    tensor = case.given("tensor", case.raw["tp"])
    data = case.given("data", case.raw["dp"])
    if engine == "SGLang" and tensor and data:
        tensor //= data
    ep = case.raw["ep"]
    node = gpus // nodes
    spans = case.given("forced_tensor", (tensor or 0) > node)
    args = case.raw.get("args") or {}
    return Request(
        engine=engine,
        checkpoint=checkpoint(case.model),
        pinned=Pinned(
            tensor,
            case.raw["pp"] or (1 if tensor or data else None),
            data,
            case.given("expert", ep > 1 if ep else None),
            args.get("dcp") or (1 if tensor or data else None),
        ),
        nodes=nodes,
        gpus_per_node=node,
        domain_gpus=None if spans else node * min(nodes, gpu.nvlink_nodes),
        gpu_memory_bytes=gpu.memory_mib * MIB,
        memory_utilization=case.given("gpu_memory_utilization", DEFAULT_UTILIZATION[engine]),
        max_model_len=case.given("max_model_len"),
        engine_version=tuple(case.given("engine_version", (0, 0))),
        gpu=gpu,
        max_num_seqs=args.get("max_num_seqs"),
        max_num_batched_tokens=args.get("max_num_batched_tokens"),
        kv_cache_dtype=case.more.get("kv_cache_dtype") or _cache_type(case.raw.get("kv_cache_dtype")),
        prefix_caching=case.given("prefix_caching", True),
        draft_tokens=case.given("draft_tokens", 0),
        all_to_all=case.given("all_to_all", ""),
    )


def _cache_type(published: str | None) -> str:
    if not published:
        return "Auto"
    return "FP8" if published.startswith("fp8") else "BF16"


def role_question(role: Json) -> tuple[Request, Layout] | None:
    """A benchmarked role without its layout, and the layout; None when its model is not known here."""
    name = _read("inputs")["role_models"].get(role["model"], role["model"])
    if name not in models():
        return None
    engine, gpu = engine_of(role["engine"]), gpu_of(role["gpu"])
    layout = _role_layout(role, engine)
    request = Request(
        engine=engine,
        checkpoint=checkpoint(name),
        pinned=Pinned(),
        nodes=layout.nodes,
        gpus_per_node=layout.gpus_per_node,
        domain_gpus=layout.gpus_per_node * min(layout.nodes, gpu.nvlink_nodes),
        gpu_memory_bytes=gpu.memory_mib * MIB,
        memory_utilization=role.get("util") or DEFAULT_UTILIZATION[engine],
        max_model_len=role.get("max_model_len"),
        gpu=gpu,
        max_num_batched_tokens=role.get("max_num_batched_tokens"),
        kv_cache_dtype=_cache_type(role.get("kv_dtype")),
        eager=bool(role.get("enforce_eager")),
    )
    return request, layout


def _role_layout(role: Json, engine: str) -> Layout:
    tensor, pipeline = role["tp"], role.get("pp") or 1
    data = role.get("dp") or (tensor if role.get("dp_attention") else 1)
    if engine == "SGLang":
        tensor, expert = tensor // data, (role.get("ep") or 1) > 1
    else:
        expert = bool(role.get("enable_ep"))
    gpus = role.get("gpus_per_worker") or tensor * pipeline * data
    node = min(gpus, role["gpus_per_node"])
    return Layout(tensor, pipeline, data, expert, gpus // node, node, role.get("dcp") or 1)
