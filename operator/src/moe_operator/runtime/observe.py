"""Gathers one Snapshot: the MoEDeployment, its children, and what the next decision needs beyond them.

Children come from LISTs by label, never from a cache, so what is not in the snapshot does not exist. Only
then ``wants`` says which cluster facts and probes the decision needs; a converged deployment costs the
LISTs and little else.

What all MoEDeployments share (GPUs, places at a source, nodes' stores) is read under one lock for the whole
process, and the lock is held until the decision made from it is written: two can never be promised the same.

Answers of pods are worth waiting for only while the question stands. What changes it meanwhile (a rank is
lost, the spec was edited) makes the observation give up: ``Overtaken``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from moe_operator.api.manifest import StageProgress
from moe_operator.api.names import (
    COMPONENT_COLLECTOR,
    COMPONENT_ENGINE,
    COMPONENT_SCRUBBER,
    COMPONENT_STAGER,
    KIND,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    label_value,
)
from moe_operator.api.policy import OperatorPolicy
from moe_operator.hardware.gpu_requests import gpu_resource, promised_by_placements, taken_by_pods
from moe_operator.hardware.nodes import GpuNode
from moe_operator.reconcile.snapshot import (
    Cluster,
    Fleet,
    GatewayProbe,
    LeaderProbe,
    ResolverProbe,
    Snapshot,
    Wants,
)
from moe_operator.runtime.kube import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    EVENT,
    HTTP_ROUTE,
    INFERENCE_POOL,
    JOB,
    MOE_DEPLOYMENT,
    NAMESPACE,
    NETWORK_POLICY,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    ApiError,
    Kind,
    Kube,
    Obj,
)
from moe_operator.runtime.wakeups import Key

CHILD_KINDS: tuple[Kind, ...] = (
    SERVICE, CONFIG_MAP, JOB, DEPLOYMENT, CONTROLLER_REVISION, POD_DISRUPTION_BUDGET, NETWORK_POLICY,
    SERVICE_ACCOUNT, ROLE, ROLE_BINDING,
)  # fmt: skip

OPTIONAL_KINDS: tuple[Kind, ...] = (HTTP_ROUTE, INFERENCE_POOL)  # children whose CRD a cluster may lack
OURS = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
STORE_JOBS = f"{OURS},{LABEL_COMPONENT} in ({COMPONENT_STAGER},{COMPONENT_COLLECTOR},{COMPONENT_SCRUBBER})"
ENGINES = f"{OURS},{LABEL_COMPONENT}={COMPONENT_ENGINE}"

ENTROPY_BYTES = 32

T = TypeVar("T")


class Overtaken(Exception):
    """The world changed while pods were asked; the next look begins at once."""


class PodProbes(Protocol):
    """What can be asked of pods (see :class:`moe_operator.runtime.probes.Probes`)."""

    async def resolver(self, ip: str) -> ResolverProbe:
        """The manifest, or how far the resolver is."""
        ...

    async def progress(self, ip: str) -> StageProgress | None:
        """How far a stager is; None when it does not say."""
        ...

    async def leader(self, ip: str, *, completion_of: str = "") -> LeaderProbe:
        """Health of an engine, and a completion if a model is named."""
        ...

    async def gateway(self, pod: str, ip: str, *, wait_generation: int = -1) -> GatewayProbe:
        """What a gateway pod's agent runs."""
        ...


