"""An accepted spec → the planner's question.

What the spec leaves open stays open. Flags in ``engine.args`` that change memory or kernels are read too,
for they are honoured by the engine whether or not a field stands for them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.spec import MoESpec
from moe_operator.checkpoint.model import Checkpoint
from moe_operator.hardware.catalogue import CATALOGUE, Gpu
from moe_operator.planning.assumed import MIB
from moe_operator.planning.plan import Pinned, Request

EAGER_FLAGS = frozenset({"--enforce-eager", "--disable-cuda-graph", "--cuda-graph-backend-decode=disabled"})
MOE_BACKEND_FLAGS = ("--moe-backend", "--moe-runner-backend")
ALL_TO_ALL_FLAGS = ("--all2all-backend", "--moe-a2a-backend")
_VERSION = re.compile(r":v?(\d+)\.(\d+)(?:\.\d+)*(?:[-.@].*)?$")


def request_for(spec: MoESpec, checkpoint: Checkpoint | None, policy: OperatorPolicy) -> Request:
    """The question that ``spec`` (presets filled in) asks; ``checkpoint`` None = no facts are to be had."""
    want, engine, pinned = spec.accelerators, spec.engine, spec.parallelism
    gpus = want.gpus_per_node or 1
    gpu = gpu_of(want.product, policy)
    tensor, data = (pinned.tensor, pinned.data) if pinned else (None, None)
    if engine.type == "SGLang" and tensor and data:
        tensor //= data  # SGLang's tp counts the whole world of a stage, attention DP lies inside it
    return Request(
        engine=engine.type,
        checkpoint=checkpoint,
        pinned=Pinned(
            tensor=tensor,
            pipeline=pinned.pipeline if pinned else None,
            data=data,
            expert=pinned.expert if pinned else None,
            decode_context=pinned.decode_context if pinned else None,
        ),
        nodes=want.nodes,
        gpus_per_node=gpus,
        domain_gpus=_domain_gpus(spec, gpus),
        gpu_memory_bytes=gpu.memory_mib * MIB if gpu else None,
        memory_utilization=float(engine.memory_utilization),
        max_model_len=engine.max_model_len,
        balanced_experts=engine.expert_balancing.enabled,
        redundant_experts=engine.expert_balancing.redundant_experts,
        engine_version=version_of(engine.image),
        gpu=gpu,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        kv_cache_dtype=engine.kv_cache_dtype,
        prefix_caching=engine.prefix_caching,
        draft_tokens=engine.speculative.tokens if engine.speculative else 0,
        eager=not EAGER_FLAGS.isdisjoint(engine.args),
        moe_backend=_value(engine.args, MOE_BACKEND_FLAGS),
        all_to_all=_value(engine.args, ALL_TO_ALL_FLAGS),
    )


def gpu_of(product: str, policy: OperatorPolicy) -> Gpu | None:
    """The product as the admin or the catalogue describes it."""
    added = policy.gpu_products.get(product)
    if added:
        return Gpu(product, added.memory_mib, added.nvlink_gpus)
    return CATALOGUE.get(product)


def version_of(image: str) -> tuple[int, int]:
    """Major and minor version in an image's tag; (0, 0) when the tag says none."""
    found = _VERSION.search(image)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _domain_gpus(spec: MoESpec, gpus_per_node: int) -> int | None:
    if spec.placement.policy == "Preferred":
        return None
    spans = spec.placement.domain.type == "Label"
    return gpus_per_node * (spec.accelerators.nodes or 1) if spans else gpus_per_node


def _value(args: Sequence[str], flags: Sequence[str]) -> str:
    """Value of the first of ``flags`` in ``args``, as ``--flag value`` or ``--flag=value``."""
    for index, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in flags:
            return value if equals else next(iter(args[index + 1 : index + 2]), "")
    return ""
