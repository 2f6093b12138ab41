"""Step 1: is this a spec that may be acted on at all?

A spec that breaks the schema, asks for what the admin forbids, or sets a field whose behaviour this version
lacks is refused as a whole. Half a spec is never honoured: a gateway without the keys that were asked for
would be an open door. What served before keeps serving from its own record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.fields import ApiModel
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.spec import (
    Gateway,
    Health,
    ModelSpec,
    MoEDeployment,
    MoESpec,
    Network,
    Placement,
    Rollout,
    SpecError,
)
from moe_operator.hardware.catalogue import CATALOGUE
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.snapshot import Snapshot

DEFAULT_GPUS_PER_NODE = 8  # an HGX baseboard, when neither spec, preset nor catalogue says otherwise

# Members whose behaviour later versions bring; setting one to something else than its default is refused.
NOT_YET: dict[type[ApiModel], tuple[str, ...]] = {
    ModelSpec: ("manifest_ref", "multimodal"),
    Health: ("probe_seconds", "heartbeat_seconds", "memory_skew"),
    Rollout: (
        "allow_downtime",
        "promotion",
        "steps",
        "hold_seconds",
        "soak_seconds",
        "gates",
        "paused",
        "failed_revision_seconds",
    ),
    Network: ("preflight",),
    Placement: ("max_replans",),
}
OF_THE_MANAGED_GATEWAY = (
    "limits", "queue", "long_context", "affinity_header", "preview", "timeouts", "allowed_sources", "otlp",
)  # fmt: skip
STRATEGIES = frozenset({"Auto", "Surge"})


def accept(snapshot: Snapshot, draft: Draft) -> Draft:
    """Parse, check against policy and version, and fill in presets."""
    if snapshot.namespace_terminating:
        return _refused(
            draft,
            Reason.NAMESPACE_TERMINATING,
            f"namespace {snapshot.namespace} is being deleted: nothing new can be created in it",
        )
    try:
        spec = MoEDeployment.parse(snapshot.object).spec
    except SpecError as error:
        return _refused(draft, Reason.INVALID_SPEC, _listed(f"{e.path}: {e.message}" for e in error.errors))
    contradictions = list(_contradictions(spec))
    if contradictions:
        return _refused(draft, Reason.INVALID_SPEC, _listed(contradictions))
    denied = list(_denied(spec, snapshot.policy))
    if denied:
        return _refused(draft, Reason.DENIED_BY_POLICY, _listed(denied))
    missing = list(_not_yet(spec))
    if missing:
        message = f"this version of the operator does not support {_listed(missing)}"
        refused = _refused(draft, Reason.NOT_YET_SUPPORTED, message)
        return refused.say(ConditionType.PROGRESSING, "False", Reason.NOT_YET_SUPPORTED, message)
    return replace(draft, wish=with_preset(spec, snapshot.policy))


def _refused(draft: Draft, reason: Reason, message: str) -> Draft:
    serving = bool(draft.status.active_revision)
    said = f"{message}; revision {draft.status.active_revision} keeps serving" if serving else message
    draft = draft.stalled(Reason.EDIT_REFUSED if serving else reason, said)
    return draft.say(ConditionType.PLAN_ACCEPTED, "False", reason, said)


def _contradictions(spec: MoESpec) -> Iterable[str]:
    """What only the managed gateway does, asked of somebody else's."""
    if spec.gateway.external is None:
        return
    plain = Gateway()
    for member in OF_THE_MANAGED_GATEWAY:
        if getattr(spec.gateway, member) != getattr(plain, member):
            name = Gateway.model_fields[member].alias
            yield f"spec.gateway.{name} is for the managed gateway and does not go with spec.gateway.external"
    if spec.gateway.external.inference_pool and spec.gateway.allowed_paths != plain.allowed_paths:
        yield "spec.gateway.allowedPaths does not go with an InferencePool: paths are up to your HTTPRoutes"


