"""One active operator: a coordination/v1 Lease that is held before anything is watched or written.

The rules are client-go's leader election. A candidate never compares the holder's clock with its own: it
takes the Lease over only after *watching it stand still* for the holder's own ``leaseDurationSeconds``.
The holder gives up (:class:`LeaseLost`) when it could not renew for :attr:`LeaseTimes.give_up`, which is
less than the duration, so it has stopped acting before anybody else starts. Every write carries the
resourceVersion it read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from moe_operator.runtime.kube import LEASE, ApiError, Kube, Obj

LEASE_NAME = "moe-operator"
log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """This process may not act any more; it must end at once."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds; ``give_up`` < ``duration``, and ``retry`` fits several times into ``give_up``."""

    duration: float = 15.0
    give_up: float = 10.0
    retry: float = 2.0


class LeaderLease:
    """One candidate for the Lease ``namespace``/``moe-operator``.

    ``monotonic`` measures, ``wall`` only fills the timestamps people read.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        identity: str,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]],
        times: LeaseTimes | None = None,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._identity = identity
        self._monotonic = monotonic
        self._wall = wall
        self._sleep = sleep
        self._times = times or LeaseTimes()
        self._seen_version = ""
        self._seen_at = 0.0
        self._renewed_at = 0.0

    async def acquire(self) -> None:
        """Wait until the Lease is ours; an unreachable API server is waited for as well."""
        while True:
            began = self._monotonic()
            try:
                if await self._try_acquire():
                    self._renewed_at = began
                    log.info("lease acquired", extra=self._fields())
                    return
            except ApiError as error:
                if not error.conflict:
                    log.warning("lease not readable", extra={"error": str(error), **self._fields()})
            await self._sleep(self._times.retry)

    async def hold(self) -> None:
        """Renew until the Lease is lost, then raise :class:`LeaseLost`; never returns."""
        while True:
            await self._sleep(self._times.retry)
            began = self._monotonic()
            try:
                # A request that hangs must not outlast the time that the Lease is surely ours.
                async with asyncio.timeout(self._times.give_up - (began - self._renewed_at)):
                    await self._renew()
                self._renewed_at = began
            except (ApiError, TimeoutError) as error:
                words = str(error) or "no answer"
                if isinstance(error, TimeoutError) or self._overdue():
                    raise LeaseLost(f"not renewed for {self._times.give_up:g} s: {words}") from error
                log.warning("lease not renewed", extra={"error": words, **self._fields()})

    async def release(self) -> None:
        """Hand the Lease back so that a standby need not wait; a failure only costs it that wait."""
        try:
            lease = await self._kube.get(LEASE, self._namespace, LEASE_NAME)
            if _holder(lease) == self._identity:
                lease["spec"] = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._kube.replace(lease)
        except ApiError as error:
            log.warning("lease not released", extra={"error": str(error), **self._fields()})

    def _overdue(self) -> bool:
        return self._monotonic() - self._renewed_at >= self._times.give_up

    async def _renew(self) -> None:
        lease = await self._kube.get(LEASE, self._namespace, LEASE_NAME)
        if _holder(lease) != self._identity:
            raise LeaseLost(f"the lease is held by {_holder(lease) or 'nobody'}")
        await self._kube.replace(self._held(lease, fresh=False))

    async def _try_acquire(self) -> bool:
        try:
            lease = await self._kube.get(LEASE, self._namespace, LEASE_NAME)
        except ApiError as error:
            if not error.not_found:
                raise
            await self._kube.create(self._held(self._new(), fresh=True))
            return True
        if not self._may_take(lease):
            return False
        await self._kube.replace(self._held(lease, fresh=_holder(lease) != self._identity))
        return True

    def _may_take(self, lease: Obj) -> bool:
        if _holder(lease) in {"", self._identity}:
            return True
        version, now = lease["metadata"]["resourceVersion"], self._monotonic()
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, now
            log.info("standing by", extra={"holder": _holder(lease), **self._fields()})
            return False
        duration = lease["spec"].get("leaseDurationSeconds") or self._times.duration
        return now - self._seen_at > float(duration)

    def _new(self) -> Obj:
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": LEASE_NAME, "namespace": self._namespace},
        }

    def _held(self, lease: Obj, *, fresh: bool) -> Obj:
        spec = lease.get("spec") or {}
        now = self._wall().isoformat(timespec="microseconds").replace("+00:00", "Z")
        taken = {
            "acquireTime": now,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (1 if spec else 0),
        }
        return {
            **lease,
            "spec": {
                **spec,
                **(taken if fresh else {}),
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(self._times.duration),
                "renewTime": now,
            },
        }

    def _fields(self) -> dict[str, str]:
        return {"namespace": self._namespace, "identity": self._identity}


def _holder(lease: Obj) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
