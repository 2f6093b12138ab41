"""What memory an engine takes that no file states: every constant with its source, all overridable.

Measured on public runs (docs/planner-accuracy.md): what is left after weights and KV cache is 4 to 14 GiB
per GPU, so ±``TOLERANCE`` is declared for the sum and said wherever a plan is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

MIB = 1 << 20
GIB = 1 << 30
TOLERANCE = 4 * GIB
TIGHT = 3 * GIB  # less slack than this and the plan says Tight


@dataclass(frozen=True, slots=True)
class Assumed:
    """Bytes unless the name says otherwise."""

    runtime_bytes: int = 2_534_030_704
    """CUDA context, kernels, allocator: 2.36 GiB of non-torch memory (srt-slurm memory report, GB300)."""
    nccl_bytes: int = 392 * MIB
    """NCCL's buffers of a rank that communicates (aiconfigurator 0.12 systems: 342 to 392 MB)."""
    graph_bytes_per_layer: int = 29 * MIB
    """CUDA graphs: 1.03 GiB for gpt-oss-120b's 36 layers (vLLM's published memory table)."""
    activation_coefficient: int = 10
    """Activations of a step, in units of tokens × hidden × 2 bytes (aiconfigurator 0.12 memory.py)."""
    workspace_bytes: int = 1_717_986_918
    """Workspaces of fused MoE kernels outside the pool: 1.6 GiB (perf-changelog of B200 TP8·PP2)."""
    sequences_per_gpu: int = 8
    """Requests in flight, over all GPUs, that layouts are compared at."""
    compared_tokens: int = 2048
    """Tokens that each of them has in the cache."""
    fabric_bytes_per_second: float = 50e9
    """Network per GPU: one 400 Gbit/s port."""
    fabric_latency_seconds: float = 12e-6
    """One small collective over the network."""
    link_latency_seconds: float = 3e-6
    """One small collective over NVLink."""


DEFAULTS = Assumed()
NAMES = tuple(f.name for f in fields(Assumed))
