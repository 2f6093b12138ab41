"""The part of a MoEDeployment that says what runs: the model, its engine, how it is spread over GPUs.

A change to anything here makes a new revision. Omitted members are chosen by the planner and shown in
``status.plan``.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moe_operator.api.fields import (
    ApiModel,
    Bytes,
    DnsLabel,
    EnvName,
    LocalReference,
    ObjectName,
    Rule,
    Share,
    map_list,
)

_PATH = r"(/[A-Za-z0-9._+=@~%-]+)"
_SOURCE = (
    r"^(none"
    r"|hf://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+(@[A-Za-z0-9._/-]+)?"
    rf"|(s3|gs|az|oci)://[A-Za-z0-9][A-Za-z0-9._:@-]*{_PATH}*(:[A-Za-z0-9._-]+)?(@sha256:[0-9a-f]+)?/?"
    rf"|https://[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?{_PATH}*/?"
    rf"|pvc://[a-z0-9][a-z0-9.-]*{_PATH}*/?"
    rf"|node://[A-Za-z0-9._-]+{_PATH}*/?)$"
)
_NO_PARENT = "must not climb out of its root with '..'"


class ModelSpec(ApiModel):
    """Which model is served, and where its files come from."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "source",
            _NO_PARENT,
            "!self.source.contains('/../') && !self.source.endsWith('/..') && !self.source.contains('://..')",
            lambda m: "/../" not in m.source and not m.source.endswith("/..") and "://.." not in m.source,
        ),
    )

    name: (
        Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")] | None
    ) = None
    """Id that `/v1/models` answers and that clients put into requests. Default: the object's name."""
    source: Annotated[str, Field(min_length=4, max_length=1024, pattern=_SOURCE)]
    """Where the files come from: `hf://org/repo@revision`, `https://host/path`, `s3://`, `gs://`, `az://`
    or `oci://` locations, `pvc://claim/path`, `node://path` below the cache class, or `none` when the image
    brings them. Credentials never belong here; see `credentialsRef`."""
    credentials_ref: LocalReference | None = None
    """Secret in this namespace with the source's credentials. The kubelet mounts it into the pods that read
    the source; the operator never reads it."""
    manifest_ref: LocalReference | None = None
    """ConfigMap with the publisher's list of SHA-256 sums. Default: sums are read from the source."""
    trust_remote_code: bool = False
    """Let the engine run Python code that the checkpoint brings along."""
    multimodal: Literal["Auto", "Disabled"] = "Auto"
    """`Auto` serves the modalities the checkpoint has; `Disabled` loads the language model only."""


class SecretKeyRef(ApiModel):
    """One key of a Secret or ConfigMap in this namespace."""

    name: ObjectName
    """Name of the object."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")]
    """Key inside the object."""
    optional: bool = False
    """Start without the variable when the object or the key is missing."""


class PodFieldRef(ApiModel):
    """A field of the pod itself (downward API)."""

    field_path: Annotated[str, Field(min_length=1, max_length=512)]
    """Path of the field, such as `status.podIP`."""


class ResourceFieldRef(ApiModel):
    """A resource of a container (downward API)."""

    resource: Annotated[str, Field(min_length=1, max_length=253)]
    """Resource to read, such as `limits.memory`."""
    container_name: DnsLabel | None = None
    """Container to read it from. Default: the engine's."""
    divisor: Bytes | None = None
    """Unit of the value, such as `1Mi`."""


class EnvSource(ApiModel):
    """Where the value of an environment variable comes from; exactly one member is given."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "secretKeyRef",
            "give exactly one of secretKeyRef, configMapKeyRef, fieldRef, resourceFieldRef",
            "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef),"
            " has(self.resourceFieldRef)].exists_one(given, given)",
            lambda m: (
                [m.secret_key_ref, m.config_map_key_ref, m.field_ref, m.resource_field_ref].count(None) == 3
            ),
        ),
    )

    secret_key_ref: SecretKeyRef | None = None
    """A key of a Secret."""
    config_map_key_ref: SecretKeyRef | None = None
    """A key of a ConfigMap."""
    field_ref: PodFieldRef | None = None
    """A field of the pod."""
    resource_field_ref: ResourceFieldRef | None = None
    """A resource of a container."""


class EnvVar(ApiModel):
    """One environment variable of the engine container."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "value",
            "give value or valueFrom, not both",
            "!(has(self.value) && has(self.valueFrom))",
            lambda m: m.value is None or m.value_from is None,
        ),
    )

    name: EnvName
    """Name of the variable; the operator's configuration may deny prefixes such as `LD_`."""
    value: Annotated[str, Field(max_length=8192)] | None = None
    """Literal value; `$(NAME)` is expanded by the kubelet."""
    value_from: EnvSource | None = None
    """Where the value comes from instead."""


