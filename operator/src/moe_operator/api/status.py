"""What the operator reports about a MoEDeployment.

Status is a report, with one exception: facts that cannot be observed again (placement, restarts counted,
rollout start, commands seen) are written here before the act they justify and read back on the next pass.
Every member has a default, so a status written by an older operator always parses. Times are RFC 3339 in
UTC; sizes are bytes unless the name says otherwise; real numbers travel as decimal strings.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moe_operator.api.fields import ApiModel, map_list

Verdict = Literal["Fits", "Tight", "Refused"]
GroupPhase = Literal["Pending", "Staging", "Starting", "Ready", "Restarting", "Draining", "Failed"]
StagingPhase = Literal[
    "Pending",
    "Waiting",
    "Resolved",
    "Reserving",
    "Pulling",
    "Verifying",
    "Publishing",
    "Ready",
    "Retrying",
    "Blocked",
    "Failed",
]
RolloutPhase = Literal[
    "Stable",
    "Preflight",
    "Staging",
    "Starting",
    "Verifying",
    "AwaitingPromotion",
    "Shifting",
    "Soaking",
    "Draining",
    "Retiring",
    "RollingBack",
    "RolledBack",
    "Failed",
    "Aborted",
    "Superseded",
]
Strategy = Literal["Surge", "RollingReplica", "Recreate"]

Time = Annotated[str, Field(max_length=40)]
Hash = Annotated[str, Field(max_length=64)]
Name = Annotated[str, Field(max_length=253)]
Word = Annotated[str, Field(max_length=64)]
Number = Annotated[str, Field(max_length=32)]
Message = Annotated[str, Field(max_length=32_768)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Size = Annotated[int, Field(ge=0, le=9_007_199_254_740_991)]


class Condition(ApiModel):
    """One aspect of the deployment, as of one generation of its spec."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What this is about; unique in the list."""
    status: Literal["True", "False", "Unknown"] = "Unknown"
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=1024)] = "Pending"
    """Why, as one word of a fixed set; see the table of reasons."""
    message: Message = ""
    """Why, for people: numbers, names and the next step."""
    observed_generation: Annotated[int, Field(ge=0, le=9_007_199_254_740_991)] | None = None
    """Generation of the spec that this is about."""
    last_transition_time: Time | None = None
    """When `status` last changed."""


class RankRow(ApiModel):
    """One line of the memory table of a rank."""

    name: Name = ""
    """What takes the memory."""
    gibibytes: Number = ""
    """How much, in GiB."""


class LayoutStatus(ApiModel):
    """The layout that was planned."""

    tensor: Count = 1
    """Tensor-parallel size."""
    pipeline: Count = 1
    """Pipeline-parallel size."""
    data: Count = 1
    """Data-parallel size."""
    expert: bool = False
    """Whether experts are spread over ranks."""
    decode_context: Count = 1
    """Decode-context-parallel size."""
    nodes: Count = 1
    """Nodes per replica."""
    gpus_per_node: Count = 1
    """GPUs per node."""
    summary: Annotated[str, Field(max_length=128)] = ""
    """The layout in one word, such as `TP8·DP4·EP`."""


class RefusalStatus(ApiModel):
    """Why no plan was made, and what would help."""

    code: Word = ""
    """One word of a fixed set."""
    message: Message = ""
    """What does not fit, with numbers, and the engine's own error text where it has one."""
    fix: Message = ""
    """What to change."""


class PlanStatus(ApiModel):
    """What the planner concluded for the current spec."""

    verdict: Verdict | None = None
    """Whether the model fits."""
    layout: LayoutStatus | None = None
    """How it is spread over GPUs."""
    per_rank: Annotated[list[RankRow], Field(max_length=64)] = Field(default=[])
    """Memory of the fullest rank, line by line."""
    max_model_len: Count | None = None
    """Longest prompt plus answer that is served, in tokens."""
    concurrency: Count | None = None
    """Requests of that length that fit at the same time."""
    assumptions: Annotated[list[Message], Field(max_length=32)] = Field(default=[])
    """What was assumed because it could not be known."""
    refusals: Annotated[list[RefusalStatus], Field(max_length=32)] = Field(default=[])
    """Why no plan was made."""


class RankPlacement(ApiModel):
    """Which node holds a rank."""

    rank: Count = 0
    """Rank of the pod inside its group; 0 leads."""
    node: Name = ""
    """Node that the pod is pinned to."""
    node_uid: Annotated[str, Field(max_length=64, alias="nodeUID")] = ""
    """UID of that node: a new node of the same name is another node."""


class PlacementStatus(ApiModel):
    """Where one replica of one revision was put; written before any of its pods exists."""

    revision: Hash = ""
    """Revision of the replica."""
    replica: Count = 0
    """Number of the replica."""
    domain: Annotated[str, Field(max_length=317)] = ""
    """NVLink or fabric domain that holds it."""
    gpus_per_node: Count = 0
    """GPUs that each of its ranks takes; promised to it until its pods hold them."""
    ranks: Annotated[list[RankPlacement], Field(max_length=1024)] = Field(default=[])
    """Node of each rank."""


