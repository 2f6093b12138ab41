"""What the stager and the operator say to each other about a model's files.

``moestage resolve`` answers ``GET /manifest`` with a :class:`Manifest`; the operator keeps it in an
immutable ConfigMap, plans from it, and every node pulls exactly these bytes. A *view* is the set of
files one node publishes for an engine; its digest depends on nothing but (path, sha256) pairs, so two
revisions with the same files share it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
MAX_FILES = 20_000
SHARD_SUFFIX = ".safetensors"
COMMON_PATTERN = "common-*.safetensors"
_EXPERT_GROUP = re.compile(r"experts-(\d{4,})-(\d{4,})-\d+\.safetensors")


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class StageExit(IntEnum):
    """Exit codes of ``moestage``; the reason in the termination message is the member's name."""

    OK = 0
    BAD_MANIFEST = 10
    AUTH = 11
    NOT_FOUND = 12
    LAYOUT_INCOMPATIBLE = 13
    INSUFFICIENT_DISK = 20
    STORE_UNUSABLE = 21
    CHECKSUM_MISMATCH = 30
    SOURCE_CHANGED = 31
    NETWORK = 40
    THROTTLED = 41
    LOCK_TIMEOUT = 42
    BUG = 50

    @property
    def permanent(self) -> bool:
        """Whether trying again cannot help until somebody changes something."""
        return self in PERMANENT_EXITS


PERMANENT_EXITS = frozenset(
    {
        StageExit.BAD_MANIFEST,
        StageExit.AUTH,
        StageExit.NOT_FOUND,
        StageExit.LAYOUT_INCOMPATIBLE,
        StageExit.INSUFFICIENT_DISK,
        StageExit.STORE_UNUSABLE,
        StageExit.CHECKSUM_MISMATCH,
    }
)


class ManifestFile(_Wire):
    """One file: where it lies below the source and what its bytes must be."""

    path: str = Field(max_length=1024)
    size: int = Field(ge=0)
    sha256: Sha256
    layers: tuple[int, int] | None = None  # first and last decoder layer of which it holds tensors
    outside: bool = True  # whether it holds tensors of no decoder layer, or nobody knows

    @field_validator("path")
    @classmethod
    def _inside(cls, value: str) -> str:
        parts = PurePosixPath(value).parts
        if not parts or value.startswith("/") or ".." in parts or "\\" in value or "\x00" in value:
            raise ValueError(f"path {value!r} leaves the model directory")
        if str(PurePosixPath(value)) != value:
            raise ValueError(f"path {value!r} is not in its plain form")
        return value


class WeightSummary(_Wire):
    """What the safetensors index (or the headers) said."""

    tensors: int = Field(default=0, ge=0)
    total_bytes: int = Field(default=0, ge=0)  # sum of tensor bytes
    shards: int = Field(default=0, ge=0)


class Manifest(_Wire):
    """The facts of one immutable revision of a model source."""

    schema_: Literal["moe.manifest/v1"] = Field(default="moe.manifest/v1", alias="schema")
    source: str
    resolved: str = ""  # commit, digest or etag that the source's name meant when it was read
    checksum_provenance: Literal["publisher", "computed"] = "computed"
    files: list[ManifestFile] = Field(max_length=MAX_FILES)
    config: dict[str, Any] = Field(default_factory=dict)  # config.json, whole
    weights: WeightSummary = WeightSummary()

    @field_validator("files")
    @classmethod
    def _unique(cls, value: list[ManifestFile]) -> list[ManifestFile]:
        seen: set[str] = set()
        for file in value:
            if file.path in seen:
                raise ValueError(f"path {file.path!r} appears twice")
            seen.add(file.path)
        return value

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def view_digest(files: Iterable[ManifestFile]) -> str:
    """SHA-256 over the sorted (path, digest) pairs: the name of a view in every node's store."""
    pairs = sorted((file.path, file.sha256) for file in files)
    return hashlib.sha256(json.dumps(pairs, separators=(",", ":")).encode()).hexdigest()


def select_files(files: Sequence[ManifestFile], patterns: Sequence[str]) -> list[ManifestFile]:
    """What a partial view is made of: every file that is no shard, and the shards a pattern fits.

    Patterns are ``fnmatch`` patterns for whole paths; none = the whole model. ValueError names a pattern that
    fits no shard, since a misspelt one would leave weights out.
    """
    if not patterns:
        return list(files)
    shards = [file.path for file in files if file.path.endswith(SHARD_SUFFIX)]
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in shards):
            raise ValueError(f"pattern {pattern!r} fits no {SHARD_SUFFIX} file of the manifest")
    return [
        file
        for file in files
        if not file.path.endswith(SHARD_SUFFIX) or any(fnmatchcase(file.path, p) for p in patterns)
    ]


def expert_patterns(files: Iterable[ManifestFile], first: int, end: int) -> list[str] | None:
    """Patterns for what a node with experts ``[first, end)`` needs of a model that ``moestage slice`` wrote.

    None when the model is not sliced, or holds no group for some of these experts.
    """
    groups = {
        (int(match[1]), int(match[2])): f"experts-{match[1]}-{match[2]}-*{SHARD_SUFFIX}"
        for file in files
        if (match := _EXPERT_GROUP.fullmatch(file.path))
    }
    needed = sorted((low, high) for low, high in groups if low < end and high >= first)
    held = {expert for low, high in needed for expert in range(low, high + 1)}
    if not needed or not held.issuperset(range(first, end)):
        return None
    return [COMMON_PATTERN, *(groups[group] for group in needed)]


class StageProgress(_Wire):
    """``GET /progress`` of a running stager."""

    phase: Literal[
        "Pending", "Resolved", "Reserving", "Pulling", "Verifying", "Publishing", "Ready", "Failed"
    ]
    view_digest: str = ""
    bytes_total: int = 0
    bytes_done: int = 0
    bytes_reused: int = 0
    bytes_from_peers: int = 0
    rate_bytes_per_second: float = 0.0
    eta_seconds: float | None = None
    message: str = ""


class TerminationMessage(_Wire):
    """JSON that ``moestage`` leaves in the termination log when it ends (at most 4,096 bytes)."""

    code: int
    reason: str
    message: str = ""
    file: str = ""
    expected: str = ""
    actual: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_reused: int = 0
    bytes_from_peers: int = 0
    corrupt: tuple[str, ...] = ()  # digests that a scrub found to be wrong, the first of them
    bytes_corrupt: int = 0  # of all of them
    retryable: bool = False
    hint: str = ""
