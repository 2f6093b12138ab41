"""Which GPUs the workers pretend to have.

A topology file lists nodes as GPU Feature Discovery would describe them: labels, and how many devices
the kubelet offers. Its nodes are given to the workers in order, so the same file always makes the same
cluster. Nothing behind the numbers exists: pods that ask for a GPU are scheduled and counted, no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

PRESETS = Path(__file__).parent / "topologies"
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]


class NodeGroup(BaseModel):
    """``count`` nodes that look the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    count: Annotated[int, Field(ge=1, le=50)] = 1
    labels: Mapping[str, LabelValue] = {}
    capacity: Mapping[str, Annotated[int, Field(ge=0)]] = {}


class Topology(BaseModel):
    """The workers of one cluster, in order."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    nodes: Annotated[Sequence[NodeGroup], Field(min_length=1)]

    def workers(self) -> tuple[NodeGroup, ...]:
        """One entry per worker."""
        return tuple(group for group in self.nodes for _ in range(group.count))


@dataclass(frozen=True, slots=True)
class NodePatch:
    """What a worker lacks to look like its place in the topology; empty parts need no write."""

    node: str
    labels: Mapping[str, str]
    capacity: Mapping[str, str]


def parse(text: str) -> Topology:
    """Read a topology file; raises pydantic.ValidationError naming the field that is wrong."""
    return Topology.model_validate(yaml.safe_load(text))


def preset_names() -> list[str]:
    """The topologies that come with the tool."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load(name_or_path: str) -> Topology:
    """A preset by name, or a file by path; raises FileNotFoundError naming the presets."""
    preset = PRESETS / f"{name_or_path}.yaml"
    path = preset if name_or_path in preset_names() else Path(name_or_path)
    if not path.is_file():
        raise FileNotFoundError(
            f"no topology {name_or_path!r}: a file, or one of {', '.join(preset_names())}"
        )
    return parse(path.read_text())


def worker_order(names: Iterable[str]) -> list[str]:
    """kind's order: moe-worker, moe-worker2, …, moe-worker10."""
    return sorted(names, key=lambda name: int((re.search(r"\d+$", name) or ["0"])[0]))


def missing(topology: Topology, nodes: Iterable[Mapping[str, Any]]) -> list[NodePatch]:
    """Patches that make these Node objects look as the topology says; [] when they already do.

    A kubelet that registers again forgets devices it has no plugin for, so this is asked on every ``up``.
    """
    workers = {node["metadata"]["name"]: node for node in nodes if not is_control_plane(node)}
    patches = []
    for name, wanted in zip(worker_order(workers), topology.workers(), strict=True):
        labels = workers[name]["metadata"].get("labels", {})
        status = workers[name]["status"]
        patch = NodePatch(
            name,
            {key: value for key, value in wanted.labels.items() if labels.get(key) != value},
            {
                resource: str(count)
                for resource, count in wanted.capacity.items()
                if {status[kind].get(resource) for kind in ("capacity", "allocatable")} != {str(count)}
            },
        )
        if patch.labels or patch.capacity:
            patches.append(patch)
    return patches


def is_control_plane(node: Mapping[str, Any]) -> bool:
    """Whether a Node object is the control plane."""
    return "node-role.kubernetes.io/control-plane" in node["metadata"].get("labels", {})
