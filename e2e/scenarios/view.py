"""A MoEDeployment at one moment, as the questions that somebody who waits for it asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from moe_operator.api.status import PlacementStatus, StagingStatus, Status
from moe_operator.runtime.kube import Obj


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that moves from 0 to ``total``; ``total`` 0 = not known yet."""

    label: str
    done: int
    total: int
    note: str

    @property
    def percent(self) -> int:
        """Whole percent that are done."""
        return 100 * self.done // self.total if self.total else 0


@dataclass(frozen=True, slots=True)
class View:
    """``generation`` is of the spec; the status may be about an older one."""

    name: str
    namespace: str
    generation: int
    status: Status

    @classmethod
    def of(cls, obj: Obj) -> Self:
        """From the object as the API server gives it."""
        meta = obj["metadata"]
        status = Status.model_validate(obj.get("status") or {})
        return cls(meta["name"], meta["namespace"], meta["generation"], status)

    @property
    def current(self) -> bool:
        """Whether the status is about the newest spec."""
        return self.status.observed_generation == self.generation

    def holds(self, kind: str) -> bool:
        """Whether a condition is True for the newest spec."""
        condition = self.status.condition(kind)
        return self.current and condition is not None and condition.status == "True"

    @property
    def stalled(self) -> str:
        """What has to be done before anything goes on; "" while it goes on by itself."""
        condition = self.status.condition("Stalled")
        if condition is None or not self.holds("Stalled"):
            return ""
        return f"{condition.reason}: {condition.message}"

    @property
    def doing(self) -> str:
        """What the operator is at, for people."""
        condition = self.status.condition("Progressing")
        return f"{condition.reason}: {condition.message}" if condition else "not seen by the operator yet"

    def planned(self) -> bool:
        """Whether the newest spec has a plan and its first replica has its nodes."""
        return self.holds("PlanAccepted") and bool(self.placements(self.status.target_revision))

    def placements(self, revision: str) -> tuple[PlacementStatus, ...]:
        """Where the replicas of a revision were put."""
        return tuple(p for p in self.status.placement if p.revision == revision)

    def nodes(self, revision: str) -> tuple[str, ...]:
        """Nodes of a revision, by replica and rank."""
        return tuple(r.node for p in self.placements(revision) for r in p.ranks)

    def staging(self, revision: str) -> tuple[StagingStatus, ...]:
        """How far the nodes of a revision are with its files."""
        nodes = self.nodes(revision)
        return tuple(entry for entry in self.status.staging if entry.node in nodes)

    def staged(self, revision: str) -> bool:
        """Whether every node of a revision holds every byte."""
        nodes = self.nodes(revision)
        ready = {entry.node for entry in self.status.staging if entry.phase == "Ready"}
        return bool(nodes) and ready.issuperset(nodes)

    def ranks_ready(self, revision: str) -> int:
        """Pods of a revision that are ready."""
        return sum(group.ready_ranks for group in self.status.groups if group.revision == revision)

    def complete(self, revision: str) -> bool:
        """Whether every rank of a revision is ready."""
        nodes = self.nodes(revision)
        return bool(nodes) and self.ranks_ready(revision) == len(nodes)

    def settled(self, revision: str) -> bool:
        """Whether the revision serves and nothing of another one is left."""
        phase = self.status.rollout.phase
        return self.holds("Ready") and self.status.active_revision == revision and phase == "Stable"

    def bars(self) -> tuple[Bar, ...]:
        """How far the newest revision is: its nodes' files, then its ranks."""
        revision = self.status.target_revision
        nodes = self.nodes(revision)
        if not nodes:
            return ()
        files = (
            Bar(f"weights on {e.node}", e.bytes_done, e.bytes_total, e.phase) for e in self.staging(revision)
        )
        phases = sorted({g.phase for g in self.status.groups if g.revision == revision})
        ranks = Bar(f"ranks of {revision}", self.ranks_ready(revision), len(nodes), ", ".join(phases))
        return (*files, ranks)
