"""The tenant's secret as the kubelet mounted it: one file per key, read when a request needs it.

Keys: ``token`` (or ``HF_TOKEN``) is sent as a bearer token; ``username`` with ``password`` as basic
authentication. Read again for every request, so a rotated Secret is picked up.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from moe_operator.api.manifest import StageExit
from moe_operator.staging.failure import StageError

TOKEN_KEYS = ("token", "HF_TOKEN")


@dataclass(frozen=True, slots=True)
class Credentials:
    """``directory`` None = anonymous."""

    directory: Path | None = None

    def authorization(self) -> str:
        """The Authorization header, "" for none; AUTH when the directory holds nothing usable."""
        if self.directory is None:
            return ""
        for key in TOKEN_KEYS:
            if token := self._read(key):
                return f"Bearer {token}"
        if (user := self._read("username")) and (password := self._read("password")):
            return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        raise StageError(
            StageExit.AUTH,
            f"{self.directory} holds no credentials",
            expected="a file named token, or username and password",
            actual=self._names(),
            hint="check the keys of the Secret that credentialsRef names",
        )

    def _read(self, key: str) -> str:
        assert self.directory is not None
        try:
            text = (self.directory / key).read_text().strip()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as fault:
            raise StageError(StageExit.AUTH, f"{self.directory / key} cannot be read: {fault}") from fault
        if not text.isascii() or not text.isprintable():
            raise StageError(StageExit.AUTH, f"{self.directory / key} holds more than one printable line")
        return text

    def _names(self) -> str:
        assert self.directory is not None
        try:
            names = sorted(p.name for p in self.directory.iterdir() if not p.name.startswith("."))
        except OSError as fault:
            return str(fault.strerror)
        return ", ".join(names)[:200] or "no file"
