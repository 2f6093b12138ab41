"""A kubeconfig for one API server, whose URL is the only secret."""

from __future__ import annotations

import os
from pathlib import Path

import yaml


def write_kubeconfig(path: Path, url: str) -> None:
    """Write it so that only its owner can read it, and never half."""
    name = "moe-sandbox"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": name, "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        "current-context": name,
    }
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        yaml.safe_dump(config, file, sort_keys=False)
    draft.replace(path)