class ExpertBalancing(ApiModel):
    """Moving experts between ranks while serving (EPLB)."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "redundantExperts",
            "needs enabled: true",
            "self.enabled || self.redundantExperts == 0",
            lambda m: m.enabled or m.redundant_experts == 0,
        ),
    )

    enabled: bool = False
    """Let the engine rebalance experts by load."""
    redundant_experts: Annotated[int, Field(ge=0, le=4096)] = 0
    """Extra copies of hot experts, over all ranks."""


class Speculative(ApiModel):
    """Speculative decoding, passed through to the engine."""

    method: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
    """The engine's name of the method, such as `mtp` or `EAGLE`."""
    tokens: Annotated[int, Field(ge=1, le=64)] = 1
    """Tokens drafted per step."""


PullSecrets = Annotated[list[LocalReference], Field(max_length=8), map_list("name")]
Argument = Annotated[str, Field(min_length=1, max_length=4096)]


class EngineSpec(ApiModel):
    """Which engine runs and how it is set."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "memoryUtilization",
            "must lie between 0.1 and 0.99",
            "double(self.memoryUtilization) >= 0.1 && double(self.memoryUtilization) <= 0.99",
            lambda m: 0.1 <= float(m.memory_utilization) <= 0.99,
        ),
    )

    type: Literal["vLLM", "SGLang"]
    """Engine inside the image."""
    image: Annotated[
        str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:/@-]*[A-Za-z0-9])?$")
    ]
    """Container image; a digest pins it. The operator's configuration may limit allowed prefixes."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the kubelet pulls the image."""
    image_pull_secrets: PullSecrets = Field(default=[])
    """Secrets of this namespace for pulling the image."""
    max_model_len: Annotated[int, Field(ge=1, le=33_554_432)] | None = None
    """Longest prompt plus answer, in tokens. Default: what the plan shows fits, at most the model's own."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Sequences in flight per data-parallel rank. Default: the engine's."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Tokens per forward step. Default: the engine's."""
    kv_cache_dtype: Literal["Auto", "BF16", "FP8"] = "Auto"
    """Type of the KV cache; `Auto` follows the checkpoint."""
    memory_utilization: Share = "0.92"
    """Share of each GPU's memory the engine may use, as a decimal string between 0.1 and 0.99."""
    chunked_prefill: bool = True
    """Split long prompts over several steps so that decoding goes on."""
    prefix_caching: bool = True
    """Keep the KV cache of shared prefixes."""
    expert_balancing: ExpertBalancing = ExpertBalancing()
    """Rebalancing of experts between ranks."""
    speculative: Speculative | None = None
    """Speculative decoding. Default: off."""
    args: Annotated[list[Argument], Field(max_length=64)] = Field(default=[])
    """Arguments appended to the engine's command line. One that contradicts a generated argument is refused,
    naming both."""
    env: Annotated[list[EnvVar], Field(max_length=128), map_list("name")] = Field(default=[])
    """Environment variables of the engine container."""


class Parallelism(ApiModel):
    """How the model is spread over GPUs; what is omitted is planned."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "decodeContext",
            "must divide tensor",
            "!has(self.decodeContext) || !has(self.tensor) || self.tensor % self.decodeContext == 0",
            lambda m: m.decode_context is None or m.tensor is None or m.tensor % m.decode_context == 0,
        ),
    )

    tensor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Ranks that share every layer (TP)."""
    pipeline: Annotated[int, Field(ge=1, le=256)] | None = None
    """Stages that hold consecutive layers (PP)."""
    data: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Copies of the attention layers that take different requests (DP)."""
    expert: bool | None = None
    """Spread experts over the ranks instead of cutting each one. vLLM: over TP·DP ranks; SGLang: over at most
    TP ranks."""
    decode_context: Annotated[int, Field(ge=1, le=256)] | None = None
    """Ranks that share the KV cache of one sequence while decoding (DCP); divides `tensor`."""
