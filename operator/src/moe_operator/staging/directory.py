"""``file://``: a mounted directory.

Rule: nothing outside the directory is ever read. Symbolic links are refused, not followed: inside a pod
they point elsewhere than where they were made, and a tenant could aim one at the node's files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from moe_operator.api.manifest import StageExit
from moe_operator.staging.digest import DROP_BYTES
from moe_operator.staging.failure import StageError, Transient
from moe_operator.staging.selection import CHECKSUM_LISTS, checked_path, taken
from moe_operator.staging.sources import Entry, Listing

_FAULTS = {
    errno.ENOENT: StageExit.NOT_FOUND,
    errno.ENOTDIR: StageExit.NOT_FOUND,
    errno.EACCES: StageExit.AUTH,
    errno.EPERM: StageExit.AUTH,
}


class FileStream:
    """An open regular file from ``start`` on."""

    def __init__(self, fd: int, path: str, offset: int) -> None:
        facts = os.fstat(fd)
        self._fd = fd
        self._path = path
        self._position = self.start = min(offset, facts.st_size)
        self._dropped = 0
        self.total: int | None = facts.st_size
        self.tag = f"{facts.st_ino}-{facts.st_mtime_ns}"

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of ``buffer``."""
        try:
            count = os.preadv(self._fd, [buffer], self._position)
        except OSError as fault:
            raise Transient("read", f"{self._path}: {fault.strerror}") from fault
        self._position += count
        if self._position - self._dropped >= DROP_BYTES:
            os.posix_fadvise(self._fd, 0, self._position, os.POSIX_FADV_DONTNEED)
            self._dropped = self._position
        return count

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class DirectorySource:
    """A directory of this machine."""

    checksum_lists = True

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = url
        self._root = Path(unquote(parts.path))
        if parts.netloc or parts.query or parts.fragment or not self._root.is_absolute():
            raise StageError(
                StageExit.BAD_MANIFEST,
                f"source {url[:200]!r} is no directory of this machine",
                expected="file:///path",
            )

    def list(self) -> Listing:
        """Walk the directory; BAD_MANIFEST at the first symbolic link that would matter."""
        entries: dict[str, Entry] = {}
        try:
            for path, size in _walk(self._root, ""):
                entries[path] = Entry(size=size)
        except OSError as fault:
            raise _fault(str(fault.filename or self._root), fault) from fault
        return Listing("", entries)

    def stat(self, path: str) -> Entry | None:
        """Size of one file."""
        try:
            stream = self.open(path)
        except StageError as fault:
            if fault.exit is StageExit.NOT_FOUND:
                return None
            raise
        stream.close()
        return Entry(size=stream.total)

    def open(self, path: str, offset: int = 0) -> FileStream:
        """Open a file below the directory without following a link on the way."""
        try:
            fd = _open_beneath(self._root, checked_path(path))
        except OSError as fault:
            if fault.errno == errno.ELOOP:
                raise _symlink(path) from fault
            raise _fault(path, fault) from fault
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StageError(StageExit.BAD_MANIFEST, f"{path} is no regular file", file=path)
        return FileStream(fd, path, offset)


def _open_beneath(root: Path, path: str) -> int:
    *above, name = path.split("/")
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in above:
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
            if stat.S_ISLNK(os.fstat(at).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part)
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)


def _walk(directory: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(directory) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_symlink() and (taken(path, trust_remote_code=True) or entry.is_dir()):
            raise _symlink(path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(directory / entry.name, path + "/")
        elif entry.is_file(follow_symlinks=False) and _matters(path):
            yield checked_path(path), entry.stat(follow_symlinks=False).st_size


def _matters(path: str) -> bool:
    return path in CHECKSUM_LISTS or taken(path, trust_remote_code=True)


def _symlink(path: str) -> StageError:
    return StageError(
        StageExit.BAD_MANIFEST,
        f"{path} at the source is a symbolic link",
        file=path,
        expected="a regular file",
        actual="a symbolic link",
        hint="copy the model with its links resolved (cp -rL)",
    )


def _fault(path: str, fault: OSError) -> StageError:
    known = _FAULTS.get(fault.errno or 0)
    if known is None:
        return Transient("read", f"{path}: {fault.strerror}")
    return StageError(known, f"{path}: {fault.strerror}", file=path, hint="check the path and the volume")
