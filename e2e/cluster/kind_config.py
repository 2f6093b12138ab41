"""The configuration that kind makes the cluster from."""

from __future__ import annotations

from typing import Any

import yaml

from e2e.cluster.settings import CLUSTER, POD_SUBNET, ClusterSpec
from e2e.cluster.source import Source

# cgroup v1 still works; the kubelet only refuses it unless told so.
_CGROUP_V1 = {"kind": "KubeletConfiguration", "failCgroupV1": False}


def render(spec: ClusterSpec, source: Source, *, cgroup_v1: bool) -> str:
    """YAML for ``kind create cluster --config``.

    A built node image carries no network add-on, so there the tool wires the nodes itself.
    """
    workers: list[dict[str, Any]] = [_worker(spec) for _ in spec.topology.workers()]
    config: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": CLUSTER,
        "networking": {"podSubnet": POD_SUBNET, "disableDefaultCNI": source is Source.BUILD},
        "nodes": [{"role": "control-plane"}, *workers],
    }
    if cgroup_v1:
        config["kubeadmConfigPatches"] = [yaml.safe_dump(_CGROUP_V1)]
    return yaml.safe_dump(config, sort_keys=False)


def _worker(spec: ClusterSpec) -> dict[str, Any]:
    mounts = [
        {"hostPath": mount.host_path, "containerPath": mount.node_path, "readOnly": True}
        for mount in spec.mounts
    ]
    return {"role": "worker", "extraMounts": mounts} if mounts else {"role": "worker"}
