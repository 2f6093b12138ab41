"""Everything one reconcile knows, gathered before anything is decided.

Time, randomness, probe results and file contents enter the pure rooms here and nowhere else. Children
come from an authoritative LIST, so a child that is not in the snapshot does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moe_operator.api.intent import Ack
from moe_operator.api.manifest import Manifest, StageProgress
from moe_operator.api.policy import OperatorPolicy
from moe_operator.hardware.nodes import GpuNode
from moe_operator.reconcile.actions import Obj


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes and who uses their GPUs; gathered only when a placement has to be found.

    ``taken``: node name → GPUs requested by non-terminal pods of all owners.
    ``promised``: node name → GPUs of placements on record (any MoEDeployment) whose pods are not bound yet.
    Pods and placements of the MoEDeployment at hand are included.
    """

    nodes: tuple[GpuNode, ...]
    taken: Mapping[str, int] = field(default_factory=dict)
    promised: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What all MoEDeployments share when files are brought to nodes; gathered only while that goes on.

    Everything is cluster-wide and from LISTs: who pulls, who frees, who keeps what on which node.
    """

    nodes: Mapping[str, str] = field(default_factory=dict)  # node name → UID
    jobs: tuple[Obj, ...] = ()  # stagers, collectors and scrubbers
    deployments: tuple[Obj, ...] = ()
    engine_pods: tuple[Obj, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaderProbe:
    """What the leader of a group answered just now; None = not asked."""

    healthy: bool | None = None  # GET /health
    served_models: tuple[str, ...] | None = None  # ids of GET /v1/models
    completion: str | None = None  # text of a short completion
    error: str = ""  # what went wrong, in the engine's words
    running: int | None = None  # requests in flight


@dataclass(frozen=True, slots=True)
class ResolverProbe:
    """What the resolver's progress port answered: the manifest, or how far it is."""

    manifest: Manifest | None = None
    progress: StageProgress | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class GatewayProbe:
    """What one gateway pod's agent answered; ack None = no answer."""

    pod: str
    ack: Ack | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One MoEDeployment and its world at ``now``."""

    now: float  # seconds since the epoch
    policy: OperatorPolicy
    object: Obj  # the MoEDeployment as the API server returned it
    pods: tuple[Obj, ...] = ()  # every pod that carries the deployment label
    # kind → objects with the label; a kind that the API server does not serve is not in it
    children: Mapping[str, tuple[Obj, ...]] = field(default_factory=dict)
    # kind → names that other people's objects have, for kinds that a cluster may lack
    taken: Mapping[str, frozenset[str]] = field(default_factory=dict)
    namespace_terminating: bool = False
    cluster: Cluster | None = None
    fleet: Fleet | None = None
    complaints: Mapping[str, str] = field(default_factory=dict)  # pod uid → what its kubelet warned of last
    resolver: ResolverProbe | None = None
    stagers: Mapping[str, StageProgress] = field(default_factory=dict)  # pod name → its stager's progress
    leaders: Mapping[str, LeaderProbe] = field(default_factory=dict)  # pod name → probe
    gateways: tuple[GatewayProbe, ...] = ()
    last_error: str = ""  # why the previous pass stopped, in the API server's words
    operator_version: str = ""
    entropy: str = ""  # 256 random bits as hex, new in every snapshot

    @property
    def name(self) -> str:
        """metadata.name."""
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """metadata.namespace."""
        return str(self.object["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """metadata.uid."""
        return str(self.object["metadata"]["uid"])

    @property
    def generation(self) -> int:
        """metadata.generation: what drives; status.observedGeneration reports."""
        return int(self.object["metadata"].get("generation", 0))

    @property
    def deleting(self) -> bool:
        """Whether somebody asked for this MoEDeployment to go."""
        return bool(self.object["metadata"].get("deletionTimestamp"))

    def child(self, kind: str, name: str) -> Obj | None:
        """The child of that kind and name, or None when it does not exist."""
        return next((c for c in self.children.get(kind, ()) if c["metadata"]["name"] == name), None)


@dataclass(frozen=True, slots=True)
class Wants:
    """Which IO the next decision needs beyond the children, computed from them (see ``wants.py``)."""

    cluster: bool = False
    fleet: bool = False
    complaints: frozenset[str] = frozenset()  # uids of pods that wait without saying why
    resolver_pod_ip: str = ""
    stager_pods: Mapping[str, str] = field(default_factory=dict)  # pod name → IP
    leaders: Mapping[str, str] = field(default_factory=dict)  # pod name → IP: health and running requests
    completions: Mapping[str, str] = field(
        default_factory=dict
    )  # of those: pod name → model to complete with
    gateway_pods: Mapping[str, str] = field(default_factory=dict)  # pod name → IP
    ack_generation: int = -1  # wait (bounded) for this intent generation

    @property
    def shared(self) -> bool:
        """Whether the decision depends on what other MoEDeployments claim, too."""
        return self.cluster or self.fleet
