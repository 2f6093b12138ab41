"""What ``kubectl moe plan`` was asked: a MoEDeployment or flags, put together with facts and hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from moe_operator.api.names import manifest_name
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.spec import MoEDeployment, MoESpec, SpecError
from moe_operator.cli import model_files
from moe_operator.cli.cluster_view import ClusterGpus, GpuPod, Kubectl, gpus_of
from moe_operator.cli.model_files import ModelFacts, NoFacts
from moe_operator.hardware.catalogue import CATALOGUE, Gpu
from moe_operator.planning.assumed import MIB
from moe_operator.planning.plan import Pinned, Request
from moe_operator.planning.question import gpu_of, request_for, version_of
from moe_operator.reconcile.accept import with_preset
from moe_operator.reconcile.place import tolerations_of
from moe_operator.reconcile.plan import source_digest

Options = dict[str, Any]
ANY_GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists"}
RULES_OF = {"vLLM": "0.33", "SGLang": "0.5"}  # versions that the rules are written for


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and what a report says about where it came from. ``spec`` None = asked by flags."""

    request: Request
    facts: ModelFacts
    product: str
    version: str
    spec: MoESpec | None = None
    cluster: ClusterGpus | None = None
    replicas: int = 1
    retained: int = 1


def from_object(options: Options, kubectl: Kubectl) -> Question:
    """From a MoEDeployment; NoFacts, NoCluster or UnreadableConfig when it cannot be asked."""
    deployment = _deployment(options["filename"])
    policy = _policy(options["policy"])
    spec = with_preset(deployment.spec, policy)
    namespace = options["namespace"] or deployment.metadata.get("namespace") or "default"
    facts = _facts(spec, deployment.name, namespace, options, kubectl)
    want = spec.accelerators
    pod = GpuPod(
        want.product,
        want.gpus_per_node or 1,
        want.resource_name,
        tolerations_of(spec),
        spec.placement.node_selector,
    )
    cluster = gpus_of(kubectl, pod, policy) if options["against_cluster"] else None
    request = request_for(spec, facts.checkpoint, policy)
    gpu = _gpu(want.product, gpu_of(want.product, policy), options["gpu_memory"], cluster)
    if spec.placement.domain.type == "Label" and want.nodes is None:
        request = replace(request, domain_gpus=None)
    return Question(
        _with_flags(replace(request, gpu=gpu, gpu_memory_bytes=gpu.memory_mib * MIB), options),
        facts,
        want.product,
        _version(spec.engine.type, version_of(spec.engine.image)),
        spec,
        cluster,
        max(1, spec.replicas),
        spec.weights.retain_revisions,
    )


def from_flags(options: Options, kubectl: Kubectl) -> Question:
    """From ``--config`` and numbers."""
    if not options["gpu"]:
        raise NoFacts("give the GPU with --gpu, such as NVIDIA-H20")
    facts = model_files.from_files(options["config"], options["index"], options["weights_bytes"])
    policy = _policy(options["policy"])
    known = gpu_of(options["gpu"], policy)
    per_node = options["gpus_per_node"] or (known.nvlink_gpus if known else 8)
    pod = GpuPod(options["gpu"], per_node, tolerations=(ANY_GPU_TAINT,))
    cluster = gpus_of(kubectl, pod, policy) if options["against_cluster"] else None
    gpu = _gpu(options["gpu"], known, options["gpu_memory"], cluster)
    engine = options["engine"]
    request = Request(
        engine=engine,
        checkpoint=facts.checkpoint,
        pinned=Pinned(),
        nodes=None,
        gpus_per_node=per_node,
        domain_gpus=per_node * gpu.nvlink_nodes,
        gpu_memory_bytes=gpu.memory_mib * MIB,
        memory_utilization=0.92,
        gpu=gpu,
    )
    version = _version(engine, (0, 0))
    return Question(_with_flags(request, options), facts, gpu.product, version, cluster=cluster)


def _with_flags(request: Request, options: Options) -> Request:
    """Flags go before what the object says."""
    pins = ("tensor", "pipeline", "data", "expert", "decode_context")
    pinned = replace(request.pinned, **{name: options[name] for name in pins if options[name] is not None})
    names = (
        "nodes", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "concurrency", "kv_cache_dtype",
        "memory_utilization",
    )  # fmt: skip
    given = {name: options[name] for name in names if options[name] is not None}
    return replace(request, pinned=pinned, **given)


def _deployment(path: Path) -> MoEDeployment:
    try:
        objects = [o for o in yaml.safe_load_all(path.read_text()) if o]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise NoFacts(f"{path} is not YAML: {error}") from error
    found = [o for o in objects if isinstance(o, dict) and o.get("kind") == "MoEDeployment"]
    if not found:
        raise NoFacts(f"{path} holds no MoEDeployment")
    try:
        return MoEDeployment.parse(found[0])
    except SpecError as error:
        raise NoFacts(f"{path}: {error}") from error


def _policy(path: Path | None) -> OperatorPolicy:
    if path is None:
        return OperatorPolicy()
    try:
        return OperatorPolicy.from_yaml(path.read_text())
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise NoFacts(f"{path}: {error}") from error


def _facts(spec: MoESpec, name: str, namespace: str, options: Options, kubectl: Kubectl) -> ModelFacts:
    if options["config"]:
        return model_files.from_files(options["config"], options["index"], options["weights_bytes"])
    if options["against_cluster"]:
        config_map = manifest_name(name, source_digest(spec))
        collected = kubectl.manifest(namespace, config_map)
        if collected:
            return model_files.from_manifest(collected, f"ConfigMap {namespace}/{config_map}")
    if options["read_source"]:
        return model_files.from_source(spec.model.source)
    return model_files.from_catalogue(spec.model.source)


def _gpu(product: str, known: Gpu | None, memory_mib: int | None, cluster: ClusterGpus | None) -> Gpu:
    """The product with the memory that was given, that its nodes report, or that the catalogue knows."""
    memory = memory_mib or (cluster.memory_mib if cluster else 0) or (known.memory_mib if known else 0)
    if not memory:
        raise NoFacts(
            f"GPU {product} is not known: give --gpu-memory MIB, or one of {', '.join(sorted(CATALOGUE))}"
        )
    return replace(known or Gpu(product, memory), memory_mib=memory)


def _version(engine: str, found: tuple[int, int]) -> str:
    return f"{found[0]}.{found[1]}" if found != (0, 0) else RULES_OF[engine]
