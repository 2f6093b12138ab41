"""What deployments find in the cluster: the claim that holds the checkpoints.

The volume is a folder of this machine that every node sees, so it can be read from all of them at once.
"""

from __future__ import annotations

from typing import Any

from e2e.kind.shared_folder import CHECKPOINTS, NODE_PATH

CLAIM = "checkpoints"
Obj = dict[str, Any]


def claim(namespace: str) -> tuple[Obj, Obj]:
    """A PersistentVolume of the checkpoints and the claim of ``namespace`` that it is bound to."""
    spec = {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeMode": "Filesystem"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{CLAIM}-{namespace}"},
        "spec": {
            **spec,
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"{NODE_PATH}/{CHECKPOINTS}", "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": CLAIM},
        },
    }
    wish = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": namespace},
        "spec": {
            **spec,
            "volumeName": f"{CLAIM}-{namespace}",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    return volume, wish
