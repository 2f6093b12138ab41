"""``hf://org/repo@revision``: a Hugging Face hub, or a mirror that speaks its API.

A revision is turned into a commit once, at resolve time; every later byte is asked for by commit, so
nodes can never straddle a push. Weights lie in git LFS, whose pointer is the publisher's SHA-256;
files that git holds itself are proved by their blob id.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, urlsplit

from moe_operator.api.manifest import StageExit
from moe_operator.staging.credentials import Credentials
from moe_operator.staging.failure import StageError
from moe_operator.staging.sources import Entry, Listing
from moe_operator.staging.transport import HttpStream, Transport
from moe_operator.staging.weights import parse_object

ENDPOINT = "https://huggingface.co"
LISTING_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubSource:
    """One revision of one repository."""

    checksum_lists = False

    def __init__(
        self,
        url: str,
        transport: Transport,
        credentials: Credentials,
        *,
        commit: str = "",
        endpoint: str = "",
    ) -> None:
        self.url = url
        self._repo, self._revision = _repository(url)
        self._commit = commit
        self._endpoint = (endpoint or ENDPOINT).rstrip("/")
        self._transport = transport
        self._credentials = credentials

    def list(self) -> Listing:
        """Turn the revision into a commit and list its files."""
        api = f"{self._endpoint}/api/models/{self._repo}/revision/{quote(self._revision, safe='')}?blobs=true"
        raw = self._transport.read(api, LISTING_BYTES, authorization=self._credentials.authorization())
        document = parse_object(raw, f"{self._repo}@{self._revision}")
        commit, siblings = document.get("sha"), document.get("siblings")
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit) or not isinstance(siblings, list):
            raise StageError(
                StageExit.BAD_MANIFEST,
                f"{self._endpoint} does not answer as a hub: no commit or no files",
                hint="check HF_ENDPOINT",
            )
        self._commit = commit
        entries = [_entry(sibling) for sibling in siblings]
        if len(by_path := dict(entries)) != len(entries):
            raise StageError(StageExit.BAD_MANIFEST, "the hub's listing names a path twice")
        return Listing(commit, by_path)

    def stat(self, path: str) -> Entry | None:
        """One file's facts, from the listing."""
        return self.list().entries.get(path)

    def open(self, path: str, offset: int = 0) -> HttpStream:
        """GET one file of the commit."""
        revision = quote(self._commit or self._revision, safe="")
        url = f"{self._endpoint}/{self._repo}/resolve/{revision}/{quote(path)}"
        try:
            return self._transport.open(url, offset=offset, authorization=self._credentials.authorization())
        except StageError as fault:
            fault.file = path
            raise


def _repository(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    path, _, revision = (parts.netloc + parts.path).partition("@")
    names = path.strip("/").split("/")
    revision = revision or "main"
    fits = len(names) == 2 and all(_NAME.fullmatch(name) for name in names) and _REVISION.fullmatch(revision)
    if not fits or ".." in url or parts.query or parts.fragment:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"source {url[:200]!r} names no repository",
            expected="hf://org/repo@revision",
        )
    return "/".join(names), revision


def _entry(sibling: Any) -> tuple[str, Entry]:
    try:
        path, lfs = str(sibling["rfilename"]), sibling.get("lfs")
        if lfs:
            return path, Entry(size=int(lfs["size"]), sha256=str(lfs["sha256"]))
        return path, Entry(size=int(sibling["size"]), git_sha1=sibling.get("blobId"))
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"the hub's listing lacks a file's facts: {str(sibling)[:200]}",
            hint="check that HF_ENDPOINT names a hub or a complete mirror",
        ) from fault
