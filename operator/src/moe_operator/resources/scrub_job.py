"""The Job that reads one node's files again, at a pace that nobody notices.

It has the least of a node's CPU that can be asked for, and a day: what it did not get to is what the next one
begins with.
"""

from __future__ import annotations

from typing import Any

from moe_operator.api.names import (
    ANNOTATION_NODE,
    COMPONENT_SCRUBBER,
    PATH_STORE,
    PORT_STAGE_PROGRESS,
    common_labels,
)
from moe_operator.api.policy import CacheClass, OperatorPolicy
from moe_operator.api.spec import MoESpec
from moe_operator.resources.model_source import store_volume
from moe_operator.resources.ownership import Owner
from moe_operator.resources.stager import (
    PROGRESS_PORT_NAME,
    gpu_node_tolerations,
    node_pod,
    stage_container,
)

Obj = dict[str, Any]
RESOURCES: Obj = {"requests": {"cpu": "10m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
DEADLINE_SECONDS = 24 * 3600


def scrub_job(
    owner: Owner, spec: MoESpec, policy: OperatorPolicy, cache: CacheClass, name: str, node: str
) -> Obj:
    """Build the Job. What was proved within half the period is left alone, so one that was ended goes on."""
    rules = policy.staging.scrub
    args = [
        "--store", PATH_STORE,
        "--bandwidth", str(rules.bytes_per_second),
        "--older-than", str(rules.every_hours * 3600 // 2),
        "--listen", f"0.0.0.0:{PORT_STAGE_PROGRESS}",
    ]  # fmt: skip
    container = {
        **stage_container("scrub", "scrub", args, policy, []),
        "ports": [{"name": PROGRESS_PORT_NAME, "containerPort": PORT_STAGE_PROGRESS}],
        "resources": RESOURCES,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owner.metadata(name, COMPONENT_SCRUBBER, annotations={ANNOTATION_NODE: node}),
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "template": {
                "metadata": {"labels": common_labels(owner.name, COMPONENT_SCRUBBER)},
                "spec": node_pod(node, gpu_node_tolerations(spec), container, [store_volume(cache)], policy),
            },
        },
    }
