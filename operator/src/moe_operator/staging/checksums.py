"""A publisher's checksum list: ``moe-manifest.json`` or ``SHA256SUMS``.

``moe-manifest.json`` is an object with ``files: [{path, size, sha256}]`` (a whole manifest is one too);
``SHA256SUMS`` is what coreutils writes. A list that names a path twice or leaves the directory is refused.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, ValidationError

from moe_operator.api.manifest import MAX_FILES, Manifest, ManifestFile, StageExit
from moe_operator.staging.failure import StageError
from moe_operator.staging.selection import checked_path
from moe_operator.staging.sources import Entry

LIST_BYTES = 16 << 20
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


class _Sums(BaseModel):
    model_config = ConfigDict(extra="ignore")
    files: list[ManifestFile]


def parse_checksums(raw: bytes, name: str) -> dict[str, Entry]:
    """path -> what the publisher says about it; BAD_MANIFEST naming the line or field."""
    pairs = _from_json(raw, name) if name.endswith(".json") else _from_sums(raw, name)
    entries: dict[str, Entry] = {}
    for path, entry in pairs:
        if path in entries:
            raise _bad(name, f"path {path!r} appears twice")
        entries[checked_path(path)] = entry
    if len(entries) > MAX_FILES:
        raise _bad(name, f"it names more than {MAX_FILES} files")
    return entries


def _from_json(raw: bytes, name: str) -> list[tuple[str, Entry]]:
    try:
        files = _Sums.model_validate_json(raw).files
    except ValidationError as fault:
        raise _bad(name, first_error(fault)) from fault
    return [(file.path, Entry(file.size, file.sha256)) for file in files]


def _from_sums(raw: bytes, name: str) -> list[tuple[str, Entry]]:
    pairs = []
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line.rstrip())) is None:
            raise _bad(name, f"line {number} is not '<sha256>  <path>': {line[:80]!r}")
        pairs.append((match[2].removeprefix("./"), Entry(sha256=match[1].lower())))
    return pairs


def parse_manifest(raw: bytes, name: str) -> Manifest:
    """A manifest as the operator mounts it; BAD_MANIFEST naming the first wrong field."""
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as fault:
        raise _bad(name, first_error(fault)) from fault


def first_error(fault: ValidationError) -> str:
    """Where and what, without the input (it may be megabytes)."""
    first = fault.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def _bad(name: str, why: str) -> StageError:
    return StageError(StageExit.BAD_MANIFEST, f"{name} is unusable: {why}"[:600], file=name)
