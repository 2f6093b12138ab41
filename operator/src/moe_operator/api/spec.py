"""The MoEDeployment: what its author may say, checked before anything acts on it.

``MoEDeployment.parse`` gives the verdict of the API server (schema, defaults, CEL rules) in Python, with
every error naming its field, so that an object written past admission is refused the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError

from moe_operator.api.fields import ApiModel, FieldError, LocalReference, Rule, broken_rules
from moe_operator.api.spec_engine import (
    EngineSpec,
    EnvSource,
    EnvVar,
    ExpertBalancing,
    ModelSpec,
    Parallelism,
    Speculative,
)
from moe_operator.api.spec_serving import (
    DEFAULT_PATHS,
    Audit,
    EndpointPicker,
    ErrorsGate,
    External,
    Gates,
    Gateway,
    GatewayAuth,
    GatewayService,
    GatewayTimeouts,
    GatewayTls,
    HttpRouteRef,
    InferencePoolRef,
    KeyLimits,
    Limits,
    LongContext,
    MemoryGate,
    Otlp,
    PerformanceGate,
    PreviewAccess,
    Queue,
    Rollout,
    ScheduleEntry,
    SmokeGate,
)
from moe_operator.api.spec_workload import (
    Accelerators,
    Disruption,
    Domain,
    Health,
    Network,
    Placement,
    PodContainer,
    PodOverlay,
    PodVolume,
    PodVolumeMount,
    Rdma,
    ResourceClaim,
    Resources,
    Restart,
    Startup,
    Toleration,
    Weights,
)
from moe_operator.api.status import Status

__all__ = [
    "DEFAULT_PATHS",
    "Accelerators",
    "Audit",
    "Disruption",
    "Domain",
    "EndpointPicker",
    "EngineSpec",
    "EnvSource",
    "EnvVar",
    "ErrorsGate",
    "ExpertBalancing",
    "External",
    "FieldError",
    "Gates",
    "Gateway",
    "GatewayAuth",
    "GatewayService",
    "GatewayTimeouts",
    "GatewayTls",
    "Health",
    "HttpRouteRef",
    "InferencePoolRef",
    "KeyLimits",
    "Limits",
    "LocalReference",
    "LongContext",
    "MemoryGate",
    "MoEDeployment",
    "MoESpec",
    "ModelSpec",
    "Network",
    "Otlp",
    "Parallelism",
    "PerformanceGate",
    "Placement",
    "PodContainer",
    "PodOverlay",
    "PodVolume",
    "PodVolumeMount",
    "PreviewAccess",
    "Queue",
    "Rdma",
    "ResourceClaim",
    "Resources",
    "Restart",
    "Rollout",
    "ScheduleEntry",
    "SmokeGate",
    "SpecError",
    "Speculative",
    "Startup",
    "Toleration",
    "Weights",
]


class SpecError(Exception):
    """An object that is no valid MoEDeployment; ``errors`` holds everything wrong with it."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("; ".join(f"{path}: {message}" for path, message in errors))
        self.errors = errors


def _ranks_match(spec: MoESpec) -> bool:
    """vLLM runs TP·PP·DP ranks; SGLang runs TP·PP, its attention DP lies inside TP."""
    layout, want = spec.parallelism, spec.accelerators
    if layout is None or want.nodes is None or want.gpus_per_node is None:
        return True
    if layout.tensor is None or layout.pipeline is None:
        return True
    gpus = want.nodes * want.gpus_per_node
    if spec.engine.type == "SGLang":
        return layout.tensor * layout.pipeline == gpus
    return layout.data is None or layout.tensor * layout.pipeline * layout.data == gpus


_NAME = "^[a-z]([-a-z0-9]{0,251}[a-z0-9])?$"
_LAYOUT_GIVEN = (
    "has(self.parallelism) && has(self.parallelism.tensor) && has(self.parallelism.pipeline)"
    " && has(self.accelerators.nodes) && has(self.accelerators.gpusPerNode)"
)
_RANKS = "self.parallelism.tensor * self.parallelism.pipeline"
_GPUS = "self.accelerators.nodes * self.accelerators.gpusPerNode"


