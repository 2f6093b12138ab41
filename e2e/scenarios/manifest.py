"""An example from ``manifests/`` with a patch over it.

The patch is a JSON merge patch (RFC 7386), so ``kubectl patch --local --type merge`` gives the same object.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import yaml

Obj = dict[str, Any]


def patched(example: Path, *patches: Path) -> Obj:
    """The one object of ``example`` with patches over it; ValueError when a file holds anything else."""
    return reduce(merge, map(_only_object, patches), _only_object(example))


def merge(target: Obj, patch: Obj) -> Obj:
    """A new object: members of ``patch`` replace those of ``target``, objects merge, null removes."""
    merged = dict(target)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            merged[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _only_object(path: Path) -> Obj:
    documents = [d for d in yaml.safe_load_all(path.read_text()) if d is not None]
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ValueError(f"{path} holds {len(documents)} documents, not one object")
    return dict(documents[0])
