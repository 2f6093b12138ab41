"""What cluster is wanted and where its files lie.

Invariant: two specs with the same digest give clusters that cannot be told apart, so one may be reused
for the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.inputs import key
from e2e.cluster.topology import Topology

CLUSTER = "moe"
POD_SUBNET = "10.244.0.0/16"


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine that every worker sees read-only at ``node_path``."""

    host_path: str
    node_path: str

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Read ``HOST:NODE``; raises ValueError unless both are absolute paths."""
        host, separator, node = text.partition(":")
        if not separator or not host.startswith("/") or not node.startswith("/"):
            raise ValueError(f"{text!r} is not HOST:NODE with two absolute paths")
        return cls(host, node)


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """One control plane and a worker per node of the topology."""

    topology: Topology
    mounts: tuple[Mount, ...] = ()

    @property
    def size(self) -> int:
        """Nodes, the control plane among them."""
        return 1 + len(self.topology.workers())

    def digest(self, **made_from: str) -> str:
        """Identity of a cluster of this spec and of everything else that it is made from."""
        topology = self.topology.model_dump_json()
        mounts = [[mount.host_path, mount.node_path] for mount in self.mounts]
        return key({**made_from, "topology": topology, "mounts": json.dumps(mounts)})


@dataclass(frozen=True, slots=True)
class Folders:
    """The tool's files: ``cache`` survives ``down``, ``state`` does not."""

    root: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Folders:
        """``$MOE_CACHE_DIR``, or the user's cache folder."""
        chosen = environment.get("MOE_CACHE_DIR")
        home_cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return cls((Path(chosen) if chosen else Path(home_cache) / "moe-operator").absolute() / "cluster")

    @property
    def binaries(self) -> Path:
        return self.root / "binaries"

    @property
    def rootfs(self) -> Path:
        return self.root / "rootfs"

    @property
    def toolchain(self) -> Path:
        return self.root / "toolchain"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def audit_policy(self) -> Path:
        return self.state / "audit-policy.yaml"

    @property
    def record(self) -> Path:
        return self.state / "cluster.json"

    @property
    def bin(self) -> Path:
        return self.state / "bin"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"