class MoESpec(ApiModel):
    """What should be served, on which GPUs, and how it is reached and replaced."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "parallelism",
            "must use every GPU: tensor × pipeline × data (SGLang: tensor × pipeline) = nodes × gpusPerNode",
            f"!({_LAYOUT_GIVEN}) || (self.engine.type == 'SGLang' ? {_RANKS} == {_GPUS} :"
            f" (!has(self.parallelism.data) || {_RANKS} * self.parallelism.data == {_GPUS}))",
            _ranks_match,
        ),
        Rule(
            "parallelism",
            "SGLang splits data parallelism out of tensor: data must divide tensor",
            "self.engine.type != 'SGLang' || !has(self.parallelism) || !has(self.parallelism.data)"
            " || !has(self.parallelism.tensor) || self.parallelism.tensor % self.parallelism.data == 0",
            lambda m: (
                m.engine.type != "SGLang"
                or m.parallelism is None
                or m.parallelism.data is None
                or m.parallelism.tensor is None
                or m.parallelism.tensor % m.parallelism.data == 0
            ),
        ),
    )

    model: ModelSpec
    """Which model is served, and where its files come from."""
    engine: EngineSpec
    """Which engine runs it, and how it is set."""
    parallelism: Parallelism | None = None
    """How the model is spread over GPUs. Default: planned, and shown in `status.plan`."""
    replicas: Annotated[int, Field(ge=0, le=256)] = 1
    """Whole serving groups; the scale subresource changes it."""
    accelerators: Accelerators
    """Which GPUs a replica needs, and how many."""
    placement: Placement = Placement()
    """Where ranks may go."""
    weights: Weights = Weights()
    """How the model's files reach the nodes."""
    startup: Startup = Startup()
    """How long a group may take until it serves."""
    resources: Resources = Resources()
    """Resources of every engine pod beside its GPUs."""
    network: Network = Network()
    """Network of the engine pods."""
    pod: PodOverlay = PodOverlay()
    """What engine pods carry besides."""
    health: Health = Health()
    """When a serving group counts as sick."""
    restart: Restart = Restart()
    """How often a broken group is recreated."""
    disruption: Disruption = Disruption()
    """What happens when somebody drains a node."""
    gateway: Gateway = Gateway()
    """How clients reach the model."""
    rollout: Rollout = Rollout()
    """How one revision follows another."""
    schedule: Annotated[list[ScheduleEntry], Field(max_length=16)] = Field(default=[])
    """Replicas over the day and week."""


class MoEDeployment(ApiModel):
    """One very large Mixture-of-Experts model, served by whole groups of GPU nodes behind one gateway."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "metadata.name",
            "must be lower-case letters, digits and dashes, beginning with a letter: it names Services",
            f"self.metadata.name.matches('{_NAME}')",
            lambda m: re.search(_NAME, str(m.metadata.get("name", ""))) is not None,
        ),
    )

    api_version: Literal["moe-operator.io/v1alpha1"]
    """Version of this schema."""
    kind: Literal["MoEDeployment"]
    """Type of the object."""
    metadata: dict[str, Any]
    """Standard object metadata."""
    spec: MoESpec
    """What should be."""
    status: Status = Status()
    """What is; written by the operator."""

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> Self:
        """Read an object as a client sends it; :class:`SpecError` names every bad field.

        A status that comes with it is dropped unread, as the API server drops it.
        """
        sent = {name: part for name, part in obj.items() if name != "status"}
        try:
            deployment = cls.model_validate(sent, by_alias=True, by_name=False)
        except ValidationError as error:
            raise SpecError([_field_error(line["loc"], line["msg"]) for line in error.errors()]) from None
        errors = list(broken_rules(deployment, ""))
        if errors:
            raise SpecError(errors)
        return deployment

    @property
    def name(self) -> str:
        """metadata.name."""
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        """metadata.namespace."""
        return str(self.metadata["namespace"])

    @property
    def served_name(self) -> str:
        """The id that ``/v1/models`` answers."""
        return self.spec.model.name or self.name


def _field_error(location: tuple[str | int, ...], message: str) -> FieldError:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return FieldError(path.removeprefix("."), message)
