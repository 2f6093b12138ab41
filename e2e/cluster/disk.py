"""Whether there is room for what is about to be written.

Folders on one file system share its free space, so needs are added up per device before they are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GIB = 1024**3
# Go's module and build caches 6, programs 1, file systems 2; Docker's images 2 and five nodes 4.
BUILD_CACHE_BYTES = 9 * GIB
DOCKER_BYTES = 6 * GIB
NODES_ONLY_BYTES = 5 * GIB
ASSEMBLY_BYTES = 1 * GIB  # every program is built already


@dataclass(frozen=True, slots=True)
class Need:
    """``wanted`` bytes below ``folder``, which lies on ``device`` with ``free`` bytes left."""

    folder: str
    device: int
    free: int
    wanted: int


def shortfall(needs: Iterable[Need]) -> str:
    """What to free and where, for people; "" when everything fits."""
    by_device: dict[int, list[Need]] = {}
    for need in needs:
        by_device.setdefault(need.device, []).append(need)
    return "; ".join(
        f"{' and '.join(need.folder for need in shared)}: {_gib(shared[0].free)} GiB free, "
        f"{_gib(sum(need.wanted for need in shared))} GiB needed"
        for shared in by_device.values()
        if sum(need.wanted for need in shared) > shared[0].free
    )


def _gib(count: int) -> str:
    return f"{count / GIB:.1f}"
