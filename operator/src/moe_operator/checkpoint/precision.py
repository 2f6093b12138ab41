"""How numbers are stored: bits per weight, and the scales that lie beside them.

Bytes of a matrix are ``out·in·bits/8`` plus one scale per block. Block formats as their specifications
give them: OCP Microscaling (MX) v1.0 for mxfp8 and mxfp4 (one exponent byte per 32), NVIDIA's NVFP4 (one
e4m3 byte per 16), DeepSeek-V3's technical report §3.3 for FP8 in 128×128 blocks with an fp32 scale,
compressed-tensors for grouped integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Precision:
    """One storage format. ``rows`` × ``columns`` weights share a scale; 0 = the whole dimension.

    ``zero_bits`` per group: the zero points of asymmetric integers.
    """

    name: str
    bits: int
    scale_bytes: int = 0
    rows: int = 0
    columns: int = 0
    zero_bits: int = 0

    def matrix_bytes(self, out: int, into: int) -> int:
        """Bytes of an ``out`` × ``into`` matrix with its scales."""
        blocks = ceil(out / (self.rows or out)) * ceil(into / (self.columns or into))
        return (out * into * self.bits + blocks * self.zero_bits + 7) // 8 + blocks * self.scale_bytes

    @property
    def is_quantized(self) -> bool:
        """Whether a kernel must know the format: anything below 16 bits."""
        return self.bits < 16

    @property
    def group(self) -> int:
        """Weights along the input dimension that share a scale; 0 = not grouped."""
        return self.columns if self.rows == 1 else 0

    @property
    def block(self) -> int:
        """Rows of a two-dimensional block; 0 = not blocked."""
        return self.rows if self.rows > 1 else 0


BF16 = Precision("bf16", 16)
FP32 = Precision("fp32", 32)
FP8_TENSOR = Precision("fp8", 8, scale_bytes=4)
FP8_CHANNEL = Precision("fp8", 8, scale_bytes=4, rows=1)
MXFP8 = Precision("mxfp8", 8, scale_bytes=1, rows=1, columns=32)
MXFP4 = Precision("mxfp4", 4, scale_bytes=1, rows=1, columns=32)
NVFP4 = Precision("nvfp4", 4, scale_bytes=1, rows=1, columns=16)


def fp8_block(rows: int, columns: int, scale_bytes: int = 4) -> Precision:
    """FP8 with one scale per two-dimensional block."""
    return Precision("fp8", 8, scale_bytes=scale_bytes, rows=rows, columns=columns)


def grouped_int(bits: int, group: int, symmetric: bool) -> Precision:
    """Integers with a bf16 scale per ``group`` inputs; ``group`` ≤ 0 = one per output channel."""
    return Precision(f"int{bits}", bits, 2, rows=1, columns=max(group, 0), zero_bits=0 if symmetric else bits)
