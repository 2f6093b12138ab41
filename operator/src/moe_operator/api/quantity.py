"""Kubernetes quantities as numbers: ``parse_quantity("64Gi")`` is 68719476736.

Suffixes as in apimachinery's ``resource.Quantity``: m, k, M, G, T, P, E are decimal, Ki … Ei binary.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

_QUANTITY = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<suffix>[KMGTPE]i|[mkMGTPE])?")
_DECIMAL = {suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)}
_BINARY = {f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)}
_FACTORS: dict[str, Decimal] = {"": Decimal(1), "m": Decimal("0.001"), **_DECIMAL, **_BINARY}


def parse_amount(text: str) -> Decimal:
    """The exact value, such as 0.5 for ``500m`` of CPU; ValueError for anything else."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 64Gi, 1.5G or 500m")
    return Decimal(match["number"]) * _FACTORS[match["suffix"] or ""]


def parse_quantity(text: str) -> int:
    """Whole units (bytes of memory, devices), rounded up as the API server does."""
    return int(parse_amount(text).to_integral_value(rounding=ROUND_CEILING))


def human_bytes(size: float) -> str:
    """Bytes as people read them, with the unit that fits: ``1.4 TiB``, ``4.8 MiB``, ``17 B``."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"
