"""What a GPU product is: memory an engine can use, its bandwidths, and which number formats run natively.

Keys are the ``nvidia.com/gpu.product`` labels of GPU Feature Discovery (NVML name, spaces → dashes); AMD's
are the ``amd.com/gpu.product-name`` labels. Memory is the total in MiB as the driver reports it (the label
``nvidia.com/gpu.memory`` says the same); data sheets round it to decimal sizes. Bandwidths are the data
sheets' peaks, used to rank layouts and for ceilings, never to refuse. An admin adds products through the
operator's policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Generation:
    """A GPU generation by what its matrix units multiply natively."""

    name: str
    vendor: str
    fp8: bool
    fp4: bool


AMPERE = Generation("Ampere", "nvidia", fp8=False, fp4=False)
ADA = Generation("Ada", "nvidia", fp8=True, fp4=False)
HOPPER = Generation("Hopper", "nvidia", fp8=True, fp4=False)
BLACKWELL = Generation("Blackwell", "nvidia", fp8=True, fp4=True)
CDNA3 = Generation("CDNA 3", "amd", fp8=True, fp4=False)
CDNA4 = Generation("CDNA 4", "amd", fp8=True, fp4=True)
UNKNOWN = Generation("unknown", "", fp8=True, fp4=True)  # nothing is refused for what nobody described


@dataclass(frozen=True, slots=True)
class Gpu:
    """One product.

    ``nvlink_gpus`` = GPUs of one node that reach each other without the network, at ``link_gb_per_second``
    in each direction (NVLink, or PCIe where there is none); ``nvlink_nodes`` = nodes of one NVLink domain
    (NVL72 trays). GB/s are 1e9 bytes a second.
    """

    product: str
    memory_mib: int
    nvlink_gpus: int = 8
    generation: Generation = UNKNOWN
    memory_gb_per_second: int = 2000
    link_gb_per_second: int = 450
    nvlink_nodes: int = 1


CATALOGUE: Mapping[str, Gpu] = {
    gpu.product: gpu
    for gpu in (
        Gpu("NVIDIA-A100-SXM4-80GB", 81_920, 8, AMPERE, 2039, 300),
        Gpu("NVIDIA-A800-SXM4-80GB", 81_920, 8, AMPERE, 2039, 200),
        Gpu("NVIDIA-L20", 46_068, 8, ADA, 864, 32),
        Gpu("NVIDIA-L40S", 46_068, 8, ADA, 864, 32),
        Gpu("NVIDIA-H20", 97_871, 8, HOPPER, 4000, 450),
        Gpu("NVIDIA-H20-3e", 143_771, 8, HOPPER, 4800, 450),
        Gpu("NVIDIA-H100-80GB-HBM3", 81_559, 8, HOPPER, 3350, 450),
        Gpu("NVIDIA-H200", 143_771, 8, HOPPER, 4800, 450),
        Gpu("NVIDIA-H800", 81_559, 8, HOPPER, 3350, 200),
        Gpu("NVIDIA-B200", 183_359, 8, BLACKWELL, 8000, 900),
        Gpu("NVIDIA-B300", 275_040, 8, BLACKWELL, 8000, 900),
        Gpu("NVIDIA-GB200", 189_471, 4, BLACKWELL, 8000, 900, nvlink_nodes=18),
        Gpu("NVIDIA-GB300", 284_208, 4, BLACKWELL, 8000, 900, nvlink_nodes=18),
        Gpu("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 97_887, 8, BLACKWELL, 1597, 64),
        Gpu("AMD-Instinct-MI300X-OAM", 196_592, 8, CDNA3, 5300, 448),
        Gpu("AMD-Instinct-MI325X-OAM", 262_128, 8, CDNA3, 6000, 448),
        Gpu("AMD-Instinct-MI355X-OAM", 294_896, 8, CDNA4, 8000, 538),
    )
}
