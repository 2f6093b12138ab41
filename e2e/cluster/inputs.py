"""The name of a built thing is the hash of what it is built from.

Invariant: a key covers every input that is declared here or in the repository (versions, checksums,
recipes, compiler); it does not cover what a mirror serves under the same name on another day.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def key(inputs: Mapping[str, str | bytes]) -> str:
    """16 hexadecimal digits over names and contents, in any order of the mapping."""
    digest = hashlib.sha256()
    for name in sorted(inputs):
        content = inputs[name]
        data = content.encode() if isinstance(content, str) else content
        digest.update(f"{len(name)}:{name}:{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()[:16]
