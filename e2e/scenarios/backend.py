"""What a scenario needs of the cluster it runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from moe_operator.runtime.kube import Kube


@dataclass(frozen=True, slots=True)
class Supplies:
    """What has to be in the cluster before anything is applied.

    ``stub_images``: names under which the engine stub can be pulled; ``checkpoints``: the directory behind
    the PersistentVolumeClaim ``claim`` of namespace ``default``.
    """

    stub_images: Sequence[str]
    checkpoints: Path
    claim: str = "checkpoints"


class Backend(Protocol):
    """A cluster with four nodes of eight H20 each, the operator in it, and its supplies."""

    @property
    def kube(self) -> Kube:
        """A client of the API server, as an administrator."""
        ...

    def describe(self) -> str:
        """What this cluster is, in a few words."""
        ...

    async def gateway_url(self, namespace: str, service: str) -> str:
        """Base URL of a gateway's Service from this machine; LookupError when it has none."""
        ...

    async def death(self) -> None:
        """Returns never; raises what ended the cluster before its time."""
        ...

    async def evidence(self) -> str:
        """What a person would look at first when something went wrong."""
        ...

    def look_around(self) -> Sequence[str]:
        """Shell commands that show this cluster from another terminal while it lives."""
        ...
