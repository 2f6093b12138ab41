"""The stub's own knobs, all of them ``STUB_*`` environment variables.

Time: ``STUB_TIME_SCALE`` multiplies every duration that the real engine or a fault decides (loading,
rendezvous limits, log periods, the seconds between a lost rank and the end). Never scaled: token pace
(``STUB_TTFT_MS``, ``STUB_ITL_MS``), limits that the command line gives for shutdown, and heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults describe one H20 node whose weights load at once."""

    time_scale: float = 1.0
    load_seconds: float = 0.0
    ttft_ms: float = 20.0
    itl_ms: float = 5.0
    gpu_memory_gib: float = 95.58  # nvidia-smi on an H20: 97,871 MiB
    gpus: int | None = None  # None: as many as the command line needs
    overhead_gib: float = 4.0  # non-torch memory and peak activation, beside weights and KV cache
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    faults: str = "[]"
    faults_file: Path | None = None
    vllm_version: str = "0.33.0"
    sglang_version: str = "0.5.23"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read ``STUB_*``; a variable that is empty counts as not given. ValueError when one is malformed."""

        def number(name: str, default: float) -> float:
            return float(environment.get(name) or default)

        def text(name: str) -> str | None:
            return environment.get(name) or None

        plain = cls()
        gpus, port, file = text("STUB_GPUS"), text("STUB_ADMIN_PORT"), text("STUB_FAULTS_FILE")
        return cls(
            time_scale=number("STUB_TIME_SCALE", plain.time_scale),
            load_seconds=number("STUB_LOAD_SECONDS", plain.load_seconds),
            ttft_ms=number("STUB_TTFT_MS", plain.ttft_ms),
            itl_ms=number("STUB_ITL_MS", plain.itl_ms),
            gpu_memory_gib=number("STUB_GPU_MEMORY_GIB", plain.gpu_memory_gib),
            gpus=int(gpus) if gpus else None,
            overhead_gib=number("STUB_OVERHEAD_GIB", plain.overhead_gib),
            admin_host=text("STUB_ADMIN_HOST") or plain.admin_host,
            admin_port=int(port) if port else None,
            faults=text("STUB_FAULTS") or plain.faults,
            faults_file=Path(file) if file else None,
            vllm_version=text("STUB_VLLM_VERSION") or plain.vllm_version,
            sglang_version=text("STUB_SGLANG_VERSION") or plain.sglang_version,
        )

    def scaled(self, seconds: float) -> float:
        """Seconds of this process for ``seconds`` of the real engine."""
        return seconds * self.time_scale