class StagingStatus(ApiModel):
    """How far one node is with the model's files."""

    node: Name = ""
    """The node."""
    phase: StagingPhase = "Pending"
    """What the stager is doing. `Waiting`: for its turn at the source. `Retrying` and `Blocked`: it stopped
    and is tried again by itself. `Failed`: it is not tried again until somebody asks."""
    bytes_total: Size = 0
    """Bytes that the node needs."""
    bytes_done: Size = 0
    """Bytes of them that are verified on disk."""
    bytes_reused: Size = 0
    """Bytes of them that were already there."""
    bytes_from_peers: Size = 0
    """Bytes of them that came from other nodes instead of the source."""
    rate_bytes_per_second: Size = 0
    """Present rate."""
    eta_seconds: Count | None = None
    """Seconds left at that rate."""
    reason: Word = ""
    """Why it stands still, as one word."""
    message: Message = ""
    """Why it stands still, for people."""
    seen_at: Time | None = None
    """When these numbers were taken; progress is written at most every ten seconds and every percent."""


class StoreStatus(ApiModel):
    """What this deployment has put into one node's store; written before the first byte."""

    node: Name = ""
    """The node."""
    node_uid: Annotated[str, Field(max_length=64, alias="nodeUID")] = ""
    """UID of that node: a new node of the same name has another disk."""
    cache_class: Word = ""
    """Cache class of the store."""
    views: Annotated[list[Hash], Field(max_length=64)] = Field(default=[])
    """Sets of files, by digest."""
    filled_at: Time | None = None
    """When the first of them was put there."""
    collected_at: Time | None = None
    """When what nobody needs was last freed."""
    message: Message = ""
    """Why it could not be freed."""
    scrubbed_at: Time | None = None
    """When a scrub last held every file against its checksum."""
    scrub_message: Message = ""
    """Why a scrub could not do so."""
    corrupt: Annotated[list[Hash], Field(max_length=16)] = Field(default=[])
    """Files by digest that a scrub found to be altered, the first of them; until they were fetched again."""
    corrupt_bytes: Size = 0
    """Size of all of them."""
    corrupt_at: Time | None = None
    """When they were found."""


class BootTimeline(ApiModel):
    """When a group reached each step of its start."""

    staged: Time | None = None
    """Files verified on every node."""
    started: Time | None = None
    """Engine containers running on every node."""
    rendezvous: Time | None = None
    """All ranks met."""
    weights_loaded: Time | None = None
    """Weights on every GPU."""
    first_token: Time | None = None
    """First token of a real completion."""


class GroupStatus(ApiModel):
    """One serving group: one replica of one revision."""

    revision: Hash = ""
    """Revision of the group."""
    replica: Count = 0
    """Number of the replica."""
    phase: GroupPhase = "Pending"
    """Where the group is in its life."""
    ready_ranks: Count = 0
    """Pods of the group that are ready."""
    restarts: Count = 0
    """Restarts of the group inside the present window."""
    incarnation: Count = 0
    """Lives of the group so far; all pods of one life carry the same number."""
    restarted_at: Time | None = None
    """When the last restart was decided."""
    window_started_at: Time | None = None
    """When the present window of restarts began."""
    draining_since: Time | None = None
    """When the group was told to take no new requests."""
    verified: bool = False
    """Whether this life of the group has answered a completion."""
    boot_timeline: BootTimeline = BootTimeline()
    """When it reached each step of its start."""
    heartbeat: Time | None = None
    """When the engine last made progress."""
    message: Message = ""
    """What holds it up."""


class WeightsStatus(ApiModel):
    """Traffic of the new revision, in percent."""

    desired: Annotated[int, Field(ge=0, le=100)] | None = None
    """What the operator asked the gateways for."""
    acked: Annotated[int, Field(ge=0, le=100)] | None = None
    """What every gateway pod runs."""


class GateStatus(ApiModel):
    """One check of a new revision."""

    name: Word = ""
    """Which check."""
    phase: Word = ""
    """Phase of the rollout it ran in."""
    result: Literal["Pending", "Pass", "Fail", "Inconclusive"] = "Pending"
    """Its verdict; an inconclusive one never passes."""
    value: Number = ""
    """What was measured."""
    threshold: Number = ""
    """What would still pass."""
    baseline: Number = ""
    """What it was compared with."""
    at: Time | None = None
    """When."""


class RolloutStatus(ApiModel):
    """How far the present change of revision is."""

    phase: RolloutPhase = "Stable"
    """Where the rollout stands."""
    strategy: Strategy | None = None
    """How it is done."""
    reason: Word = ""
    """Why it is in this phase, as one word."""
    message: Message = ""
    """Why it is in this phase, for people."""
    from_revision: Hash = ""
    """Revision that served when it began."""
    to_revision: Hash = ""
    """Revision that is to serve."""
    step: Count = 0
    """Step of `spec.rollout.steps`, counted from 0."""
    weights: WeightsStatus = WeightsStatus()
    """Traffic of the new revision."""
    started_at: Time | None = None
    """When it began."""
    deadline: Time | None = None
    """When the present phase counts as failed."""
    gates: Annotated[list[GateStatus], Field(max_length=32)] = Field(default=[])
    """Checks and their verdicts."""
    last_command: Annotated[str, Field(max_length=512)] = ""
    """Newest command annotation that was acted on, as `verb=value`."""


