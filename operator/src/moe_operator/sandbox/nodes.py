"""The nodes of a sandbox: presets as real Node objects with GPU Feature Discovery's labels.

Labels are those that k8s-device-plugin 0.20 (docs/gpu-feature-discovery), the GPU operator and topograph
1.0 write. ``nvidia.com/gpu.clique`` exists only where GPUs of several nodes share one NVLink fabric, so
only on the NVL72 presets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moe_operator.api.moments import elapsed, moment
from moe_operator.api.names import digest
from moe_operator.hardware.catalogue import CATALOGUE
from moe_operator.runtime.kube import NODE, ApiError, Kube, Obj
from moe_operator.sandbox.objects import moved_on, status_patch, with_transitions

MANAGER = "kubelet"
REPORT_EVERY_SECONDS = 300.0  # kubelet's nodeStatusReportFrequency
KUBELET_VERSION = "v1.37.0"


@dataclass(frozen=True, slots=True)
class Machine:
    """What the nodes of a preset are."""

    product: str
    family: str
    compute: tuple[int, int]
    gpus: int
    cpus: int
    memory_gib: int
    system: str
    instance: str

    @property
    def short(self) -> str:
        """``h20``: the product as node names spell it."""
        return self.product.removeprefix("NVIDIA-").split("-")[0].lower()


H20 = Machine("NVIDIA-H20", "hopper", (9, 0), 8, 192, 2048, "HGX-H20", "hgx-h20-8")
H100 = Machine("NVIDIA-H100-80GB-HBM3", "hopper", (9, 0), 8, 208, 2048, "HGX-H100", "hgx-h100-8")
H200 = Machine("NVIDIA-H200", "hopper", (9, 0), 8, 208, 2048, "HGX-H200", "hgx-h200-8")
B200 = Machine("NVIDIA-B200", "blackwell", (10, 0), 8, 224, 2048, "HGX-B200", "hgx-b200-8")
GB200 = Machine("NVIDIA-GB200", "blackwell", (10, 0), 4, 144, 960, "GB200-NVL", "gb200-nvl72")


@dataclass(frozen=True, slots=True)
class Preset:
    """``count`` machines; ``cliques`` > 0 = all in one NVLink rack, split into that many partitions.

    Machines on one baseboard only are spread evenly over ``leaves`` leaf switches.
    """

    machine: Machine
    count: int
    cliques: int = 0
    leaves: int = 1


PRESETS: Mapping[str, Preset] = {
    "h20-4x8": Preset(H20, 4),
    "h20-1x8": Preset(H20, 1),
    "h20-2x8": Preset(H20, 2),
    "h20-8x8": Preset(H20, 8, leaves=2),
    "h100-1x8": Preset(H100, 1),
    "h100-2x8": Preset(H100, 2),
    "h200-2x8": Preset(H200, 2),
    "b200-2x8": Preset(B200, 2),
    "gb200-nvl72": Preset(GB200, 18, cliques=1),
    "gb200-nvl72-2x36": Preset(GB200, 18, cliques=2),
}
DEFAULT_PRESET = "h20-4x8"


def build_nodes(preset: str) -> tuple[Obj, ...]:
    """The Node objects of a preset, without status; KeyError for a name that is not in :data:`PRESETS`."""
    chosen = PRESETS[preset]
    return tuple(_node(chosen, index) for index in range(chosen.count))


def _node(preset: Preset, index: int) -> Obj:
    machine = preset.machine
    name = f"{machine.short}-{index}"
    return {
        "apiVersion": NODE.api_version,
        "kind": NODE.kind,
        "metadata": {
            "name": name,
            "labels": {**_machine_labels(machine, name), **_fabric_labels(preset, index)},
        },
        "spec": {"providerID": f"sandbox://{name}"},
    }


def _machine_labels(machine: Machine, name: str) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64" if machine is GB200 else "amd64",
        "node.kubernetes.io/instance-type": machine.instance,
        "nvidia.com/cuda.driver-version.full": "580.95.05",
        "nvidia.com/cuda.driver-version.major": "580",
        "nvidia.com/cuda.runtime-version.full": "13.0",
        "nvidia.com/cuda.runtime-version.major": "13",
        "nvidia.com/gpu.compute.major": str(machine.compute[0]),
        "nvidia.com/gpu.compute.minor": str(machine.compute[1]),
        "nvidia.com/gpu.count": str(machine.gpus),
        "nvidia.com/gpu.family": machine.family,
        "nvidia.com/gpu.machine": machine.system,
        "nvidia.com/gpu.memory": str(CATALOGUE[machine.product].memory_mib),
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": machine.product,
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "none",
        "nvidia.com/mps.capable": "false",
    }


def _fabric_labels(preset: Preset, index: int) -> dict[str, str]:
    if not preset.cliques:
        leaf = index * preset.leaves // preset.count
        return {"fabric.topograph.run/tier-0": f"leaf-{leaf}"}
    clique = index * preset.cliques // preset.count + 1
    return {
        "nvidia.com/gpu.clique": f"{_rack_uuid(preset)}.{clique}",
        "accelerator.topograph.run/domain": _rack_uuid(preset),
    }


def _rack_uuid(preset: Preset) -> str:
    """ClusterUUID of the rack: stable, so that a sandbox started twice has the same domains."""
    text = digest(f"{preset.machine.instance}/{preset.count}", length=32)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def node_status(node: Obj, address: str, now: float) -> Obj:
    """What a healthy kubelet says of its node at ``now``."""
    machine = _machine_of(node)
    offers = {
        "cpu": str(machine.cpus),
        "memory": f"{machine.memory_gib}Gi",
        "ephemeral-storage": "7000Gi",
        "nvidia.com/gpu": str(machine.gpus),
        "rdma/ib": "1000",
        "pods": "110",
    }
    before = (node.get("status") or {}).get("conditions") or ()
    conditions = [
        {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": moment(now),
        }
    ]
    return {
        "capacity": offers,
        "allocatable": dict(offers),
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": node["metadata"]["name"]},
        ],
        "conditions": with_transitions(conditions, before, now),
        "nodeInfo": {
            "architecture": node["metadata"]["labels"]["kubernetes.io/arch"],
            "bootID": "", "machineID": "", "systemUUID": "",
            "containerRuntimeVersion": "process://1", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": KUBELET_VERSION,
            "operatingSystem": "linux", "osImage": "moe-operator sandbox",
        },
    }  # fmt: skip


def _machine_of(node: Obj) -> Machine:
    instance = node["metadata"]["labels"]["node.kubernetes.io/instance-type"]
    return next(p.machine for p in PRESETS.values() if p.machine.instance == instance)


async def register(kube: Kube, preset: str) -> tuple[str, ...]:
    """Create the nodes of a preset; their names."""
    nodes = build_nodes(preset)
    for node in nodes:
        await kube.apply(node, manager=MANAGER)
    return tuple(node["metadata"]["name"] for node in nodes)


async def heartbeat(kube: Kube, now: float, address_of: Callable[[str], str]) -> None:
    """Say of every node of a preset that it is Ready, when that is news or was said long ago."""
    for node in (await kube.list(NODE)).items:
        if not node["spec"].get("providerID", "").startswith("sandbox://"):
            continue
        status = node_status(node, address_of(node["metadata"]["name"]), now)
        if _is_news(status, node.get("status") or {}, now):
            try:
                await kube.apply_status(status_patch(node, status), manager=MANAGER)
            except ApiError as error:
                if not moved_on(error):
                    raise


def _is_news(status: Obj, before: Obj, now: float) -> bool:
    ready = next((c for c in before.get("conditions") or () if c["type"] == "Ready"), None)
    if ready is None or any(status[k] != before.get(k) for k in ("capacity", "allocatable", "addresses")):
        return True
    stale = (
        "lastHeartbeatTime" not in ready or elapsed(ready["lastHeartbeatTime"], now) >= REPORT_EVERY_SECONDS
    )
    return bool(ready["status"] != "True" or stale)
