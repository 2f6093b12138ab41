"""SHA-256 of a file while its bytes pass by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from moe_operator.staging.stop import Stop

READ_BYTES = 1 << 20
DROP_BYTES = 64 << 20  # page cache is charged to the reader: let go of it this often


class DigestSink:
    """Hashes, and keeps at most ``keep`` bytes from the start; nothing touches a disk.

    ``git_size``: also git's own digest, which begins with the file's length.
    """

    def __init__(self, keep: int = 0, *, git_size: int | None = None) -> None:
        self._keep = keep
        self._git_size = git_size
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.position = 0
        self.tag = ""
        self.kept = bytearray()
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\0" % (self._git_size or 0), usedforsecurity=False)

    def write(self, chunk: memoryview) -> None:
        """Take the next bytes."""
        self._sha256.update(chunk)
        if self._git_size is not None:
            self._git.update(chunk)
        self.kept += chunk[: max(self._keep - self.position, 0)]
        self.position += len(chunk)

    @property
    def sha256(self) -> str:
        """Of everything written so far."""
        return self._sha256.hexdigest()

    @property
    def git_sha1(self) -> str | None:
        """What git calls these bytes."""
        return None if self._git_size is None else self._git.hexdigest()


def file_sha256(path: Path, stop: Stop, spend: Callable[[int], object] | None = None) -> str:
    """Of a local file; ``spend`` is told how many bytes are about to be hashed and may wait."""
    sha256 = hashlib.sha256()
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        held = 0
        while count := file.readinto(buffer):
            stop.check()
            if spend is not None:
                spend(count)
            sha256.update(buffer[:count])
            if (held := held + count) >= DROP_BYTES:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                held = 0
    return sha256.hexdigest()
