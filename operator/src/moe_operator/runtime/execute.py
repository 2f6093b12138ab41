"""Carries out a decision: status first, then events and actions, step by step.

What is applied in a row makes up to four steps: the finalizer and what must be there before a pod is
(records, configuration, network policies); then Pods and Jobs, alone, because loading weights takes longest
and a Role costs the API server more than four Pods; then what the rest of the world needs, and last what
needs that (a Deployment its ServiceAccount, a binding its Role). The writes of a step are under way together,
because a group of four pods has twenty of them. Whatever part of a step a crash leaves undone is found undone
by the next pass.

Invariants: nothing is written when nothing changed; after the first error no write begins, and an
irreversible action ends the pass; every write of the MoEDeployment itself carries the resourceVersion the
decision was made from (or the one our own status write returned), every delete the uid and resourceVersion
it saw.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby

from moe_operator.api.names import (
    API_VERSION,
    FIELD_MANAGER,
    FINALIZER,
    KIND,
    MARK_FIELD_MANAGER,
    STATUS_FIELD_MANAGER,
    bounded,
    digest,
)
from moe_operator.reconcile.actions import (
    Action,
    AddFinalizer,
    Apply,
    Decision,
    Delete,
    Event,
    Mark,
    Ref,
    RemoveFinalizer,
)
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.runtime.kube import EVENT as EVENT_KIND
from moe_operator.runtime.kube import KINDS, MOE_DEPLOYMENT, ApiError, JsonPatch, Kind, Kube, Obj

KIND_BY_NAME: dict[str, Kind] = {kind.kind: kind for kind in KINDS}
# In which step of a row; everything else is in the first.
PLACES = {
    "Pod": 1, "Job": 1,
    "Service": 2, "ServiceAccount": 2, "PodDisruptionBudget": 2, "Role": 2,
    "Deployment": 3, "HTTPRoute": 3, "InferencePool": 3, "RoleBinding": 3,
}  # fmt: skip
AT_ONCE = 16  # writes; beyond that an API server of modest size answers none of them sooner
EVENT_MESSAGE_MAX = 1024  # bytes the API server accepts in an Event
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a pass ended.

    ``wake_after`` in seconds, 0 = at once, None = nothing to wait for. ``error`` is what stopped it;
    a ``conflict`` is no failure: somebody else wrote first, so look again.
    """

    writes: int = 0
    wake_after: float | None = None
    error: ApiError | None = None

    @property
    def conflict(self) -> bool:
        """Whether a precondition did not hold (a JSON patch's failed ``test`` is a 422)."""
        return self.error is not None and (self.error.conflict or isinstance(self.error, Outdated))


class Outdated(ApiError):
    """The object moved on between the snapshot and the write."""


