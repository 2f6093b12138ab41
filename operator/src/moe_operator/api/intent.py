"""What the operator wants of a gateway, and what a gateway answers.

The operator writes :class:`Intent` into the ConfigMap ``{cr}-gateway`` under :data:`INTENT_KEY`; each
gateway agent watches that one object, renders Envoy's files from it and answers ``GET /ack`` with an
:class:`Ack`. Generations only grow: an agent ignores an intent older than the one it serves.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

INTENT_KEY = "intent.json"


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class Endpoint(_Wire):
    """The leader of one fully ready serving group."""

    address: str  # IP
    port: int = Field(ge=1, le=65535)
    pod: str = ""
    leaving: bool = False  # gets no new requests; those that run may end


class Colour(_Wire):
    """One revision as the gateway sees it: weight 0 = standby until all weighted hosts are down."""

    revision: str
    weight: int = Field(default=0, ge=0, le=100)
    endpoints: list[Endpoint] = Field(default_factory=list, max_length=256)


class Timeouts(_Wire):
    """Seconds; both are idle limits, never totals: a stream may last for hours."""

    first_byte_seconds: int = 600
    idle_seconds: int = 120


class Preview(_Wire):
    """A revision that only chosen clients reach, by naming it in a header; it takes no other traffic."""

    revision: str
    endpoints: list[Endpoint] = Field(default_factory=list, max_length=256)
    allowed_key_ids: list[str] = Field(default_factory=list, max_length=64)  # "*" = whoever may connect


class Limits(_Wire):
    """What one request may be, and what one key may ask for; None = not limited."""

    max_request_bytes: int = Field(default=64 << 20, ge=1)
    max_header_bytes: int = Field(default=64 << 10, ge=1, le=64 << 10)  # names and values of all headers
    max_output_tokens: int | None = None
    max_context_tokens: int | None = None  # estimated prompt plus the answer asked for
    max_choices: int | None = None  # n, best_of
    bytes_per_token: int = Field(default=4, ge=1)  # of the estimate; images in data: URLs do not count
    requests_per_minute_per_key: int | None = None
    concurrent_per_key: int | None = None
    tokens_per_minute_per_key: int | None = None


class KeyLimits(_Wire):
    """One key that has limits of its own; None = what :class:`Limits` says for every key."""

    key_id: str
    requests_per_minute: int | None = None
    concurrent: int | None = None
    tokens_per_minute: int | None = None


class Queue(_Wire):
    """The waiting room of one gateway pod, for requests that no engine can take."""

    max_waiting: int = Field(default=256, ge=0)
    hold_seconds: int = Field(default=60, ge=0)


class LongContext(_Wire):
    """Requests estimated above the threshold have a pool of their own: they cannot fill the engines."""

    threshold_tokens: int = Field(ge=1)
    max_concurrent: int = Field(ge=1)  # in flight in one gateway pod; further ones get 429


class Keys(_Wire):
    """Clients must show an API key; ``directory`` is where the kubelet mounts the Secret."""

    directory: str
    forward: bool = False  # engines get to see the client's key, too


class Tls(_Wire):
    """The listener speaks HTTPS; both are directories that the kubelet mounts Secrets into."""

    directory: str  # tls.crt, tls.key
    client_ca_directory: str = ""  # ca.crt; empty = clients need no certificate


class Intent(_Wire):
    """Everything a gateway pod needs to route; immutable once written, replaced as a whole.

    ``tls`` is told to a pod when it starts and does not change in its life: it belongs to the listener, and
    a listener that changes is drained. Switching it rolls the pods; renewing certificates does not.
    """

    schema_: Literal["moe.gateway/v1"] = Field(default="moe.gateway/v1", alias="schema")
    generation: int = Field(ge=0)
    model: str
    colours: list[Colour] = Field(default_factory=list, max_length=16)
    allowed_paths: list[str] = Field(default_factory=list, max_length=64)
    timeouts: Timeouts = Timeouts()
    drain_seconds: int = 600
    retry_after_seconds: int = 15  # said to clients while no engine serves
    preview: Preview | None = None
    limits: Limits = Limits()
    key_limits: list[KeyLimits] = Field(default_factory=list, max_length=256)
    queue: Queue = Queue()
    long_context: LongContext | None = None
    affinity_header: str = ""  # requests with an equal value go to the same engine; empty = spread by load
    allowed_sources: list[str] = Field(default_factory=list, max_length=64)  # CIDRs; empty = all
    audit: bool = True
    keys: Keys | None = None
    tls: Tls | None = None
    otlp_endpoint: str = ""  # HOST:PORT that takes OTLP over gRPC; empty = no traces leave


class HostState(_Wire):
    """One endpoint as Envoy sees it."""

    address: str
    port: int
    revision: str
    healthy: bool
    weight: int
    active_requests: int = 0


class Ack(_Wire):
    """``GET /ack`` of a gateway agent: what Envoy really runs, read back from Envoy."""

    generation: int  # newest intent that is in force, with its keys and limits; -1 = none yet
    received_generation: int = -1  # newest intent the agent has seen
    accepted: bool = True
    rejected: str = ""  # Envoy's own words for the update it refused
    hosts: list[HostState] = Field(default_factory=list)
    envoy_live: bool = True
    keys: int | None = None  # key values in the mounted Secret; None = the intent asks for none
    keys_digest: str = ""  # of the mounted keys, once Envoy goes by them; empty before
