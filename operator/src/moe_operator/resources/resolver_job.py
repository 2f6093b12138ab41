"""The Job that reads a model's facts with the tenant's credentials and serves them until collected."""

from __future__ import annotations

from typing import Any

from moe_operator.api.names import (
    COMPONENT_RESOLVER,
    PATH_TERMINATION_LOG,
    PORT_STAGE_PROGRESS,
    common_labels,
)
from moe_operator.api.policy import CacheClass, OperatorPolicy
from moe_operator.api.spec import ModelSpec
from moe_operator.resources.model_source import stager_source
from moe_operator.resources.ownership import Owner, pull_secrets
from moe_operator.resources.security import RESTRICTED_CONTAINER
from moe_operator.resources.stager import allowed_hosts, permanent_exits_fail

Obj = dict[str, Any]
RETRIES = 2  # beyond these the operator waits before it lets the Job try again
REQUEST_RETRIES = 4  # of one request: seconds, so that a source that does not answer is soon said to be so
DEADLINE_SECONDS = 6 * 3600  # hashing a trillion parameters from a slow mount takes hours


def resolver_job(owner: Owner, name: str, model: ModelSpec, cache: CacheClass, policy: OperatorPolicy) -> Obj:
    """Build the resolver's Job."""
    source = stager_source(model, cache, store_mounted=False)
    container = {
        "name": "resolve",
        "image": policy.images.operator,
        "command": ["moestage"],
        "args": [
            "resolve",
            *source.args,
            *(["--trust-remote-code"] if model.trust_remote_code else []),
            *allowed_hosts(policy),
            "--retries",
            str(REQUEST_RETRIES),
            "--listen",
            f"0.0.0.0:{PORT_STAGE_PROGRESS}",
            "--termination-log",
            PATH_TERMINATION_LOG,
        ],
        "ports": [{"name": "progress", "containerPort": PORT_STAGE_PROGRESS}],
        "readinessProbe": {
            "httpGet": {"path": "/manifest", "port": PORT_STAGE_PROGRESS},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
        },
        "terminationMessagePath": PATH_TERMINATION_LOG,
        "securityContext": RESTRICTED_CONTAINER,
        "volumeMounts": list(source.mounts),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owner.metadata(name, COMPONENT_RESOLVER),
        "spec": {
            "backoffLimit": RETRIES,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "podFailurePolicy": permanent_exits_fail("resolve"),
            "template": {
                "metadata": {"labels": common_labels(owner.name, COMPONENT_RESOLVER)},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": 5,
                    **pull_secrets(policy.images.pull_secrets),
                    "containers": [container],
                    "volumes": list(source.volumes),
                },
            },
        },
    }