class Executor:
    """Executes decisions through one client; ``now`` gives the wall clock for Events."""

    def __init__(self, kube: Kube, now: Callable[[], float], instance: str = "moe-operator") -> None:
        self._kube = kube
        self._now = now
        self._instance = instance

    async def execute(self, snapshot: Snapshot, decision: Decision) -> Outcome:
        """Do what ``decision`` says about ``snapshot``; never raises ApiError."""
        run = _Pass(self._kube, snapshot)
        try:
            if decision.status is not None and decision.status != (snapshot.object.get("status") or {}):
                await run.write_status(decision.status)
            telling = [partial(self._post, snapshot, event) for event in decision.events]
            ended = False
            for step in steps(decision.actions):
                await at_once([*telling, *(partial(run.act, action) for action in step)])
                telling, ended = [], step[-1].irreversible
            await at_once(telling)
        except ApiError as error:
            return Outcome(run.writes, decision.wake_after, error)
        return Outcome(run.writes, 0.0 if ended else decision.wake_after)

    async def _post(self, snapshot: Snapshot, event: Event) -> None:
        """Events are for people: one that cannot be posted is logged and never stops a pass."""
        body = event_object(snapshot, event, self._now(), self._instance)
        try:
            await self._kube.create(body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                log.warning("event not posted", extra={"reason": event.reason, "error": str(error)})


def steps(actions: Iterable[Action]) -> Iterator[Sequence[Action]]:
    """Actions that may be under way together, up to the first irreversible one."""
    for in_a_row, row in groupby(actions, key=lambda action: isinstance(action, Apply | AddFinalizer)):
        if in_a_row:
            yield from (list(step) for _, step in groupby(sorted(row, key=place), key=place))
            continue
        for action in row:
            yield (action,)
            if action.irreversible:
                return


def place(action: Action) -> int:
    """In which step of a row something is written."""
    return PLACES.get(action.object["kind"], 0) if isinstance(action, Apply) else 0


async def at_once(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Make the calls, :data:`AT_ONCE` at a time; after a failure none begins, and the first one is raised."""
    waiting, failures = iter(calls), list[ApiError]()

    async def worker() -> None:
        for call in waiting:
            if failures:
                return
            try:
                await call()
            except ApiError as error:
                failures.append(error)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    if failures:
        raise failures[0]


class _Pass:
    """The writes of one pass; knows the newest resourceVersion of the MoEDeployment."""

    def __init__(self, kube: Kube, snapshot: Snapshot) -> None:
        self._kube = kube
        self._object = snapshot.object
        self._version = str(snapshot.object["metadata"]["resourceVersion"])
        self.writes = 0

    async def write_status(self, status: Obj) -> None:
        meta = self._object["metadata"]
        written = await self._kube.apply_status(
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {
                    "name": meta["name"],
                    "namespace": meta["namespace"],
                    "uid": meta["uid"],
                    "resourceVersion": self._version,
                },
                "status": status,
            },
            manager=STATUS_FIELD_MANAGER,
        )
        self._version = str(written["metadata"]["resourceVersion"])
        self.writes += 1

    async def act(self, action: Action) -> None:
        match action:
            case Apply(obj):
                await self._kube.apply(obj, manager=FIELD_MANAGER)
                self.writes += 1
            case Mark(obj):
                await self._kube.apply(obj, manager=MARK_FIELD_MANAGER)
                self.writes += 1
            case Delete():
                await self._delete(action)
            case AddFinalizer():
                await self._patch_finalizers(self._added())
            case RemoveFinalizer():
                await self._release()

    async def _delete(self, action: Delete) -> None:
        await at_once(partial(self._delete_one, ref, action.grace_seconds) for ref in action.refs)

    async def _delete_one(self, ref: Ref, grace_seconds: int | None) -> None:
        try:
            await self._kube.delete(
                KIND_BY_NAME[ref.kind],
                ref.namespace,
                ref.name,
                uid=ref.uid or None,
                resource_version=ref.resource_version or None,
                grace_seconds=grace_seconds,
            )
        except ApiError as error:
            if not error.not_found:
                raise
        else:
            self.writes += 1

    def _added(self) -> JsonPatch:
        finalizers = self._object["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            return []
        if finalizers:
            return [{"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}]
        return [{"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]}]

    def _removed(self) -> JsonPatch:
        finalizers = self._object["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return []
        return [{"op": "remove", "path": f"/metadata/finalizers/{finalizers.index(FINALIZER)}"}]

    async def _patch_finalizers(self, operations: JsonPatch) -> None:
        if not operations:
            return
        meta = self._object["metadata"]
        unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": self._version}
        try:
            written = await self._kube.patch_json(
                MOE_DEPLOYMENT, meta["namespace"], meta["name"], [unchanged, *operations]
            )
        except ApiError as error:
            if error.not_found or error.status == 422:
                raise Outdated(error.status, error.reason, error.message) from error
            raise
        self._version = str(written["metadata"]["resourceVersion"])
        self.writes += 1

    async def _release(self) -> None:
        try:
            await self._patch_finalizers(self._removed())
        except Outdated as error:
            if not error.not_found:  # gone meanwhile: nothing left to release
                raise


def event_object(snapshot: Snapshot, event: Event, now: float, instance: str) -> Obj:
    """A core/v1 Event about the MoEDeployment.

    Its name is a function of the words and of the object's version they were decided from, so a change is
    told once, and the same change happening again is told again.
    """
    when = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    message = event.message.encode()[:EVENT_MESSAGE_MAX].decode(errors="ignore")
    version = str(snapshot.object["metadata"]["resourceVersion"])
    tail = digest(f"{snapshot.uid}/{version}/{event.reason}/{event.message}", 16)
    return {
        "apiVersion": EVENT_KIND.api_version,
        "kind": EVENT_KIND.kind,
        "metadata": {"name": f"{bounded(snapshot.name)}.{tail}", "namespace": snapshot.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": snapshot.name,
            "namespace": snapshot.namespace,
            "uid": snapshot.uid,
            "resourceVersion": version,
        },
        "type": event.type,
        "reason": event.reason,
        "message": message,
        "source": {"component": "moe-operator"},
        "reportingComponent": "moe-operator",
        "reportingInstance": instance,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }
