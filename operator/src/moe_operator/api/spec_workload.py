"""The part of a MoEDeployment that says where its engines run, with what, and how they are kept alive.

A change to anything here makes a new revision, except ``health``, ``restart`` and ``disruption``, which
are read at the next reconcile.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from moe_operator.api.fields import (
    NULL_IS_ABSENT,
    Annotations,
    ApiModel,
    Bytes,
    Cpu,
    DnsLabel,
    LabelValue,
    ObjectName,
    Passthrough,
    QualifiedName,
    Rule,
    StringMap,
    map_list,
)


class ResourceClaim(ApiModel):
    """A DRA claim that every engine pod gets, such as an IMEX channel."""

    name: DnsLabel
    """Name of the claim inside the pod."""
    resource_claim_template_name: ObjectName
    """ResourceClaimTemplate in this namespace."""


class Accelerators(ApiModel):
    """Which GPUs a replica needs, and how many."""

    product: LabelValue
    """GPU product as the node label `nvidia.com/gpu.product` says it, or a preset of the operator's
    configuration."""
    nodes: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Nodes per replica. Default: the smallest number that fits."""
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    """GPUs taken on each node. Default: all that the product's nodes have."""
    resource_name: QualifiedName = "nvidia.com/gpu"
    """Extended resource that counts the GPUs."""
    extra_resources: Annotated[dict[str, Bytes], Field(max_length=16), NULL_IS_ABSENT] = Field(default={})
    """Further resources of every engine pod, such as `rdma/ib: "1"`."""
    claims: Annotated[list[ResourceClaim], Field(max_length=8), map_list("name")] = Field(default=[])
    """DRA resource claims of every engine pod."""


class Domain(ApiModel):
    """What counts as one NVLink domain."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "key",
            "is required for type Label and not allowed for type Node",
            "has(self.key) == (self.type == 'Label')",
            lambda m: (m.key is not None) == (m.type == "Label"),
        ),
    )

    type: Literal["Node", "Label"] = "Node"
    """`Node`: one machine is one domain (HGX). `Label`: nodes with the same label value are (NVL72)."""
    key: QualifiedName | None = None
    """Node label of the domain for type `Label`, such as `nvidia.com/gpu.clique`."""


class Toleration(ApiModel):
    """A taint that engine pods put up with."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "key",
            "is required unless operator is Exists",
            "has(self.key) || self.operator == 'Exists'",
            lambda m: m.key is not None or m.operator == "Exists",
        ),
        Rule(
            "value",
            "is not allowed with operator Exists",
            "!has(self.value) || self.operator == 'Equal'",
            lambda m: m.value is None or m.operator == "Equal",
        ),
    )

    key: QualifiedName | None = None
    """Key of the taint. Default: every taint (operator `Exists`)."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """How the key relates to the value."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Value of the taint for operator `Equal`."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Default: every effect."""
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """How long a NoExecute taint is put up with. Default: for ever."""


class Placement(ApiModel):
    """Where ranks may go."""

    domain: Domain = Domain()
    """What counts as one NVLink domain."""
    fabric_key: QualifiedName | None = None
    """Node label of the leaf, rail or pod inside which expert traffic stays close."""
    policy: Literal["Required", "Preferred"] = "Required"
    """`Required` waits for a domain that holds the whole replica; `Preferred` may span domains."""
    node_selector: StringMap = Field(default={})
    """Labels that nodes must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = Field(default=[])
    """Taints that engine pods put up with."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of engine pods."""
    scheduler_name: ObjectName | None = None
    """Scheduler of engine pods. Default: the cluster's."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of engine pods."""
    max_replans: Annotated[int, Field(ge=0, le=100)] = 3
    """How often a replica may be placed anew because a node of it was lost, before a human is asked."""


class Weights(ApiModel):
    """How a model's files reach the nodes."""

    cache_class: DnsLabel = "nvme"
    """Node-local store of the operator's configuration: its root, reserve and ownership."""
    verify: Literal["Full", "Fast"] = "Full"
    """`Full`: SHA-256 of every byte, once per node. `Fast`: size, mtime and inode of what was
    verified before."""
    selection: Literal["Whole", "PerRank"] = "Whole"
    """`Whole` model on every node, or only the files that a node's ranks need."""
    max_concurrent_nodes: Annotated[int, Field(ge=1, le=1024)] = 2
    """Nodes that pull from the source at the same time."""
    bandwidth_per_node: Bytes | None = None
    """Bytes per second that one node may pull. Default: no limit."""
    retain_revisions: Annotated[int, Field(ge=0, le=10)] = 1
    """Older revisions whose files stay on disk for a way back."""


class Startup(ApiModel):
    """How long a group may take until it serves."""

    timeout_seconds: Annotated[int, Field(ge=1, le=172_800)] = 7200
    """From the first container start to ready; every probe and every time limit of the engine follows it."""


class Resources(ApiModel):
    """Resources of every engine pod beside its GPUs."""

    cpu: Cpu | None = None
    """CPU request, such as `"64"`. Default: none."""
    memory: Bytes | None = None
    """Memory request and limit, such as `512Gi`. Default: none."""
    ephemeral_storage: Bytes | None = None
    """Ephemeral storage request and limit. Default: none."""
    shared_memory: Bytes = "64Gi"
    """Size limit of the memory-backed `/dev/shm`."""


class Rdma(ApiModel):
    """Which RDMA devices the collectives use."""

    hcas: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[=^]?[A-Za-z0-9_.:-]+$")]],
        Field(max_length=32),
    ] = Field(default=[])
    """Devices, as NCCL_IB_HCA takes them. Default: the library's choice."""
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    """GID index for RoCE. Default: the library's choice."""


Interface = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[=^]?[A-Za-z0-9_.@:,-]+$")]


class Network(ApiModel):
    """Network of the engine pods."""

    host_network: bool = False
    """Use the node's network. Needs the operator's configuration to allow host access; then a node holds one
    group at most."""
    interface: (
        Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[=^]?[A-Za-z0-9_.@:,-]+$")] | None
    ) = None
    """Interface of the collectives' sockets (NCCL, GLOO, NVSHMEM). Default: that of the pod's IP."""
    rdma: Rdma | None = None
    """RDMA devices. Default: the library's choice."""
    preflight: bool = True
    """Check reachability and bandwidth between the nodes before the engines start."""


class PodVolume(ApiModel):
    """A volume of the engine pods, as in a pod's spec."""

    model_config = ConfigDict(extra="allow")

    name: DnsLabel
    """Name of the volume."""


class PodVolumeMount(ApiModel):
    """A mount in the engine container, as in a pod's spec."""

    model_config = ConfigDict(extra="allow")

    name: DnsLabel
    """Name of the volume."""
    mount_path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/[^:]*$")]
    """Where the volume appears."""


class PodContainer(ApiModel):
    """A container beside the engine, as in a pod's spec."""

    model_config = ConfigDict(extra="allow")

    name: DnsLabel
    """Name of the container."""
    image: Annotated[str, Field(min_length=1, max_length=512)]
    """Image of the container."""


class PodOverlay(ApiModel):
    """What engine pods carry besides; admitted by the operator's configuration."""

    labels: StringMap = Field(default={})
    """Labels of engine pods; the operator's own win."""
    annotations: Annotations = Field(default={})
    """Annotations of engine pods; the operator's own win."""
    service_account_name: ObjectName | None = None
    """ServiceAccount of engine pods; its token is not mounted. Default: the namespace's default."""
    security_context: Passthrough = Field(default={})
    """securityContext of the engine container, as in a pod's spec."""
    volumes: Annotated[list[PodVolume], Field(max_length=32), map_list("name")] = Field(default=[])
    """Further volumes."""
    volume_mounts: Annotated[list[PodVolumeMount], Field(max_length=64)] = Field(default=[])
    """Further mounts of the engine container."""
    init_containers: Annotated[list[PodContainer], Field(max_length=8), map_list("name")] = Field(default=[])
    """Containers that run before the engine, after the weights are staged."""
    sidecars: Annotated[list[PodContainer], Field(max_length=8), map_list("name")] = Field(default=[])
    """Containers that run beside the engine for its whole life."""


class Health(ApiModel):
    """When a serving group counts as sick."""

    probe_seconds: Annotated[int, Field(ge=1, le=300)] = 5
    """Seconds between probes of the leader."""
    heartbeat_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    """With requests running and no token for so long, the engine counts as hung."""
    memory_skew: Bytes = "10Gi"
    """GPU memory of a rank above the mean of its group that counts as a bad split."""


class Restart(ApiModel):
    """How often a broken group is recreated. A rank never restarts alone."""

    max_group_restarts: Annotated[int, Field(ge=0, le=1000)] = 5
    """Restarts inside the window before the group counts as failed."""
    window_seconds: Annotated[int, Field(ge=1, le=604_800)] = 3600
    """Length of the window."""
    backoff_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    """Wait before the first restart; doubles with each further one."""


class Disruption(ApiModel):
    """What happens when somebody drains a node."""

    policy: Literal["Block", "MigrateOnCordon", "Allow"] = "MigrateOnCordon"
    """`Block` evictions, move the group when its node is cordoned, or `Allow` evictions."""
