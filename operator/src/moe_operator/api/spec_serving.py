"""The part of a MoEDeployment that describes how clients reach it and how revisions follow each other.

``gateway`` is pushed to the gateways, ``rollout`` and ``schedule`` are read at the next reconcile; none of
it restarts an engine.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moe_operator.api.fields import (
    SET_LIST,
    Annotations,
    ApiModel,
    DnsLabel,
    LocalReference,
    ObjectName,
    Percent,
    Rule,
    map_list,
)

Step = Annotated[int, Field(ge=1, le=100)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Hostname = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
KeyId = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]
KeyIdOrAny = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^(\*|[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$")
]
HeaderName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-z0-9]([-a-z0-9_]*[a-z0-9])?$")]
DEFAULT_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/models",
    "/health",
    "/version",
    "/tokenize",
    "/detokenize",
)


class GatewayService(ApiModel):
    """The stable Service in front of the gateway."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service."""
    port: Port = 80
    """Port that clients use."""
    annotations: Annotations = Field(default={})
    """Annotations of the Service, for cloud load balancers."""


class GatewayAuth(ApiModel):
    """API keys."""

    secret_ref: LocalReference
    """Secret that maps key ids to SHA-256 sums of API keys, in this namespace."""
    forward_authorization: bool = False
    """Send a client's key on to the engine, which gets to see no key otherwise."""


class GatewayTls(ApiModel):
    """HTTPS, and client certificates where wanted."""

    secret_ref: LocalReference
    """Certificate and key (a kubernetes.io/tls Secret), in this namespace. A renewed one is taken up without
    a restart."""
    client_ca_ref: LocalReference | None = None
    """Secret whose `ca.crt` signs the certificates that clients must show. Default: none is asked for."""


class KeyLimits(ApiModel):
    """Limits of one key, in place of those for every key."""

    key: KeyId
    """Id of the key, as in the Secret."""
    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests per minute."""
    concurrent: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Requests in flight."""
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Tokens of prompts and answers per minute."""


class Limits(ApiModel):
    """What one key and one request may ask for; what has no default and is omitted is not limited."""

    requests_per_minute_per_key: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests per minute and key."""
    concurrent_per_key: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Requests in flight per key."""
    tokens_per_minute_per_key: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Tokens of prompts and answers per minute and key, counted from the usage that engines report."""
    per_key: Annotated[list[KeyLimits], Field(max_length=256), map_list("key")] = Field(default=[])
    """Keys with limits of their own."""
    max_request_bytes: Annotated[int, Field(ge=1024, le=1_073_741_824)] = 67_108_864
    """Size of a request body, in bytes."""
    max_header_bytes: Annotated[int, Field(ge=1024, le=65_536)] = 65_536
    """Size of all request headers, in bytes."""
    max_output_tokens: Annotated[int, Field(ge=1, le=33_554_432)] | None = None
    """Tokens that one answer may ask for."""
    max_context_tokens: Annotated[int, Field(ge=1, le=33_554_432)] | None = None
    """Tokens of prompt plus answer of one request; the prompt's are estimated from its bytes."""
    max_choices: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Answers that one request may ask for (`n`, `best_of`)."""
    bytes_per_token: Annotated[int, Field(ge=1, le=64)] = 4
    """Bytes of a request body taken for one token wherever the gateway estimates a prompt."""


class LongContext(ApiModel):
    """A pool of their own for requests with long prompts, so that they cannot fill the engines."""

    threshold_tokens: Annotated[int, Field(ge=1, le=33_554_432)]
    """Estimated prompt tokens above which a request counts as long."""
    max_concurrent: Annotated[int, Field(ge=1, le=100_000)]
    """Long requests in flight in each gateway pod; further ones get 429."""


class PreviewAccess(ApiModel):
    """Who may ask a new revision before it takes traffic, with the header `x-moe-revision-preview`."""

    allowed_keys: Annotated[list[KeyIdOrAny], Field(max_length=64), SET_LIST] = Field(default=[])
    """Ids of keys; `*` is every client that may connect."""


class Otlp(ApiModel):
    """Where request traces go."""

    endpoint: Annotated[str, Field(min_length=3, max_length=261, pattern=r"^[A-Za-z0-9.-]+:[0-9]{1,5}$")]
    """`host:port` of a collector that takes OTLP over gRPC."""


class Queue(ApiModel):
    """What happens to requests while no engine can take them."""

    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = 256
    """Requests that may wait in each gateway pod; further ones get 503 with Retry-After."""
    hold_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """How long a request may wait."""


class GatewayTimeouts(ApiModel):
    """Idle limits; a stream as a whole may last for hours."""

    first_byte_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Silence allowed before the first byte of an answer: a long prefill takes minutes."""
    idle_seconds: Annotated[int, Field(ge=1, le=86_400)] = 120
    """Silence allowed inside a stream."""


