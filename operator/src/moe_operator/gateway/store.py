"""The directory that Envoy and its agent share: its files are the gateway's whole state.

Envoy reacts to a rename into place, so every write is a temporary file, fsync, rename; a file whose
bytes do not change is left alone. ``intent.json`` there is the newest intent that Envoy has accepted, before
that the one the pod was born with: what a restart, or a refused successor, falls back to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from moe_operator.api.intent import INTENT_KEY, Intent
from moe_operator.gateway.files import BOOTSTRAP, DYNAMIC_FILES, LDS, generation_of, version_of

VERSION_WITHIN = 256  # characters from the beginning of a file


class Store:
    """Files below one directory; OSError when it cannot be written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def xds(self) -> str:
        """The directory as Envoy's configuration names it."""
        return str(self._directory)

    def site_files(self) -> dict[str, str]:
        """Bootstrap and listener as ``init`` wrote them."""
        return {name: self.read(name) for name in (BOOTSTRAP, LDS)}

    def put(self, files: Mapping[str, str]) -> tuple[str, ...]:
        """Write what differs, in the given order; the names that were replaced."""
        changed = tuple(name for name, text in files.items() if self.read(name) != text)
        for name in changed:
            self._replace(name, files[name])
        return changed

    def remember(self, intent: Intent) -> None:
        """Keep ``intent`` as the one to fall back to."""
        self.put({INTENT_KEY: intent.model_dump_json(by_alias=True)})

    def accepted(self) -> Intent | None:
        """The intent to fall back to; None when there was none."""
        text = self.read(INTENT_KEY)
        try:
            return Intent.model_validate_json(text) if text else None
        except ValidationError:  # written by another version of the agent; the API has the truth
            return None

    def generation(self) -> int:
        """The newest generation that any dynamic file was rendered from; -1 = none."""
        return max(generation_of(self.version(name)) for name in DYNAMIC_FILES)

    def version(self, name: str) -> str:
        """The version of a discovery file; empty when there is none."""
        try:
            with (self._directory / name).open() as file:
                return version_of(file.read(VERSION_WITHIN))
        except FileNotFoundError:
            return ""

    def read(self, name: str) -> str:
        """The text of a file; empty when there is none."""
        try:
            return (self._directory / name).read_text()
        except FileNotFoundError:
            return ""

    def _replace(self, name: str, text: str) -> None:
        temporary = self._directory / f".{name}.new"
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._directory / name)
