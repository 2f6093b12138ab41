"""What is applied: the claim with engine and model, and a MoEDeployment of two nodes with one GPU each.

The object says to the operator only what any user could: its engine arguments and variables are what vLLM
wants on a CPU, its volume brings the installation that a GPU image has inside.
"""

from __future__ import annotations

from typing import Any

from moe_operator.api.names import API_VERSION, KIND

from e2e.real_engine.engine_image import INSTALLATION

Obj = dict[str, Any]
NAMESPACE = "real-engine"
NAME = "tiny"
CLAIM = "real-engine"
LEADER, WORKER = 0, 1
NODES = 2


def namespace() -> Obj:
    """Namespace of everything here."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def claim(node_path: str) -> tuple[Obj, Obj]:
    """The nodes' folder ``node_path`` as a read-only volume, and the claim that is bound to it."""
    spec = {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeMode": "Filesystem"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": CLAIM},
        "spec": {
            **spec,
            "capacity": {"storage": "10Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": node_path, "type": "Directory"},
            "claimRef": {"namespace": NAMESPACE, "name": CLAIM},
        },
    }
    wish = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": NAMESPACE},
        "spec": {**spec, "volumeName": CLAIM, "resources": {"requests": {"storage": "10Gi"}}},
    }
    return volume, wish


def deployment(image: str, installation: str, model: str) -> Obj:
    """The MoEDeployment; ``installation`` and ``model`` are folders of the claim."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "model": {"source": f"pvc://{CLAIM}/{model}"},
            "engine": {
                "type": "vLLM",
                "image": image,
                "maxModelLen": 1024,
                "args": ["--enforce-eager"],
                "env": [
                    {"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"},  # GiB
                    {"name": "OMP_NUM_THREADS", "value": "1"},
                    {
                        "name": "VLLM_CPU_OMP_THREADS_BIND",
                        "value": "nobind",
                    },  # else all ranks sit on one core
                    {"name": "TORCHDYNAMO_DISABLE", "value": "1"},  # the image holds no compiler
                ],
            },
            "parallelism": {"tensor": NODES, "pipeline": 1, "data": 1, "expert": False},
            "accelerators": {"product": "NVIDIA-H20", "nodes": NODES, "gpusPerNode": 1},
            "placement": {"policy": "Preferred"},  # a tensor-parallel group over two NVLink domains
            "network": {"interface": "eth0"},
            # A pod without a request gets what all others leave of the processor.
            "resources": {"cpu": "1", "memory": "6Gi", "sharedMemory": "1Gi"},
            "startup": {"timeoutSeconds": 1800},
            "restart": {"backoffSeconds": 0},
            "gateway": {"replicas": 1, "service": {"type": "NodePort"}},
            "pod": {
                "volumes": [
                    {"name": "vllm", "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}}
                ],
                "volumeMounts": [
                    {"name": "vllm", "mountPath": INSTALLATION, "subPath": installation, "readOnly": True}
                ],
            },
        },
    }
