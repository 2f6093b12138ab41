"""Bytes on their way into a blob, with a journal of how many of them survive a crash.

The file has its full length from the start (the disk cannot run full half-way), so its length proves
nothing. The journal's last whole line does: ``durableUpTo`` is written only after the bytes before it
were forced to disk. Resuming hashes that prefix again and goes on behind it.

Invariant: after a crash at most ``interval`` received bytes have to be fetched again.
"""

from __future__ import annotations

import hashlib
import json
import os

from moe_operator.staging.durable import write_all
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store

SYNC_BYTES = 64 << 20  # dirty pages are charged to the stager's memory limit
JOURNAL_BYTES = 256 << 20
READ_BYTES = 1 << 20


class Partial:
    """A sink for one blob. Only the holder of the digest's lock may have one."""

    def __init__(
        self, store: Store, digest: str, size: int, *, interval: int, chunk: int, stop: Stop
    ) -> None:
        self._store = store
        self._digest = digest
        self._size = size
        # A chunk that is still in the reader's buffer is lost as well.
        self._interval = max(interval - chunk, 1)
        self._part = store.part(digest)
        self._journal = store.journal(digest)
        self.position = 0
        self.tag = ""
        self._hash = hashlib.sha256()
        self._synced = self._durable = 0
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._resume(stop)
            if size:
                os.posix_fallocate(self._fd, 0, size)
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, chunk: memoryview) -> None:
        """Take the next bytes."""
        write_all(self._fd, chunk, self.position)
        self._hash.update(chunk)
        self.position += len(chunk)
        if self.position - self._durable >= self._interval:
            self.checkpoint()
        elif self.position - self._synced >= SYNC_BYTES:
            self._sync()

    def restart(self) -> None:
        """Forget everything."""
        self.position = self._synced = self._durable = 0
        self.tag = ""
        self._hash = hashlib.sha256()
        self._journal.unlink(missing_ok=True)

    def checkpoint(self) -> None:
        """Force what is here to disk, then say so in the journal."""
        self._sync()
        line = {"etag": self.tag, "size": self._size, "durableUpTo": self.position}
        fd = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
            os.fdatasync(fd)
        finally:
            os.close(fd)
        self._durable = self.position

    def sha256(self) -> str:
        """Of everything held."""
        return self._hash.hexdigest()

    def publish(self, source: str) -> None:
        """Make the verified bytes the blob of their digest."""
        os.ftruncate(self._fd, self._size)
        os.fchmod(self._fd, 0o444)
        self._sync()
        self._store.adopt(self._digest, self._part, source)
        self._journal.unlink(missing_ok=True)

    def quarantine(self) -> None:
        """Put the bytes aside: they are not what they should be."""
        self._journal.unlink(missing_ok=True)  # first: after a crash it would speak of bytes that are gone
        self._store.quarantine(self._part)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def _sync(self) -> None:
        os.fdatasync(self._fd)
        os.posix_fadvise(self._fd, 0, self.position, os.POSIX_FADV_DONTNEED)
        self._synced = self.position

    def _resume(self, stop: Stop) -> None:
        self.tag, durable = self._last_entry()
        buffer = memoryview(bytearray(READ_BYTES))
        while self.position < durable:
            stop.check()
            count = os.preadv(self._fd, [buffer[: durable - self.position]], self.position)
            if count == 0:  # the part is shorter than its journal: another file, or a damaged disk
                self.restart()
                return
            self._hash.update(buffer[:count])
            self.position += count
        self._synced = self._durable = durable

    def _last_entry(self) -> tuple[str, int]:
        """(tag, durable bytes) of the last whole line that fits this file; a torn line does not count."""
        try:
            lines = self._journal.read_bytes().splitlines()
        except FileNotFoundError:
            return "", 0
        for line in reversed(lines):
            try:
                entry = json.loads(line)
                tag, size, durable = str(entry["etag"]), int(entry["size"]), int(entry["durableUpTo"])
            except (ValueError, KeyError, TypeError):
                continue
            return (tag, durable) if size == self._size and 0 <= durable <= size else ("", 0)
        return "", 0
