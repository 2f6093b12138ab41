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


def bearer(token_file: Path | None) -> str:
    """The Authorization header for a token in a file of its own, "" without a file; AUTH when it is empty."""
    if token_file is None:
        return ""
    if not (token := read_secret(token_file)):
        raise StageError(StageExit.AUTH, f"{token_file} holds no token")
    return f"Bearer {token}"


def read_secret(path: Path) -> str:
    """One line of a mounted Secret, "" when it is absent; AUTH when it cannot be a secret's line."""
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as fault:
        raise StageError(StageExit.AUTH, f"{path} cannot be read: {fault}") from fault
    if not text.isascii() or not text.isprintable():
        raise StageError(StageExit.AUTH, f"{path} holds more than one printable line")
    return text


@dataclass(frozen=True, slots=True)
class Credentials:
    """``directory`` None = anonymous."""

    directory: Path | None = None

    def value(self, *keys: str) -> str:
        """The first of ``keys`` that the Secret holds, "" when it holds none of them."""
        if self.directory is None:
            return ""
        return next((text for key in keys if (text := read_secret(self.directory / key))), "")

    def authorization(self) -> str:
        """The Authorization header, "" for none; AUTH when the directory holds nothing usable."""
        if self.directory is None:
            return ""
        if token := self.value(*TOKEN_KEYS):
            return f"Bearer {token}"
        if (user := self.value("username")) and (password := self.value("password")):
            return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        raise self.unusable("a file named token, or username and password")

    def unusable(self, expected: str) -> StageError:
        """AUTH: the Secret does not hold what this kind of source needs."""
        return StageError(
            StageExit.AUTH,
            f"{self.directory} holds no credentials",
            expected=expected,
            actual=self._names(),
            hint="check the keys of the Secret that credentialsRef names",
        )

    def _names(self) -> str:
        assert self.directory is not None
        try:
            names = sorted(p.name for p in self.directory.iterdir() if not p.name.startswith("."))
        except OSError as fault:
            return str(fault.strerror)
        return ", ".join(names)[:200] or "no file"
