"""Where a model lies: one small protocol, one module per kind of place.

A source lists what it can, tells a single file's facts, and opens a file at an offset. Sizes and digests
it states are the publisher's word: they are compared with the bytes, never trusted instead of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from moe_operator.api.manifest import StageExit
from moe_operator.staging.credentials import Credentials
from moe_operator.staging.failure import StageError
from moe_operator.staging.hosts import shown
from moe_operator.staging.transport import Stream, Transport


@dataclass(frozen=True, slots=True)
class Entry:
    """What a source says about one file; None = it does not say."""

    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None  # of "blob <size>\\0" + bytes, for files git itself holds


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a source. ``resolved`` is the immutable name of what was listed, "" when there is none."""

    resolved: str
    entries: Mapping[str, Entry]


class Source(Protocol):
    """A place that holds one model."""

    url: str  # without credentials
    checksum_lists: bool  # whether a publisher puts a checksum list beside the files

    def list(self) -> Listing | None:
        """Every file, or None when the place cannot be listed."""
        ...

    def stat(self, path: str) -> Entry | None:
        """One file's facts, None when it is not there."""
        ...

    def open(self, path: str, offset: int = 0) -> Stream:
        """The file's bytes; NOT_FOUND, AUTH, NETWORK or Transient."""
        ...


def source_for(
    url: str,
    transport: Transport,
    credentials: Credentials,
    *,
    resolved: str = "",
    hub: str = "",
    endpoint: str = "",
) -> Source:
    """The source a URL names.

    ``resolved`` pins a hub's revision or a registry's tag, ``hub`` is the hub's endpoint and ``endpoint``
    that of an object store that is not its cloud's own.
    """
    from moe_operator.staging.directory import DirectorySource
    from moe_operator.staging.hub import HubSource
    from moe_operator.staging.object_store import object_store
    from moe_operator.staging.oci import OciSource
    from moe_operator.staging.web import WebSource

    match urlsplit(url).scheme:
        case "https" | "http":
            return WebSource(url, transport, credentials)
        case "file":
            return DirectorySource(url)
        case "hf":
            return HubSource(url, transport, credentials, commit=resolved, endpoint=hub)
        case "s3" | "gs" | "az":
            return object_store(url, transport, credentials, endpoint=endpoint)
        case "oci":
            return OciSource(url, transport, credentials, resolved=resolved)
        case other:
            raise StageError(
                StageExit.BAD_MANIFEST,
                f"source {shown(url)!r} has an unknown scheme {other!r}",
                expected="https, hf, s3, gs, az, oci or file",
                hint="correct spec.model.source",
            )
