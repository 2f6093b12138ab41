"""The pod of one rank: a stager that makes the weights sure, then the engine, pinned to its node.

The pod is pinned by a required nodeAffinity on metadata.name, never by spec.nodeName, so the scheduler
still checks taints and free GPUs. ``restartPolicy: Never``: a rank never restarts alone. The grace period
exceeds the drain, so an engine that finishes its streams is not cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from moe_operator.api.names import (
    ANNOTATION_INCARNATION,
    COMPONENT_ENGINE,
    LABEL_RANK,
    LABEL_REPLICA,
    LABEL_REVISION,
    LABEL_ROLE,
    PATH_STORE,
    PORT_ENGINE_HTTP,
    PORT_STAGE_PROGRESS,
    ROLE_LEADER,
    ROLE_WORKER,
    group_name,
    leader_address,
    pod_name,
)
from moe_operator.api.policy import CacheClass, OperatorPolicy
from moe_operator.api.spec import MoESpec
from moe_operator.engines.known import ENGINES
from moe_operator.engines.launch import Launch, RankCommand
from moe_operator.resources.model_source import StagerSource, stager_source, store_volume
from moe_operator.resources.ownership import Owner, pull_secrets
from moe_operator.resources.stager import (
    MANIFEST_MOUNT,
    PROGRESS_PORT_NAME,
    gpu_node_tolerations,
    pinned_to,
    pull_args,
    stage_container,
)
from moe_operator.rollout.revision import NodeFiles, Revision

Obj = dict[str, Any]
ENDING_SECONDS = 30  # what an engine may take to end beyond its drain
STARTUP_PERIOD_SECONDS = 1  # a refused connection is cheap, a group that waits for a probe is not
PROBE_TIMEOUT_SECONDS = 5  # SGLang's /health sleeps a second before it looks
STARTUP_MARGIN_SECONDS = 60  # the engine's own time limit strikes first and says why
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME")


@dataclass(frozen=True, slots=True)
class RankSeat:
    """Where one rank sits: which life of which replica, on which node."""

    replica: int
    rank: int
    node: str
    incarnation: int
    files: NodeFiles  # what its node holds for it


def engine_pod(
    owner: Owner,
    revision: Revision,
    seat: RankSeat,
    policy: OperatorPolicy,
    served_name: str,
    manifest_key: str,
) -> Obj:
    """Build the pod of one rank. ``manifest_key`` = file of the manifest ConfigMap, "" = nothing staged."""
    spec = revision.spec
    launch = Launch(
        spec=spec,
        layout=revision.layout,
        model_path=f"{PATH_STORE}/views/{seat.files.view}" if seat.files.view else served_name,
        served_name=served_name,
        leader=leader_address(owner.name, revision.hash, seat.replica, owner.namespace),
        planned_model_len=revision.model_len,
    )
    command = ENGINES[spec.engine.type].rank_command(launch, seat.rank)
    cache = policy.cache_classes[spec.weights.cache_class]
    staged = bool(seat.files.view)
    source = stager_source(spec.model, cache, store_mounted=True) if staged else StagerSource((), (), ())
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(owner, revision, seat),
        "spec": {
            "hostname": pod_name(owner.name, revision.hash, seat.replica, seat.rank),
            "subdomain": group_name(owner.name, revision.hash, seat.replica),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _grace_seconds(spec, seat.rank),
            "affinity": pinned_to(seat.node),
            "tolerations": gpu_node_tolerations(spec),
            "initContainers": [
                *([_stage_container(source, seat, cache, policy, manifest_key)] if staged else []),
                *(_dump(c) for c in spec.pod.init_containers),
            ],
            "containers": [_engine_container(spec, command, seat, staged), *_sidecars(spec)],
            "volumes": _volumes(spec, revision, cache, source, staged),
            **pull_secrets([*(s.name for s in spec.engine.image_pull_secrets), *policy.images.pull_secrets]),
            **_scheduling(spec),
        },
    }


def _grace_seconds(spec: MoESpec, rank: int) -> int:
    """From SIGTERM to SIGKILL. The kubelet never shortens a grace that runs, whatever is asked for later."""
    drains = rank == 0 or ENGINES[spec.engine.type].worker_drains
    return ENDING_SECONDS + (spec.rollout.drain_seconds if drains else 0)


def _metadata(owner: Owner, revision: Revision, seat: RankSeat) -> Obj:
    labels = {
        **revision.spec.pod.labels,
        LABEL_REVISION: revision.hash,
        LABEL_REPLICA: str(seat.replica),
        LABEL_RANK: str(seat.rank),
        LABEL_ROLE: ROLE_LEADER if seat.rank == 0 else ROLE_WORKER,
    }
    annotations = {**revision.spec.pod.annotations, ANNOTATION_INCARNATION: str(seat.incarnation)}
    name = pod_name(owner.name, revision.hash, seat.replica, seat.rank)
    return owner.metadata(name, COMPONENT_ENGINE, labels, annotations)


def _stage_container(
    source: StagerSource, seat: RankSeat, cache: CacheClass, policy: OperatorPolicy, manifest_key: str
) -> Obj:
    """Links what the staging Job has verified, in milliseconds; pulls only what has been lost since."""
    args = [
        *pull_args(source, seat.files, cache, policy, manifest_key),
        "--listen",
        f"0.0.0.0:{PORT_STAGE_PROGRESS}",
    ]
    return {
        **stage_container("stage", "pull", args, policy, [MANIFEST_MOUNT, *source.mounts]),
        "ports": [{"name": PROGRESS_PORT_NAME, "containerPort": PORT_STAGE_PROGRESS}],
    }


def _engine_container(spec: MoESpec, command: RankCommand, seat: RankSeat, staged: bool) -> Obj:
    container: Obj = {
        "name": "engine",
        "image": spec.engine.image,
        "imagePullPolicy": spec.engine.image_pull_policy,
        "command": list(command.command),
        "args": list(command.args),
        "env": _environment(spec, command),
        "resources": _resources(spec),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            *([{"name": "store", "mountPath": PATH_STORE, "readOnly": True}] if staged else []),
            *(_dump(m) for m in spec.pod.volume_mounts),
        ],
    }
    if spec.pod.security_context:
        container["securityContext"] = dict(spec.pod.security_context)
    if seat.rank == 0:
        container["ports"] = [{"name": "http", "containerPort": PORT_ENGINE_HTTP}]
        container.update(_leader_probes(spec.startup.timeout_seconds))
    return container


def _leader_probes(startup_seconds: int) -> Obj:
    """/health proves that all ranks joined, not that tokens flow: the operator asks for those itself."""
    health = {"httpGet": {"path": "/health", "port": PORT_ENGINE_HTTP}}
    failures = ceil((startup_seconds + STARTUP_MARGIN_SECONDS) / STARTUP_PERIOD_SECONDS)
    startup = {"periodSeconds": STARTUP_PERIOD_SECONDS, "failureThreshold": failures}
    return {
        "startupProbe": {**health, **startup, "timeoutSeconds": PROBE_TIMEOUT_SECONDS},
        "readinessProbe": {
            **health,
            "periodSeconds": 5,
            "timeoutSeconds": PROBE_TIMEOUT_SECONDS,
            "failureThreshold": 3,
        },
        # a busy engine answers late: five minutes of silence, not one slow answer (sglang#22511)
        "livenessProbe": {**health, "periodSeconds": 30, "timeoutSeconds": 25, "failureThreshold": 10},
    }


def _environment(spec: MoESpec, command: RankCommand) -> list[Obj]:
    wished = [_dump(variable) for variable in spec.engine.env]
    named = {variable["name"] for variable in wished}
    own: list[Obj] = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        *({"name": name, "value": value} for name, value in (*command.env, *_network_variables(spec))),
    ]
    return [variable for variable in own if variable["name"] not in named] + wished


def _network_variables(spec: MoESpec) -> list[tuple[str, str]]:
    variables = [(name, spec.network.interface) for name in INTERFACE_VARIABLES if spec.network.interface]
    rdma = spec.network.rdma
    if rdma and rdma.hcas:
        variables.append(("NCCL_IB_HCA", ",".join(rdma.hcas)))
    if rdma and rdma.gid_index is not None:
        variables += [
            ("NCCL_IB_GID_INDEX", str(rdma.gid_index)),
            ("NVSHMEM_IB_GID_INDEX", str(rdma.gid_index)),
        ]
    return [(name, value) for name, value in variables if value]


def _resources(spec: MoESpec) -> Obj:
    wanted, extended = spec.resources, dict(spec.accelerators.extra_resources)
    limits: Obj = {spec.accelerators.resource_name: str(spec.accelerators.gpus_per_node), **extended}
    for name, value in (("memory", wanted.memory), ("ephemeral-storage", wanted.ephemeral_storage)):
        limits |= {name: value} if value else {}
    requests = {**limits, **({"cpu": wanted.cpu} if wanted.cpu else {})}
    resources: Obj = {"limits": limits, "requests": requests}
    if spec.accelerators.claims:
        resources["claims"] = [{"name": claim.name} for claim in spec.accelerators.claims]
    return resources


def _volumes(
    spec: MoESpec, revision: Revision, cache: CacheClass, source: StagerSource, staged: bool
) -> list[Obj]:
    shared = {"medium": "Memory", "sizeLimit": spec.resources.shared_memory}
    volumes: list[Obj] = [{"name": "shm", "emptyDir": shared}]
    if staged:
        volumes += [store_volume(cache), {"name": "manifest", "configMap": {"name": revision.manifest}}]
    return [*volumes, *source.volumes, *(_dump(v) for v in spec.pod.volumes)]


def _scheduling(spec: MoESpec) -> Obj:
    placement, network = spec.placement, spec.network
    optional: Obj = {
        "priorityClassName": placement.priority_class_name,
        "schedulerName": placement.scheduler_name,
        "runtimeClassName": placement.runtime_class_name,
        "serviceAccountName": spec.pod.service_account_name,
        "hostNetwork": True if network.host_network else None,
        "dnsPolicy": "ClusterFirstWithHostNet" if network.host_network else None,
        "resourceClaims": [_dump(claim) for claim in spec.accelerators.claims] or None,
    }
    return {key: value for key, value in optional.items() if value is not None}


def _sidecars(spec: MoESpec) -> Sequence[Obj]:
    return [_dump(container) for container in spec.pod.sidecars]


def _dump(model: Any) -> Obj:
    return dict(model.model_dump(mode="json", by_alias=True, exclude_none=True))