class Audit(ApiModel):
    """One JSON line per request: key id, path, status, tokens, timings, revision. Never a body."""

    enabled: bool = True
    """Write the lines to the gateway's standard output."""


class HttpRouteRef(ApiModel):
    """A Gateway that the managed HTTPRoute attaches to."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: DnsLabel | None = None
    """Namespace of the Gateway. Default: this one."""
    section_name: ObjectName | None = None
    """Listener of the Gateway. Default: all that fit."""
    hostnames: Annotated[
        list[
            Annotated[
                str, Field(min_length=1, max_length=253, pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
            ]
        ],
        Field(max_length=16),
        SET_LIST,
    ] = Field(default=[])
    """Hostnames of the route. Default: the listener's."""


class EndpointPicker(ApiModel):
    """Who tells a gateway which leader of an InferencePool a request goes to."""

    name: DnsLabel
    """Name of its Service, in this namespace."""
    port: Port = 9002
    """Port of the Service."""
    failure_mode: Literal["FailOpen", "FailClose"] = "FailOpen"
    """What gateways do while it does not answer: send to any leader of the pool, or to none."""


class InferencePoolRef(ApiModel):
    """The managed InferencePool (Gateway API inference extension), to which HTTPRoutes of yours lead."""

    name: ObjectName
    """Name of the InferencePool, in this namespace; nobody else's may have it."""
    endpoint_picker: EndpointPicker
    """Its endpoint picker, which you run; it must serve no other pool."""


