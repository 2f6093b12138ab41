"""What the operator mounted: the manifest: ``.json``, or ``.json.gz`` where a ConfigMap was too small."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from moe_operator.api.manifest import Manifest, StageExit
from moe_operator.staging.checksums import parse_manifest
from moe_operator.staging.failure import StageError

MANIFEST_BYTES = 64 << 20  # unpacked; a bomb ends here


def read_manifest(path: Path) -> Manifest:
    """Read and check; BAD_MANIFEST naming the file and its first wrong field."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                raw = packed.read(MANIFEST_BYTES + 1)
        else:
            with path.open("rb") as plain:
                raw = plain.read(MANIFEST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as fault:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"the manifest {path} cannot be read: {fault}",
            file=str(path),
            hint="it is mounted from the ConfigMap the resolver's answer was kept in",
        ) from fault
    if len(raw) > MANIFEST_BYTES:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"the manifest {path} is larger than {MANIFEST_BYTES} bytes",
            file=str(path),
        )
    return parse_manifest(raw, str(path))


def read_lines(path: Path) -> list[str]:
    """The lines of a mounted list, without comments and blanks; BAD_MANIFEST when it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise StageError(
            StageExit.BAD_MANIFEST, f"the list {path} cannot be read: {fault}", file=str(path)
        ) from fault
    return [text for line in lines if (text := line.partition("#")[0].strip())]
