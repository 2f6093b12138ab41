"""The stub's own knobs, all of them ``STUB_*`` environment variables.

Time: ``STUB_TIME_SCALE`` multiplies every duration that the real engine or a fault decides (loading,
rendezvous limits, log periods, the seconds between a lost rank and the end). Never scaled: token pace
(``STUB_TTFT_MS``, ``STUB_ITL_MS``), limits that the command line gives for shutdown, and heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

GIB = 1 << 30


class Misuse(ValueError):
    """The stub itself was started wrongly: its own settings, faults or entry point."""


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
        """Field ``x`` is ``STUB_X``; a variable that is empty counts as not given. Misuse when malformed."""
        values: dict[str, Any] = {}
        for one in fields(cls):
            variable = f"STUB_{one.name.upper()}"
            if given := environment.get(variable):
                try:
                    values[one.name] = _READ.get(one.name, float)(given)
                except ValueError as error:
                    raise Misuse(f"{variable}: {error}") from None
        return cls(**values)

    def scaled(self, seconds: float) -> float:
        """Seconds of this process for ``seconds`` of the real engine."""
        return seconds * self.time_scale


_READ: dict[str, Callable[[str], Any]] = {  # every other field is a number
    "gpus": int,
    "admin_host": str,
    "admin_port": int,
    "faults": str,
    "faults_file": Path,
    "vllm_version": str,
    "sglang_version": str,
}
