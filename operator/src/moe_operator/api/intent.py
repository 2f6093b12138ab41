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


class Intent(_Wire):
    """Everything a gateway pod needs to route; immutable once written, replaced as a whole."""

    schema_: Literal["moe.gateway/v1"] = Field(default="moe.gateway/v1", alias="schema")
    generation: int = Field(ge=0)
    model: str
    colours: list[Colour] = Field(default_factory=list, max_length=16)
    allowed_paths: list[str] = Field(default_factory=list, max_length=64)
    timeouts: Timeouts = Timeouts()
    drain_seconds: int = 600
    retry_after_seconds: int = 15  # said to clients while no engine serves


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

    generation: int  # newest intent generation whose files Envoy has accepted; -1 = none yet
    received_generation: int = -1  # newest intent the agent has seen
    accepted: bool = True
    rejected: str = ""  # Envoy's own words for the update it refused
    hosts: list[HostState] = Field(default_factory=list)
    envoy_live: bool = True