class GatewayStatus(ApiModel):
    """The gateway that clients reach."""

    replicas: Count = 0
    """Gateway pods."""
    ready_replicas: Count = 0
    """Gateway pods that are ready."""
    endpoint: Annotated[str, Field(max_length=512)] = ""
    """Base URL inside the cluster."""
    generation: Annotated[int, Field(ge=-1, le=9_007_199_254_740_991)] = 0
    """Newest configuration the operator wrote."""
    acked_generation: Annotated[int, Field(ge=-1, le=9_007_199_254_740_991)] = -1
    """Oldest configuration that any gateway pod still runs; -1 = one runs none."""
    keys_digest: Annotated[str, Field(max_length=64)] = ""
    """Digest of the set of API keys that every gateway pod goes by; empty while they differ."""


class Performance(ApiModel):
    """What a revision measured at its best-known load."""

    ttft_p50_milliseconds: Number = ""
    """Time to first token, median."""
    ttft_p95_milliseconds: Number = ""
    """Time to first token, 95th percentile."""
    tpot_p50_milliseconds: Number = ""
    """Time per output token, median."""
    tpot_p95_milliseconds: Number = ""
    """Time per output token, 95th percentile."""
    tokens_per_second: Number = ""
    """Output tokens per second of the whole revision."""


class HistoryEntry(ApiModel):
    """One change of revision that ended."""

    revision: Hash = ""
    """Revision that was to serve."""
    from_: Annotated[str, Field(max_length=64, alias="from")] = ""
    """Revision that served before."""
    strategy: Strategy | None = None
    """How it was done."""
    result: Literal["Succeeded", "RolledBack", "Failed", "Aborted", "Superseded"] | None = None
    """How it ended."""
    reason: Word = ""
    """Why it ended so, as one word."""
    actor: Name = ""
    """Who changed the spec: field manager or command annotation."""
    started_at: Time | None = None
    """When it began."""
    finished_at: Time | None = None
    """When it ended."""
    performance_before: Performance | None = None
    """What the old revision measured."""
    performance_after: Performance | None = None
    """What the new revision measured."""
    failed_requests: Count = 0
    """Requests that failed meanwhile."""
    cut_streams: Count = 0
    """Streams that were cut meanwhile."""
    downtime_seconds: Count = 0
    """Seconds without a serving group meanwhile."""


class ManifestStatus(ApiModel):
    """Which facts of the model the plan was made from."""

    name: Name = ""
    """ConfigMap that holds them."""
    source: Annotated[str, Field(max_length=1024)] = ""
    """Source they were read from."""
    resolved: Annotated[str, Field(max_length=512)] = ""
    """Commit, digest or etag that the source's name meant then."""
    view_digest: Hash = ""
    """Name of the set of files in every node's store."""
    total_bytes: Size = 0
    """Bytes of all files."""


class Status(ApiModel):
    """What the operator last saw and did."""

    observed_generation: Annotated[int, Field(ge=0, le=9_007_199_254_740_991)] = 0
    """Generation of the spec that this report is about."""
    replicas: Count = 0
    """Serving groups that exist, for the scale subresource."""
    ready_replicas: Count = 0
    """Serving groups that serve."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the engine leaders, for the scale subresource."""
    active_revision: Hash = ""
    """Revision that serves."""
    target_revision: Hash = ""
    """Revision that the present spec asks for."""
    manifest: Annotated[ManifestStatus, Field(alias="model")] = ManifestStatus()
    """Which facts of the model the plan was made from."""
    plan: PlanStatus = PlanStatus()
    """What the planner concluded."""
    placement: Annotated[list[PlacementStatus], Field(max_length=512)] = Field(default=[])
    """Where every replica was put."""
    staging: Annotated[list[StagingStatus], Field(max_length=1024)] = Field(default=[])
    """How far each node is with the model's files."""
    stores: Annotated[list[StoreStatus], Field(max_length=1024)] = Field(default=[])
    """What this deployment keeps on each node's disk."""
    groups: Annotated[list[GroupStatus], Field(max_length=512)] = Field(default=[])
    """Every serving group."""
    rollout: RolloutStatus = RolloutStatus()
    """How far the present change of revision is."""
    gateway: GatewayStatus = GatewayStatus()
    """The gateway that clients reach."""
    history: Annotated[list[HistoryEntry], Field(max_length=10)] = Field(default=[])
    """The last changes of revision, newest first."""
    conditions: Annotated[list[Condition], Field(max_length=24), map_list("type")] = Field(default=[])
    """Every aspect of the deployment, Unknown until known."""

    def condition(self, type_: str) -> Condition | None:
        """The condition of that type."""
        return next((c for c in self.conditions if c.type == type_), None)