class External(ApiModel):
    """A gateway that you bring instead of the managed one; exactly one member is given."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "httpRouteRef",
            "give exactly one of httpRouteRef, inferencePool",
            "has(self.httpRouteRef) != has(self.inferencePool)",
            lambda m: (m.http_route_ref is None) != (m.inference_pool is None),
        ),
    )

    http_route_ref: HttpRouteRef | None = None
    """Write an HTTPRoute with one weighted backend per revision."""
    inference_pool: InferencePoolRef | None = None
    """Write an InferencePool of the leaders that serve."""


class Gateway(ApiModel):
    """How clients reach the model."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "external",
            "does not go with tls or auth, which belong to the managed gateway",
            "!has(self.external) || (!has(self.tls) && !has(self.auth))",
            lambda m: m.external is None or (m.tls is None and m.auth is None),
        ),
    )

    replicas: Annotated[int, Field(ge=1, le=32)] = 2
    """Gateway pods."""
    service: GatewayService = GatewayService()
    """The stable Service in front of them."""
    tls: GatewayTls | None = None
    """HTTPS. Default: plain HTTP inside the cluster."""
    auth: GatewayAuth | None = None
    """API keys that clients must show. Default: open inside the cluster, said in a condition."""
    limits: Limits = Limits()
    """Limits per key and request."""
    queue: Queue = Queue()
    """Waiting while no engine can take a request."""
    long_context: LongContext | None = None
    """A pool of their own for long prompts. Default: none."""
    affinity_header: HeaderName | None = None
    """Requests with an equal value of this header (lower case) go to the same engine while it serves, which
    keeps its prefix cache warm. Default: the engine with the fewest requests."""
    preview: PreviewAccess = PreviewAccess()
    """Who may ask a new revision before it takes traffic."""
    timeouts: GatewayTimeouts = GatewayTimeouts()
    """Idle limits of requests and streams."""
    allowed_paths: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256, pattern=r"^/[A-Za-z0-9._~/-]*$")]],
        Field(min_length=1, max_length=64),
        SET_LIST,
    ] = Field(default=list(DEFAULT_PATHS))
    """Paths that pass, exactly as written; everything else is 404."""
    allowed_sources: Annotated[
        list[Annotated[str, Field(min_length=3, max_length=43, pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]],
        Field(max_length=64),
        SET_LIST,
    ] = Field(default=[])
    """Client networks that may connect, as CIDRs. Default: all."""
    audit: Audit = Audit()
    """The request log."""
    otlp: Otlp | None = None
    """Export of request traces. Default: none; W3C trace context is passed on either way."""
    external: External | None = None
    """Bring your own gateway instead of the managed one."""


class SmokeGate(ApiModel):
    """Does the new revision answer? Short, long and concurrent prompts with fixed seeds."""

    enabled: bool = True
    """Ask before any traffic moves."""
    long_prompt_percent: Annotated[int, Field(ge=0, le=100)] = 50
    """Length of the long prompt, in percent of the longest context; 0 leaves it out."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """Prompts asked at the same time."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Time for all of them."""


class MemoryGate(ApiModel):
    """Is GPU memory even over the ranks? A bad split shows here first."""

    enabled: bool = True
    """Compare the ranks before any traffic moves."""
    max_spread_percent: Annotated[int, Field(ge=0, le=100)] = 5
    """Most minus least memory used, in percent of a GPU's memory."""


class PerformanceGate(ApiModel):
    """Is the new revision as fast as the one before, at the same load?"""

    enabled: bool = True
    """Compare with the stored baseline; the first revision only records one."""
    max_latency_increase_percent: Annotated[int, Field(ge=0, le=1000)] = 15
    """Growth of TTFT and TPOT, p50 and p95, that still passes."""
    max_throughput_decrease_percent: Annotated[int, Field(ge=0, le=100)] = 10
    """Loss of tokens per second that still passes."""


class ErrorsGate(ApiModel):
    """Does the new revision fail more requests than the old one in the same window?"""

    enabled: bool = True
    """Compare while traffic moves."""
    max_increase_percent: Percent = "0.5"
    """Growth of the share of failed requests that still passes, in percentage points."""
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Requests needed for a verdict; with fewer the step is held, never passed."""


class Gates(ApiModel):
    """Checks that a new revision has to pass."""

    smoke: SmokeGate = SmokeGate()
    """Answers."""
    memory: MemoryGate = MemoryGate()
    """Evenness of GPU memory."""
    performance: PerformanceGate = PerformanceGate()
    """Latency and throughput against the baseline."""
    errors: ErrorsGate = ErrorsGate()
    """Share of failed requests against the old revision."""


_ASCENDING = (
    "[0, 1, 2, 3, 4, 5, 6, 7, 8].all(i, i + 1 >= size(self.steps) || self.steps[i] < self.steps[i + 1])"
)


class Rollout(ApiModel):
    """How one revision follows another."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "allowDowntime",
            "must be true for strategy Recreate: nothing serves while the group is replaced",
            "self.strategy != 'Recreate' || self.allowDowntime",
            lambda m: m.strategy != "Recreate" or m.allow_downtime,
        ),
        Rule(
            "steps",
            "must grow and end in 100",
            f"self.steps[size(self.steps) - 1] == 100 && {_ASCENDING}",
            lambda m: m.steps[-1] == 100 and all(a < b for a, b in zip(m.steps, m.steps[1:], strict=False)),
        ),
    )

    strategy: Literal["Auto", "Surge", "RollingReplica", "Recreate"] = "Auto"
    """`Surge`: the new revision beside the old one. `RollingReplica`: replica by replica on the same nodes.
    `Recreate`: old first, then new. `Auto`: the first of these that the free GPUs allow."""
    allow_downtime: bool = False
    """Consent to the gap that `Recreate` makes."""
    promotion: Literal["Auto", "Manual"] = "Auto"
    """`Manual` waits for the annotation `moe-operator.io/promote` before any traffic moves."""
    steps: Annotated[list[Step], Field(min_length=1, max_length=10)] = Field(default=[1, 10, 50, 100])
    """Traffic of the new revision per step, in percent: growing, ending in 100."""
    hold_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60
    """How long each step is watched."""
    soak_seconds: Annotated[int, Field(ge=0, le=604_800)] = 1800
    """How long the old revision stands by after the last step."""
    drain_seconds: Annotated[int, Field(ge=0, le=86_400)] = 600
    """How long running requests of the old revision may take to end."""
    gates: Gates = Gates()
    """Checks that the new revision has to pass."""
    paused: bool = False
    """Stop where the rollout stands."""
    failed_revision_seconds: Annotated[int, Field(ge=0, le=604_800)] = 0
    """How long a failed new revision is kept for debugging."""


_CRON_FIELD = r"[0-9A-Za-z*/,?-]+"


class ScheduleEntry(ApiModel):
    """Replicas from a moment on."""

    cron: Annotated[
        str, Field(min_length=9, max_length=128, pattern=rf"^{_CRON_FIELD}( {_CRON_FIELD}){{4}}$")
    ]
    """When, as five cron fields."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")] = "Etc/UTC"
    """Time zone of the cron fields, by its IANA name."""
    replicas: Annotated[int, Field(ge=0, le=256)]
    """Replicas from then on."""
