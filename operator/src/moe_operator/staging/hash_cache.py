"""Digests already computed for a mounted directory, so that a restarted resolver does not start over.

A digest counts only for the very file it was computed from: same path, size, mtime and inode (the
source's tag). The file is append-only JSON lines; a torn last line is ignored.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

from moe_operator.api.manifest import StageExit
from moe_operator.staging.failure import StageError

_SHA256 = re.compile(r"[0-9a-f]{64}")


class HashCache:
    """``path`` None = remembers nothing beyond the run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int, str], str] = {}
        if path is not None and path.exists():
            for line in path.read_text(errors="replace").splitlines():
                self._learn(line)

    def _learn(self, line: str) -> None:
        try:
            path, size, tag, sha256 = json.loads(line)
        except (ValueError, TypeError):
            return
        if isinstance(sha256, str) and _SHA256.fullmatch(sha256):
            self._known[path, size, tag] = sha256

    def get(self, path: str, size: int, tag: Callable[[], str]) -> str | None:
        """The digest computed before, if the file is still the same; asks for the tag only then."""
        if not any(known[:2] == (path, size) for known in self._known):
            return None
        return self._known.get((path, size, tag()))

    def put(self, path: str, size: int, tag: str, sha256: str) -> None:
        """Remember a digest."""
        if self._path is None or not tag:
            return
        with self._lock:
            try:
                with self._path.open("a") as file:
                    file.write(json.dumps([path, size, tag, sha256]) + "\n")
            except OSError as fault:
                raise StageError(
                    StageExit.STORE_UNUSABLE, f"the hash cache {self._path} cannot be written: {fault}"
                ) from fault
