"""What the admin allows: the operator's own configuration, read once at start.

Host paths, host access, image prefixes, GPU products and source hosts are decided here and never by a
MoEDeployment, which can only name a cache class or a preset. A misspelt key is an error, not a default.
"""

from __future__ import annotations

from typing import Annotated, Any, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from moe_operator.api.fields import DnsLabel, LabelValue, ObjectName, QualifiedName, broken_rules
from moe_operator.api.spec_workload import Domain

DEFAULT_STORE = "/var/lib/moe-operator/store"
SourceHost = Annotated[str, Field(min_length=1, max_length=253)]
HostPath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$", max_length=1024)]


class PolicyModel(BaseModel):
    """A piece of the configuration: camelCase in YAML, frozen, unknown keys refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )


class CacheClass(PolicyModel):
    """A node-local store for weights."""

    root: HostPath
    """Directory on every node; the only host path that pods of a deployment ever see."""
    reserve_bytes: int | None = Field(default=None, ge=0)
    """Bytes that stay free on its file system. Default: the stager's own rule."""
    budget_bytes: int | None = Field(default=None, ge=1)
    """Most bytes of weights that one node's store may hold. Default: what its file system takes."""


class SourceLimit(PolicyModel):
    """What all nodes of the cluster together may ask of one source."""

    max_concurrent_nodes: int | None = Field(default=None, ge=1)
    """Nodes that pull from it at the same time, whatever `spec.weights` of a deployment allows."""
    bytes_per_second: int | None = Field(default=None, ge=1)
    """Total of all nodes; each gets an equal share of it."""


class Scrubbing(PolicyModel):
    """How files are read again after they were verified: disks forget silently."""

    every_hours: int = Field(default=7 * 24, ge=0, le=8760)
    """Hours between two readings of one node's store. 0: never."""
    bytes_per_second: int = Field(default=200_000_000, ge=1)
    """Most that is read of a store. A deployment's nodes are read one after the other."""


class Staging(PolicyModel):
    """How weights travel and how they are looked after."""

    peers: bool = True
    """Whether nodes of a deployment hand files on to each other, so that the source is read about once."""
    peers_from_bytes: int = Field(default=1 << 30, ge=0)
    """Models smaller than this are pulled from the source by every node: helping would cost more than it
    saves."""
    source_limits: dict[SourceHost, SourceLimit] = Field(default={})
    """By source, as the annotation of staging Jobs spells it: the host for https://, oci:// and hf://
    (huggingface.co), else `s3://bucket`, `gs://bucket`, `az://account` or `pvc://namespace/claim`."""
    scrub: Scrubbing = Scrubbing()
    """How files are read again."""


class Images(PolicyModel):
    """Images of the operator's own containers."""

    operator: str = "moe-operator:latest"
    """Resolver, stager and gateway agent."""
    envoy: str = "moe-operator-envoy:latest"
    """Any image with `envoy` on its PATH and a numeric user."""
    pull_secrets: list[ObjectName] = Field(default=[])
    """Secrets in the namespace of each deployment with which these images are pulled there, for gateways,
    resolvers, stagers, seeders and collectors."""


class Preset(PolicyModel):
    """A topology that `spec.accelerators.product` may name."""

    product: LabelValue
    """Label `nvidia.com/gpu.product` of the nodes."""
    gpus_per_node: int = Field(default=8, ge=1, le=64)
    """GPUs of one node."""
    resource_name: QualifiedName = "nvidia.com/gpu"
    """Extended resource that counts them."""
    domain: Domain = Domain()
    """What counts as one NVLink domain."""

    @model_validator(mode="after")
    def _domain_holds_together(self) -> Self:
        for error in broken_rules(self.domain, "domain"):
            raise ValueError(f"{error.path} {error.message}")
        return self


class GpuProduct(PolicyModel):
    """A GPU product that the built-in catalogue does not know."""

    memory_mib: int = Field(ge=1024, le=8_388_608)
    """Memory of one GPU, as the label `nvidia.com/gpu.memory` reports it."""
    nvlink_gpus: int = Field(default=8, ge=1, le=64)
    """GPUs of one node that reach each other over NVLink."""


NetworkPeer = dict[str, Any]  # a NetworkPolicyPeer, as written in a NetworkPolicy


class NetworkPolicies(PolicyModel):
    """NetworkPolicies around the pods of every deployment; a network plug-in has to enforce them."""

    enabled: bool = True
    """Make them."""
    metrics_from: list[NetworkPeer] = Field(default=[])
    """Peers that may scrape engines, stagers and gateways. Empty: nobody but the operator."""
    external_gateways_from: list[NetworkPeer] = Field(default=[])
    """Peers that reach the engines of deployments with `spec.gateway.external`: your gateway's data plane,
    and the endpoint picker of an InferencePool. Empty: any pod."""
    operator_namespace: DnsLabel = "moe-operator-system"
    """Namespace of the operator's pods."""
    operator_labels: dict[QualifiedName, LabelValue] = Field(
        default={"app.kubernetes.io/name": "moe-operator", "app.kubernetes.io/component": "operator"}
    )
    """Labels of the operator's pods."""


class OperatorPolicy(PolicyModel):
    """The operator's configuration."""

    cache_classes: dict[DnsLabel, CacheClass] = Field(default={"nvme": CacheClass(root=DEFAULT_STORE)})
    """Stores that `spec.weights.cacheClass` may name."""
    images: Images = Images()
    """Images of the operator's own containers."""
    allowed_image_prefixes: list[str] = Field(default=[])
    """Prefixes of engine, init and sidecar images. Empty: any image."""
    denied_env_prefixes: list[str] = Field(default=["LD_", "PYTHON"])
    """Prefixes of environment variables that a deployment may not set."""
    allowed_source_hosts: list[str] = Field(default=[])
    """Hosts that a model may come from, redirects included, `*.` for any subdomain. An https:// or oci://
    source elsewhere is refused at once. Empty: any host."""
    host_access_allowed: bool = False
    """Whether engine pods may use the host's network and privileged containers."""
    pod_extras_allowed: bool = True
    """Whether engine pods may bring volumes, init containers and sidecars of their own. hostPath volumes need
    host access besides."""
    network_policies: NetworkPolicies = NetworkPolicies()
    """Who may connect to the pods of a deployment."""
    presets: dict[DnsLabel, Preset] = Field(default={})
    """Topologies by name."""
    staging: Staging = Staging()
    """How weights travel and how they are looked after."""
    gpu_products: dict[LabelValue, GpuProduct] = Field(default={})
    """GPU products beyond the built-in catalogue."""

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Read the configuration; pydantic.ValidationError names every bad key."""
        return cls.model_validate(yaml.safe_load(text) or {})

    def image_allowed(self, image: str) -> bool:
        """Whether a deployment may run this image."""
        return not self.allowed_image_prefixes or image.startswith(tuple(self.allowed_image_prefixes))

    def env_allowed(self, name: str) -> bool:
        """Whether a deployment may set this environment variable."""
        return not name.startswith(tuple(self.denied_env_prefixes))

    def source_allowed(self, source: str) -> bool:
        """Whether a deployment may read this source; only https:// and oci:// sources name a host."""
        if not self.allowed_source_hosts or not source.startswith(("https://", "oci://")):
            return True
        host = urlsplit(source).hostname or ""
        return any(_host_matches(host, pattern) for pattern in self.allowed_source_hosts)


def _host_matches(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
