"""What ``up`` made, for the rest of the tool and for everybody who uses the cluster.

Written only when the cluster is whole, so a creation that was cut off is known by its absence.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.nodes import Kubectl
from e2e.cluster.settings import Folders
from e2e.cluster.source import Source


@dataclass(frozen=True, slots=True)
class Record:
    """The cluster that ``up`` made, for those who use it."""

    digest: str
    node_image: str
    source: Source
    kubeconfig: str
    kind: str
    kubectl: str
    helm: str

    @classmethod
    def read(cls, folders: Folders) -> Record | None:
        """The present cluster's record; None when there is none, or its creation was never finished."""
        if not folders.record.exists():
            return None
        written = json.loads(folders.record.read_text())
        return cls(**{**written, "source": Source(written["source"])})

    def write(self, folders: Folders) -> None:
        """Say that the cluster is whole, in one step."""
        unfinished = folders.record.with_suffix(".new")
        unfinished.write_text(json.dumps(asdict(self), indent=1))
        unfinished.rename(folders.record)

    @property
    def client(self) -> Kubectl:
        """kubectl for this cluster."""
        return Kubectl(Path(self.kubectl), Path(self.kubeconfig))
