"""What every pod of ours that works on a node's store has in common.

Pinned to its node by name, tolerant of what keeps others off GPU nodes, without a service account, without a
GPU: GPUs are full while a revision serves. The store is the admin's directory; only ``moestage`` writes it.
It is not the first process of its namespace, which would be deaf to SIGTERM until Python has a handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from moe_operator.api.manifest import PERMANENT_EXITS
from moe_operator.api.names import PATH_MANIFEST, PATH_PEERS, PATH_STORE, PATH_TERMINATION_LOG
from moe_operator.api.policy import CacheClass, OperatorPolicy
from moe_operator.api.spec import MoESpec
from moe_operator.resources.model_source import StagerSource
from moe_operator.resources.ownership import pull_secrets
from moe_operator.resources.security import RESTRICTED_CONTAINER
from moe_operator.rollout.revision import NodeFiles

Obj = dict[str, Any]
PROGRESS_PORT_NAME = "progress"
STORE_MOUNT: Obj = {"name": "store", "mountPath": PATH_STORE}
MANIFEST_MOUNT: Obj = {"name": "manifest", "mountPath": PATH_MANIFEST, "readOnly": True}
PEERS_MOUNT: Obj = {"name": "peers", "mountPath": PATH_PEERS, "readOnly": True}
# Fixed buffers and a page cache that is let go of: a stager needs little, whatever the model's size.
RESOURCES: Obj = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}


def stage_container(
    name: str, command: str, args: Iterable[str], policy: OperatorPolicy, mounts: Sequence[Obj]
) -> Obj:
    """One ``moestage`` command."""
    return {
        "name": name,
        "image": policy.images.operator,
        "command": ["moestage"],
        "args": [command, *args, "--termination-log", PATH_TERMINATION_LOG],
        "terminationMessagePath": PATH_TERMINATION_LOG,
        "securityContext": RESTRICTED_CONTAINER,
        "volumeMounts": [STORE_MOUNT, *mounts],
    }


def pull_args(
    source: StagerSource, files: NodeFiles, cache: CacheClass, policy: OperatorPolicy, manifest_key: str
) -> list[str]:
    """Arguments of ``moestage pull``; ``manifest_key`` = file of the manifest ConfigMap."""
    return [
        "--manifest",
        f"{PATH_MANIFEST}/{manifest_key}",
        *source.args,
        *allowed_hosts(policy),
        "--store",
        PATH_STORE,
        *(part for pattern in files.only for part in ("--only", pattern)),
        *room_args(cache),
    ]


def allowed_hosts(policy: OperatorPolicy) -> list[str]:
    """The admin's list of hosts, for the stager to hold redirects against."""
    return [part for host in policy.allowed_source_hosts for part in ("--allow-host", host)]


def room_args(cache: CacheClass) -> list[str]:
    """What of the store's disk may be used."""
    reserve = [] if cache.reserve_bytes is None else ["--reserve-bytes", str(cache.reserve_bytes)]
    budget = [] if cache.budget_bytes is None else ["--disk-budget", str(cache.budget_bytes)]
    return [*reserve, *budget]


def pinned_to(node: str) -> Obj:
    """Affinity for one node by name: the scheduler still checks its taints and its room."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def gpu_node_tolerations(spec: MoESpec) -> list[Obj]:
    """What a pod puts up with to get onto the deployment's GPU nodes."""
    own = {"key": spec.accelerators.resource_name, "operator": "Exists", "effect": "NoSchedule"}
    wished = (t.model_dump(mode="json", by_alias=True, exclude_none=True) for t in spec.placement.tolerations)
    return [own, *wished]


def node_pod(
    node: str, tolerations: Sequence[Obj], container: Obj, volumes: Sequence[Obj], policy: OperatorPolicy
) -> Obj:
    """The spec of a pod that runs one container of ours on one node's store."""
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": 30,
        "affinity": pinned_to(node),
        "tolerations": list(tolerations),
        **pull_secrets(policy.images.pull_secrets),
        "containers": [container],
        "volumes": list(volumes),
    }


def permanent_exits_fail(container: str) -> Obj:
    """A pod failure policy: what no retry can mend fails at once, a pod that was evicted does not count."""
    codes = sorted(int(code) for code in PERMANENT_EXITS)
    exits = {"containerName": container, "operator": "In", "values": codes}
    evicted = {"type": "DisruptionTarget", "status": "True"}
    return {
        "rules": [
            {"action": "FailJob", "onExitCodes": exits},
            {"action": "Ignore", "onPodConditions": [evicted]},
        ]
    }
