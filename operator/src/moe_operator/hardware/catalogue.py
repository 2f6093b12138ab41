"""What a GPU product is: memory that an engine can use and which number formats run natively.

Keys are the ``nvidia.com/gpu.product`` labels of GPU Feature Discovery (NVML name, spaces → dashes).
Memory is the NVML total in MiB as the label ``nvidia.com/gpu.memory`` reports it; the vendor's data
sheets say the decimal size. An admin adds products through the operator's policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One product. ``nvlink_gpus`` = GPUs of one baseboard that reach each other over NVLink."""

    product: str
    memory_mib: int
    nvlink_gpus: int = 8


CATALOGUE: Mapping[str, Gpu] = {
    gpu.product: gpu
    for gpu in (
        Gpu("NVIDIA-H20", 97_871),
        Gpu("NVIDIA-H20-3e", 143_771),
        Gpu("NVIDIA-H100-80GB-HBM3", 81_559),
        Gpu("NVIDIA-H200", 143_771),
        Gpu("NVIDIA-H800", 81_559),
        Gpu("NVIDIA-A100-SXM4-80GB", 81_920),
        Gpu("NVIDIA-B200", 183_359),
        Gpu("NVIDIA-GB200", 189_471, nvlink_gpus=4),
        Gpu("NVIDIA-GB300", 284_208, nvlink_gpus=4),
    )
}
