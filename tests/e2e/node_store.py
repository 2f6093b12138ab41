"""The weight store of one node as its container sees it: what is on the disk, whatever anybody says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from e2e.cluster.command import run

ROOT = "/var/lib/moe-operator/store"  # of cache class nvme in e2e.kind.release
STAGER = "65532:65532"


@dataclass(frozen=True)
class Blob:
    """One file of ``blobs/``; the same inode and time mean that nobody has written it again."""

    size: int
    inode: int
    written: str


@dataclass(frozen=True)
class NodeStore:
    """Commands run as root in the node's container."""

    node: str

    def blobs(self) -> dict[str, Blob]:
        """Digest → file."""
        found = self._sh(f"find {ROOT}/blobs -type f -printf '%f %s %i %T@\\n'")
        rows = (line.split() for line in found.splitlines())
        return {digest: Blob(int(size), int(inode), written) for digest, size, inode, written in rows}

    def views(self) -> set[str]:
        """Digests of the published views."""
        return set(self._sh(f"ls {ROOT}/views").split())

    def trash(self) -> set[str]:
        """What was put aside."""
        return set(self._sh(f"ls {ROOT}/trash").split())

    def digest_of(self, view: str, path: str) -> str:
        """The blob behind a file of a view."""
        found = self._sh(f"find {ROOT}/blobs -samefile {ROOT}/views/{view}/{path} -printf '%f\\n'")
        [digest] = found.split()
        return digest

    def is_right(self, digest: str) -> bool:
        """Whether a blob's bytes are what its name says."""
        return self._sh(f"sha256sum < {_blob(digest)}").split()[0] == digest

    def corrupt(self, digest: str) -> None:
        """Change bytes in the middle of a blob, as a broken disk or a stray write does."""
        self._sh(f"printf 'not what was staged' | dd of={_blob(digest)} bs=1 seek=500 conv=notrunc 2>&1")

    def plant(self, digest: str, size: int) -> None:
        """A blob that no view needs."""
        blob = _blob(digest)
        folder = blob.rsplit("/", 1)[0]
        self._sh(f"mkdir -p {folder} && head -c {size} /dev/zero > {blob} && chown -R {STAGER} {folder}")

    @contextmanager
    def on_a_disk_of(self, size: str) -> Iterator[None]:
        """An empty store on a file system of its own instead; pods that run keep what they have mounted."""
        self._sh(
            f"id=$(cat {ROOT}/STORE_ID) && mount -t tmpfs -o size={size} small {ROOT} "
            f"&& echo $id > {ROOT}/STORE_ID && chown -R {STAGER} {ROOT}"
        )
        try:
            yield
        finally:
            self._sh(f"umount --lazy {ROOT}")

    def grow_disk(self, size: str) -> None:
        """Of :meth:`on_a_disk_of`."""
        self._sh(f"mount -o remount,size={size} {ROOT}")

    def _sh(self, script: str) -> str:
        return run("docker", "exec", self.node, "sh", "-c", script)


def _blob(digest: str) -> str:
    return f"{ROOT}/blobs/sha256/{digest[:2]}/{digest}"


def last_words(pod: dict[str, Any], container: str) -> dict[str, Any]:
    """The termination message of a stager."""
    status = pod["status"]
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    ended = next(each["state"]["terminated"] for each in statuses if each["name"] == container)
    words: dict[str, Any] = json.loads(ended["message"])
    return words
