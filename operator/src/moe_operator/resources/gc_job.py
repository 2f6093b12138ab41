"""The Job that frees what one node's store needs no more.

It is told what to keep, of every MoEDeployment that has files there; whatever else is in the store goes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from moe_operator.api.names import (
    ANNOTATION_KEPT,
    ANNOTATION_NODE,
    COMPONENT_COLLECTOR,
    PATH_STORE,
    common_labels,
)
from moe_operator.api.policy import CacheClass, OperatorPolicy
from moe_operator.resources.model_source import store_volume
from moe_operator.resources.ownership import Owner
from moe_operator.resources.stager import RESOURCES, node_pod, room_args, stage_container

Obj = dict[str, Any]
ANY_TAINT: Obj = {"operator": "Exists"}  # the deployment's own tolerations may have changed since
DEADLINE_SECONDS = 3600


def gc_job(
    owner: Owner, policy: OperatorPolicy, cache: CacheClass, name: str, node: str, keep: Collection[str]
) -> Obj:
    """Build the Job; ``keep`` = digests of the views that stay."""
    kept = sorted(keep)
    args = [
        "--store", PATH_STORE,
        *(part for view in kept for part in ("--keep", view)),
        "--grace", "0",
        *room_args(cache),
    ]  # fmt: skip
    container = {**stage_container("gc", "gc", args, policy, []), "resources": RESOURCES}
    annotations = {ANNOTATION_NODE: node, ANNOTATION_KEPT: ",".join(kept)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owner.metadata(name, COMPONENT_COLLECTOR, annotations=annotations),
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "template": {
                "metadata": {"labels": common_labels(owner.name, COMPONENT_COLLECTOR)},
                "spec": node_pod(node, [ANY_TAINT], container, [store_volume(cache)], policy),
            },
        },
    }