def _denied(spec: MoESpec, policy: OperatorPolicy) -> Iterable[str]:
    if not policy.image_allowed(spec.engine.image):
        yield f"spec.engine.image {spec.engine.image} (allowed: {', '.join(policy.allowed_image_prefixes)})"
    for variable in spec.engine.env:
        if not policy.env_allowed(variable.name):
            yield f"spec.engine.env {variable.name}: the prefix is denied"
    if spec.weights.cache_class not in policy.cache_classes:
        known = ", ".join(sorted(policy.cache_classes))
        yield f"spec.weights.cacheClass {spec.weights.cache_class} is not defined (known: {known})"
    if not policy.source_allowed(spec.model.source):
        yield f"spec.model.source: its host is not among {', '.join(policy.allowed_source_hosts)}"
    if spec.network.host_network and not policy.host_access_allowed:
        yield "spec.network.hostNetwork: host access is not allowed"
    yield from _denied_extras(spec, policy)


def _denied_extras(spec: MoESpec, policy: OperatorPolicy) -> Iterable[str]:
    pod = spec.pod
    extras = [name for name in ("volumes", "init_containers", "sidecars") if getattr(pod, name)]
    if extras and not policy.pod_extras_allowed:
        yield f"spec.pod.{extras[0]}: pods may not bring volumes or containers of their own"
    for container in (*pod.init_containers, *pod.sidecars):
        if not policy.image_allowed(container.image):
            yield f"spec.pod container {container.name}: image {container.image} is not allowed"
    if policy.host_access_allowed:
        return
    for volume in pod.volumes:
        if "hostPath" in (volume.model_extra or {}):
            yield f"spec.pod.volumes {volume.name}: hostPath needs host access, which is not allowed"
    contexts = [pod.security_context, *(_security(c) for c in (*pod.init_containers, *pod.sidecars))]
    if any(_escapes(context) for context in contexts):
        yield "spec.pod: privileged containers and capabilities beyond IPC_LOCK are not allowed"


def _security(container: ApiModel) -> dict[str, Any]:
    return (container.model_extra or {}).get("securityContext") or {}


def _escapes(context: dict[str, Any]) -> bool:
    added = set((context.get("capabilities") or {}).get("add") or ())
    return bool(context.get("privileged")) or bool(added - {"IPC_LOCK"})


def _not_yet(spec: MoESpec) -> Iterable[str]:
    for path, model in (
        ("model", spec.model),
        ("health", spec.health),
        ("network", spec.network),
        ("placement", spec.placement),
        ("rollout", spec.rollout),
    ):
        for member in NOT_YET[type(model)]:
            info = type(model).model_fields[member]
            if getattr(model, member) != info.get_default(call_default_factory=True, validated_data={}):
                yield f"spec.{path}.{info.alias}"
    if spec.rollout.strategy not in STRATEGIES:
        yield f"spec.rollout.strategy {spec.rollout.strategy}"
    if spec.schedule:
        yield "spec.schedule"
    if spec.disruption.policy != type(spec.disruption)().policy:
        yield "spec.disruption.policy"


def with_preset(spec: MoESpec, policy: OperatorPolicy) -> MoESpec:
    """With what a preset or the product says about accelerators and their domain."""
    want = spec.accelerators
    preset = policy.presets.get(want.product)
    if preset is None:
        gpus = want.gpus_per_node or _gpus_of(want.product, policy)
        return spec.model_copy(update={"accelerators": want.model_copy(update={"gpus_per_node": gpus})})
    accelerators = want.model_copy(
        update={
            "product": preset.product,
            "resource_name": preset.resource_name,
            "gpus_per_node": want.gpus_per_node or preset.gpus_per_node,
        }
    )
    placement = spec.placement.model_copy(update={"domain": preset.domain})
    return spec.model_copy(update={"accelerators": accelerators, "placement": placement})


def _gpus_of(product: str, policy: OperatorPolicy) -> int:
    added = policy.gpu_products.get(product)
    if added:
        return added.nvlink_gpus
    known = CATALOGUE.get(product)
    return known.nvlink_gpus if known else DEFAULT_GPUS_PER_NODE


def _listed(items: Iterable[str], limit: int = 8) -> str:
    every = list(items)
    more = f"; and {len(every) - limit} more" if len(every) > limit else ""
    return "; ".join(every[:limit]) + more
