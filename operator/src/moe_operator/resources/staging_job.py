"""The Job that brings one node the files of a revision, before any of its GPUs is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moe_operator.api.names import (
    ANNOTATION_FROM_PEERS,
    ANNOTATION_NODE,
    ANNOTATION_SOURCE_HOST,
    COMPONENT_STAGER,
    PATH_PEERS,
    PORT_STAGE_PROGRESS,
    common_labels,
)
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.spec import MoESpec
from moe_operator.resources.model_source import stager_source, store_volume
from moe_operator.resources.ownership import Owner
from moe_operator.resources.peers import KEY_TOKEN
from moe_operator.resources.stager import (
    MANIFEST_MOUNT,
    PEERS_MOUNT,
    PROGRESS_PORT_NAME,
    RESOURCES,
    gpu_node_tolerations,
    node_pod,
    permanent_exits_fail,
    pull_args,
    stage_container,
)
from moe_operator.rollout.revision import NodeFiles

Obj = dict[str, Any]
RETRIES = 6  # beyond these the operator waits before it lets the Job try again


@dataclass(frozen=True, slots=True)
class Pull:
    """One node's turn: what it pulls, from whom, and how fast. ``bandwidth`` in bytes/s, 0 = no limit."""

    name: str
    node: str
    files: NodeFiles
    host: str
    peers: tuple[str, ...] = ()  # URLs of other nodes' servers
    peers_config: str = ""  # ConfigMap with their token
    all_from_peers: bool = False
    bandwidth: int = 0


def staging_job(
    owner: Owner, spec: MoESpec, policy: OperatorPolicy, manifest: str, manifest_key: str, pull: Pull
) -> Obj:
    """Build the Job; ``manifest`` = the ConfigMap with the list of files."""
    cache = policy.cache_classes[spec.weights.cache_class]
    source = stager_source(spec.model, cache, store_mounted=True)
    args = [
        *pull_args(source, pull.files, cache, policy, manifest_key),
        "--verify",
        spec.weights.verify.lower(),
        *(["--bandwidth", str(pull.bandwidth)] if pull.bandwidth else []),
        *_peer_args(pull.peers),
        "--listen",
        f"0.0.0.0:{PORT_STAGE_PROGRESS}",
    ]
    mounts = [MANIFEST_MOUNT, *source.mounts, *([PEERS_MOUNT] if pull.peers else [])]
    volumes = [store_volume(cache), {"name": "manifest", "configMap": {"name": manifest}}, *source.volumes]
    if pull.peers:
        volumes.append({"name": "peers", "configMap": {"name": pull.peers_config}})
    container = {
        **stage_container("stage", "pull", args, policy, mounts),
        "ports": [{"name": PROGRESS_PORT_NAME, "containerPort": PORT_STAGE_PROGRESS}],
        "resources": RESOURCES,
    }
    annotations = {ANNOTATION_NODE: pull.node, ANNOTATION_SOURCE_HOST: pull.host}
    if pull.all_from_peers:
        annotations[ANNOTATION_FROM_PEERS] = "true"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owner.metadata(pull.name, COMPONENT_STAGER, annotations=annotations),
        "spec": {
            "backoffLimit": RETRIES,
            "podFailurePolicy": permanent_exits_fail("stage"),
            "template": {
                "metadata": {"labels": common_labels(owner.name, COMPONENT_STAGER)},
                "spec": node_pod(pull.node, gpu_node_tolerations(spec), container, volumes, policy),
            },
        },
    }


def _peer_args(peers: Sequence[str]) -> list[str]:
    urls = [part for url in peers for part in ("--peer", url)]
    return [*urls, "--peer-token-file", f"{PATH_PEERS}/{KEY_TOKEN}"] if urls else []