class Observer:
    """Reads the world for one reconcile.

    ``now`` is the wall clock in seconds since the epoch; ``overtaken`` returns when what is being observed of
    a key has changed since the look at it began.
    """

    def __init__(
        self,
        kube: Kube,
        probes: PodProbes,
        *,
        now: Callable[[], float],
        policy: OperatorPolicy,
        wants: Callable[[Snapshot], Wants],
        overtaken: Callable[[Key], Awaitable[object]],
        operator_version: str = "",
        entropy: Callable[[], str] = lambda: secrets.token_hex(ENTROPY_BYTES),
    ) -> None:
        self._kube = kube
        self._probes = probes
        self._now = now
        self._policy = policy
        self._wants = wants
        self._version = operator_version
        self._entropy = entropy
        self._overtaken = overtaken
        self._claims = asyncio.Lock()

    @asynccontextmanager
    async def observed(self, key: Key, last_error: str = "") -> AsyncIterator[Snapshot | None]:
        """Everything about ``key`` as of now; None when it does not exist. ApiError when unreadable.

        Overtaken when what its pods were asked is out of date before they answered.

        While this is entered nobody else sees ``cluster`` and ``fleet`` of a snapshot that has them, so a
        decision that claims is to be written before it is left.
        """
        snapshot, wants = await self._asked(key, last_error)
        if snapshot is None or not wants.shared:
            yield snapshot
            return
        had_to_wait = self._claims.locked()
        async with self._claims:
            if had_to_wait:  # for how long, nobody knows
                snapshot, wants = await self._asked(key, last_error)
            yield snapshot and await self._with_shared(snapshot, wants)

    async def _asked(self, key: Key, last_error: str) -> tuple[Snapshot | None, Wants]:
        """The deployment, its children and what its pods say; and what is wanted for it."""
        snapshot = await self._own(key, last_error)
        if snapshot is None:
            return None, Wants()
        wants = self._wants(snapshot)
        return await self._unless_overtaken(key, self._with_answers(snapshot, wants)), wants

    async def _unless_overtaken(self, key: Key, answers: Awaitable[Snapshot]) -> Snapshot:
        asking, overtaken = asyncio.ensure_future(answers), asyncio.ensure_future(self._overtaken(key))
        try:
            await asyncio.wait({asking, overtaken}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                overtaken.result()
                raise Overtaken
            return asking.result()
        finally:
            asking.cancel()
            overtaken.cancel()
            await asyncio.gather(asking, overtaken, return_exceptions=True)

    async def _own(self, key: Key, last_error: str) -> Snapshot | None:
        try:
            obj = await self._kube.get(MOE_DEPLOYMENT, key.namespace, key.name)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        labels = f"{LABEL_DEPLOYMENT}={label_value(key.name)}"
        kinds = (*CHILD_KINDS, *OPTIONAL_KINDS)
        terminating, pods, *children = await _together(
            self._namespace_terminating(key.namespace),
            self._list(POD, key.namespace, labels),
            *(self._list(kind, key.namespace, labels) for kind in CHILD_KINDS),
            *(self._list_if_served(kind, key.namespace) for kind in OPTIONAL_KINDS),
        )
        uid = obj["metadata"]["uid"]
        return Snapshot(
            now=self._now(),
            policy=self._policy,
            object=obj,
            pods=tuple(pod for pod in pods if _not_anothers(pod, obj)),
            children={
                kind.kind: tuple(child for child in found if _owner(child).get("uid") == uid)
                for kind, found in zip(kinds, children, strict=True)
                if found is not None
            },
            taken={
                kind.kind: frozenset(o["metadata"]["name"] for o in found if _owner(o).get("uid") != uid)
                for kind, found in zip(OPTIONAL_KINDS, children[len(CHILD_KINDS) :], strict=True)
                if found is not None
            },
            namespace_terminating=terminating,
            last_error=last_error,
            operator_version=self._version,
            entropy=self._entropy(),
        )

    async def _with_answers(self, snapshot: Snapshot, wants: Wants) -> Snapshot:
        """The snapshot with what pods and Events say; all questions at the same time."""
        complaints, resolver, stagers, leaders, gateways = await _together(
            self._complaints(snapshot.namespace, wants.complaints) if wants.complaints else _nothing(),
            self._probes.resolver(wants.resolver_pod_ip) if wants.resolver_pod_ip else _nothing(),
            _each({pod: partial(self._probes.progress, ip) for pod, ip in wants.stager_pods.items()}),
            _each({pod: partial(self._leader, pod, ip, wants) for pod, ip in wants.leaders.items()}),
            _each(
                {
                    pod: partial(self._probes.gateway, pod, ip, wait_generation=wants.ack_generation)
                    for pod, ip in wants.gateway_pods.items()
                }
            ),
        )
        return replace(
            snapshot,
            now=self._now(),
            complaints=complaints or {},
            resolver=resolver,
            stagers={pod: progress for pod, progress in stagers.items() if progress is not None},
            leaders=leaders,
            gateways=tuple(gateways.values()),
        )

    async def _with_shared(self, snapshot: Snapshot, wants: Wants) -> Snapshot:
        """The snapshot with what all MoEDeployments share, as far as it is wanted."""
        cluster, fleet = await _together(
            self._cluster(snapshot.object) if wants.cluster else _nothing(),
            self._fleet() if wants.fleet else _nothing(),
        )
        return replace(snapshot, now=self._now(), cluster=cluster, fleet=fleet)

    async def _cluster(self, obj: Obj) -> Cluster:
        nodes, pods, deployments = await _together(
            self._list(NODE), self._list(POD), self._list(MOE_DEPLOYMENT)
        )
        resource = gpu_resource(obj, self._policy)
        found = (GpuNode.from_node(node, resource) for node in nodes)
        return Cluster(
            nodes=tuple(node for node in found if node.capacity),
            taken=taken_by_pods(pods, resource),
            promised=promised_by_placements(deployments, pods, resource, self._policy),
        )

    async def _fleet(self) -> Fleet:
        nodes, jobs, deployments, engines = await _together(
            self._list(NODE),
            self._list(JOB, labels=STORE_JOBS),
            self._list(MOE_DEPLOYMENT),
            self._list(POD, labels=ENGINES),
        )
        uids = {node["metadata"]["name"]: node["metadata"].get("uid", "") for node in nodes}
        return Fleet(uids, jobs, deployments, engines)

    async def _complaints(self, namespace: str, uids: Collection[str]) -> dict[str, str]:
        """The newest warning about each pod; Events are the only place where a kubelet names a volume."""
        warnings = await self._list(EVENT, namespace, fields="involvedObject.kind=Pod,type=Warning")
        oldest_first = sorted(warnings, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
        said = {e["involvedObject"].get("uid", ""): f"{e['reason']}: {e['message']}" for e in oldest_first}
        return {uid: words for uid, words in said.items() if uid in uids}

    def _leader(self, pod: str, ip: str, wants: Wants) -> Awaitable[LeaderProbe]:
        return self._probes.leader(ip, completion_of=wants.completions.get(pod, ""))

    async def _namespace_terminating(self, namespace: str) -> bool:
        try:
            found = await self._kube.get(NAMESPACE, None, namespace)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        phase = (found.get("status") or {}).get("phase")
        return phase == "Terminating" or bool(found["metadata"].get("deletionTimestamp"))

    async def _list(
        self, kind: Kind, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> tuple[Obj, ...]:
        return (await self._kube.list(kind, namespace, labels=labels, fields=fields)).items

    async def _list_if_served(self, kind: Kind, namespace: str) -> tuple[Obj, ...] | None:
        """Everybody's, since a spec may choose a child's name; None when there is no such kind."""
        try:
            return await self._list(kind, namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise


def _owner(obj: Obj) -> Mapping[str, Any]:
    """The controller reference of an object; empty when nobody controls it."""
    references = obj["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), {})


def _not_anothers(pod: Obj, deployment: Obj) -> bool:
    """Keep our engine pods and those that Jobs and Deployments own for us.

    A pod that a deleted MoEDeployment of the same name left behind is the garbage collector's.
    """
    owner, mine = _owner(pod), deployment["metadata"]
    if owner.get("kind") == KIND:
        return bool(owner.get("uid") == mine["uid"])
    return bool(pod["metadata"]["creationTimestamp"] >= mine["creationTimestamp"])


async def _together(*calls: Awaitable[Any]) -> list[Any]:
    """Results in order; the first failure cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _each(calls: Mapping[str, Callable[[], Awaitable[T]]]) -> dict[str, T]:
    """Begun here and not by the caller: what is given up before it runs must hold nothing half begun."""
    return dict(zip(calls, await _together(*(call() for call in calls.values())), strict=True))


async def _nothing() -> None:
    return None
