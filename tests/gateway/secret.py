"""A Secret mounted by a kubelet, and API keys to put into it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path

VERSIONS = count(1)


def api_key(name: object) -> str:
    return f"sk-test-{name}-{'0' * 32}"


def entry(key: str, expires: str = "") -> str:
    """What the Secret says about a key."""
    return sha256(key.encode()).hexdigest() + (f",expires={expires}" if expires else "")


@dataclass(frozen=True)
class Mount:
    """The directory; every write is one rename, as the kubelet does it."""

    directory: Path

    def write(self, **entries: str) -> None:
        self.put(entries)

    def put(self, entries: dict[str, str], *, links: bool = True) -> None:
        """``links``: also one for every entry beside ``..data``, which only Envoy follows."""
        version = self.directory / f"..2026_11_30_{next(VERSIONS)}"
        version.mkdir(parents=True)
        for name, content in entries.items():
            (version / name).write_text(content)
            link = self.directory / name
            if links and not link.is_symlink():
                link.symlink_to(f"..data/{name}")
        temporary = self.directory / "..data_tmp"
        temporary.symlink_to(version.name)
        temporary.rename(self.directory / "..data")
