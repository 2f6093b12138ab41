"""Snapshots to decide on, without a cluster."""

from __future__ import annotations

from typing import Any

from moe_operator.api.names import FINALIZER
from moe_operator.api.policy import OperatorPolicy
from moe_operator.reconcile.snapshot import Snapshot

Obj = dict[str, Any]
NOW = 1_796_000_000.0
SPEC: Obj = {
    "model": {"source": "none"},
    "engine": {"type": "vLLM", "image": "vllm:1"},
    "accelerators": {"product": "NVIDIA-H20", "nodes": 1},
}


def deployment(spec: Obj | None = None, status: Obj | None = None, **meta: Any) -> Obj:
    return {
        "apiVersion": "moe-operator.io/v1alpha1",
        "kind": "MoEDeployment",
        "metadata": {
            "name": "k3",
            "namespace": "team",
            "uid": "u",
            "generation": 1,
            "finalizers": [FINALIZER],
            **meta,
        },
        "spec": {**SPEC, **(spec or {})},
        **({"status": status} if status is not None else {}),
    }


def snapshot(spec: Obj | None = None, status: Obj | None = None, **facts: Any) -> Snapshot:
    meta = facts.pop("meta", {})
    return Snapshot(
        now=NOW,
        object=deployment(spec, status, **meta),
        **{"policy": OperatorPolicy(), **facts},
    )
