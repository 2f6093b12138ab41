"""What the gateways are to be told: the intent, from the spec and from which groups serve.

Only the leader of a whole group that has answered a completion is an endpoint of a colour. The intent's
generation grows by one whenever its content changes and never otherwise; it survives the loss of the
ConfigMap through status. Limits per key are for the whole deployment and are divided among its gateway pods.

Keys are told only once every gateway pod that serves has them mounted: before, pods without keys would turn
away everybody. Once told they are never taken back while the spec asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from moe_operator.api.intent import (
    Colour,
    Intent,
    KeyLimits,
    Keys,
    Limits,
    LongContext,
    Preview,
    Queue,
    Timeouts,
    Tls,
)
from moe_operator.api.names import PATH_CLIENT_CA, PATH_KEYS, PATH_TLS
from moe_operator.api.spec import Gateway, MoESpec
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.gateway_acks import mounts_keys, serving_pods
from moe_operator.reconcile.return_time import retry_after_seconds
from moe_operator.reconcile.serve import served_name
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.resources.gateway_deployment import seen_from_xds
from moe_operator.rollout.groups import Group
from moe_operator.rollout.retire import Leave


def wanted_intent(snapshot: Snapshot, draft: Draft, spec: MoESpec) -> Intent:
    """The intent, with the generation it has or gets."""
    gateway, serving = spec.gateway, draft.records.get(draft.status.active_revision)
    wanted = Intent(
        generation=0,
        model=served_name(snapshot, serving.spec if serving else spec),
        colours=list(_colours(draft)),
        preview=_preview(draft, gateway),
        allowed_paths=list(gateway.allowed_paths),
        allowed_sources=list(gateway.allowed_sources),
        timeouts=Timeouts(
            first_byte_seconds=gateway.timeouts.first_byte_seconds, idle_seconds=gateway.timeouts.idle_seconds
        ),
        drain_seconds=spec.rollout.drain_seconds,
        retry_after_seconds=retry_after_seconds(snapshot, draft),
        limits=_limits(gateway),
        key_limits=list(_key_limits(gateway)),
        queue=Queue(max_waiting=gateway.queue.max_waiting, hold_seconds=gateway.queue.hold_seconds),
        long_context=_long_context(gateway),
        affinity_header=gateway.affinity_header or "",
        audit=gateway.audit.enabled,
        keys=_keys(snapshot, draft, gateway),
        tls=_tls(gateway),
        otlp_endpoint=gateway.otlp.endpoint if gateway.otlp else "",
    )
    return _numbered(draft, wanted)


def _numbered(draft: Draft, wanted: Intent) -> Intent:
    before = draft.intent
    if before and before.model_copy(update={"generation": 0}) == wanted:
        return before
    newest = max(before.generation if before else 0, draft.status.gateway.generation)
    return wanted.model_copy(update={"generation": newest + 1})


# Who serves


def _colours(draft: Draft) -> Iterable[Colour]:
    """One colour for each revision, under one name for its whole life.

    Envoy makes a new host, on which nothing runs, of an endpoint that changes its colour, and forgets what
    still runs on the old one. So a group on its way out stays where it is: with its colour's weight at 0, or
    marked as leaving beside groups that stay.
    """
    for revision in sorted({g.revision for g in draft.groups}):
        staying = [g.endpoint for g in draft.groups_of(revision) if g.endpoint and _serves(draft, g)]
        standby = [g.endpoint for g in draft.groups_of(revision) if g.endpoint and _stands_by(draft, g)]
        if revision in draft.weights and staying:
            marked = [endpoint.model_copy(update={"leaving": True}) for endpoint in standby]
            yield Colour(revision=revision, weight=draft.weights[revision], endpoints=[*staying, *marked])
        elif standby:
            yield Colour(revision=revision, weight=0, endpoints=standby)


def _serves(draft: Draft, group: Group) -> bool:
    return group.serving and (group.revision, group.replica) not in draft.leaving


def _stands_by(draft: Draft, group: Group) -> bool:
    return draft.leaving.get((group.revision, group.replica)) is Leave.STANDBY


def _preview(draft: Draft, gateway: Gateway) -> Preview | None:
    """The target while it takes no traffic yet, for those who may ask it."""
    target = draft.target
    if target is None or target.hash in draft.weights or not gateway.preview.allowed_keys:
        return None
    endpoints = [g.endpoint for g in draft.groups_of(target.hash) if g.endpoint and g.ready]
    if not endpoints:
        return None
    allowed = list(gateway.preview.allowed_keys)
    return Preview(revision=target.hash, endpoints=endpoints, allowed_key_ids=allowed)


# What clients may do


def _share(limit: int | None, pods: int) -> int | None:
    """One pod's part of a limit, rounded up: a limit of 1 still lets one request in, wherever it arrives."""
    return None if limit is None else -(-limit // pods)


def _limits(gateway: Gateway) -> Limits:
    limits, pods = gateway.limits, gateway.replicas
    return Limits(
        max_request_bytes=limits.max_request_bytes,
        max_header_bytes=limits.max_header_bytes,
        max_output_tokens=limits.max_output_tokens,
        max_context_tokens=limits.max_context_tokens,
        max_choices=limits.max_choices,
        bytes_per_token=limits.bytes_per_token,
        requests_per_minute_per_key=_share(limits.requests_per_minute_per_key, pods),
        concurrent_per_key=_share(limits.concurrent_per_key, pods),
        tokens_per_minute_per_key=_share(limits.tokens_per_minute_per_key, pods),
    )


def _key_limits(gateway: Gateway) -> Iterable[KeyLimits]:
    for one in sorted(gateway.limits.per_key, key=lambda limit: limit.key):
        yield KeyLimits(
            key_id=one.key,
            requests_per_minute=_share(one.requests_per_minute, gateway.replicas),
            concurrent=_share(one.concurrent, gateway.replicas),
            tokens_per_minute=_share(one.tokens_per_minute, gateway.replicas),
        )


def _long_context(gateway: Gateway) -> LongContext | None:
    wish = gateway.long_context
    if wish is None:
        return None
    return LongContext(threshold_tokens=wish.threshold_tokens, max_concurrent=wish.max_concurrent)


# Secrets


def _keys(snapshot: Snapshot, draft: Draft, gateway: Gateway) -> Keys | None:
    open_now = draft.intent is not None and draft.intent.keys is None
    if gateway.auth is None or (open_now and not all(map(mounts_keys, serving_pods(snapshot)))):
        return None
    return Keys(directory=seen_from_xds(PATH_KEYS), forward=gateway.auth.forward_authorization)


def _tls(gateway: Gateway) -> Tls | None:
    if gateway.tls is None:
        return None
    authority = seen_from_xds(PATH_CLIENT_CA) if gateway.tls.client_ca_ref else ""
    return Tls(directory=seen_from_xds(PATH_TLS), client_ca_directory=authority)
