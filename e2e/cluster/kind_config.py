"""The configuration that kind makes the cluster from.

The API server writes an audit log of what service accounts do to ``AUDIT_LOG`` on the control plane.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.settings import CLUSTER, POD_SUBNET, ClusterSpec
from e2e.cluster.source import Source

AUDIT_POLICY = Path(__file__).parent / "audit-policy.yaml"
AUDIT_LOG = "/var/log/kubernetes/audit.log"
_AUDIT_FOLDER = "/etc/kubernetes/audit"

# cgroup v1 still works; the kubelet only refuses it unless told so.
_CGROUP_V1 = {"kind": "KubeletConfiguration", "failCgroupV1": False}
_AUDIT = {
    "kind": "ClusterConfiguration",
    "apiVersion": "kubeadm.k8s.io/v1beta4",
    "apiServer": {
        "extraArgs": [
            {"name": "audit-policy-file", "value": f"{_AUDIT_FOLDER}/policy.yaml"},
            {"name": "audit-log-path", "value": AUDIT_LOG},
        ],
        "extraVolumes": [
            {
                "name": "audit-policy",
                "hostPath": _AUDIT_FOLDER,
                "mountPath": _AUDIT_FOLDER,
                "readOnly": True,
                "pathType": "Directory",
            },
            {
                "name": "audit-log",
                "hostPath": str(Path(AUDIT_LOG).parent),
                "mountPath": str(Path(AUDIT_LOG).parent),
                "pathType": "DirectoryOrCreate",
            },
        ],
    },
}


def render(spec: ClusterSpec, source: Source, audit_policy: Path, *, cgroup_v1: bool) -> str:
    """YAML for ``kind create cluster --config``; ``audit_policy`` is where this machine holds the policy.

    A built node image carries no network add-on, so there the tool wires the nodes itself.
    """
    patches = [_AUDIT, _CGROUP_V1] if cgroup_v1 else [_AUDIT]
    control_plane = {
        "role": "control-plane",
        "extraMounts": [_mount(str(audit_policy), f"{_AUDIT_FOLDER}/policy.yaml")],
    }
    mounts = [_mount(mount.host_path, mount.node_path) for mount in spec.mounts]
    worker = {"role": "worker", "extraMounts": mounts} if mounts else {"role": "worker"}
    config: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": CLUSTER,
        "networking": {"podSubnet": POD_SUBNET, "disableDefaultCNI": source is Source.BUILD},
        "kubeadmConfigPatches": [yaml.safe_dump(patch) for patch in patches],
        "nodes": [control_plane, *(dict(worker) for _ in spec.topology.workers())],
    }
    return yaml.safe_dump(config, sort_keys=False)


def _mount(host_path: str, node_path: str) -> dict[str, Any]:
    return {"hostPath": host_path, "containerPath": node_path, "readOnly": True}
