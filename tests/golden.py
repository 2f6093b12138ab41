"""Golden files: what is built today, reviewed like code when it changes.

``UPDATE_GOLDEN=1 pytest …`` writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def assert_golden(path: Path, value: Any) -> None:
    """``value`` is what the YAML file at ``path`` says; strings inside stay on one line each."""
    text = yaml.dump(value, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=10_000)
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path} does not exist; UPDATE_GOLDEN=1 writes it"
    assert text == path.read_text()
