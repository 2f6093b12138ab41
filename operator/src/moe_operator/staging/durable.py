"""Writes that survive a power cut: data first, then the name, then the directory.

Invariant: a reader sees the old bytes or the new bytes, never a mixture and never a name without bytes.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def sync_dir(path: Path) -> None:
    """Make the directory's entries durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_new(path: Path, data: bytes) -> None:
    """Create ``path`` with ``data``, durable but for its directory entry; FileExistsError when taken."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        write_all(fd, memoryview(data), 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` as a whole and make that durable."""
    temporary = path.with_name(f".tmp-{path.name}-{secrets.token_hex(4)}")
    try:
        write_new(temporary, data)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_dir(path.parent)


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """``pwrite`` until every byte is handed over."""
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
