"""``https://``: a directory behind a web server, which cannot be listed.

Files are found through the checksum list and the index; every file's address is the directory's URL
and the file's path.
"""

from __future__ import annotations

from contextlib import closing
from urllib.parse import quote, urlsplit

from moe_operator.api.manifest import StageExit
from moe_operator.staging.credentials import Credentials
from moe_operator.staging.failure import StageError
from moe_operator.staging.hosts import shown
from moe_operator.staging.selection import checked_path
from moe_operator.staging.sources import Entry
from moe_operator.staging.transport import HttpStream, Transport


class WebSource:
    """A directory URL."""

    checksum_lists = True

    def __init__(self, url: str, transport: Transport, credentials: Credentials) -> None:
        parts = urlsplit(url)
        if parts.query or parts.fragment:
            raise StageError(
                StageExit.BAD_MANIFEST,
                f"source {shown(url)!r} must be the plain URL of a directory",
                hint="leave out the query and the fragment",
            )
        self.url = url.rstrip("/")
        self._transport = transport
        self._credentials = credentials

    def list(self) -> None:
        """A web server has no listing."""
        return

    def stat(self, path: str) -> Entry | None:
        """Length of one file. 403 counts as absent: object stores say so for keys that do not exist."""
        try:
            with closing(self.open(path)) as stream:
                return Entry(size=stream.total)
        except StageError as fault:
            if fault.exit in (StageExit.NOT_FOUND, StageExit.AUTH):
                return None
            raise

    def open(self, path: str, offset: int = 0) -> HttpStream:
        """GET one file."""
        try:
            return self._transport.open(
                f"{self.url}/{quote(checked_path(path))}",
                offset=offset,
                authorization=self._credentials.authorization(),
            )
        except StageError as fault:
            fault.file = path
            raise
