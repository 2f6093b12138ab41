"""The operator's process: wait for the API server, win the lease, watch and reconcile until told to stop.

Whatever makes this process unable to do its part ends it with a code that says why (:class:`ExitCode`);
the kubelet starts it again. An API server that is away is not such a reason: it is waited for.
Being killed at any moment is fine by design, so stopping gives passes in flight only a short grace.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from functools import partial
from typing import Any
from uuid import uuid4

from moe_operator import __version__
from moe_operator.api.names import GROUP, PLURAL, VERSION
from moe_operator.api.policy import OperatorPolicy
from moe_operator.reconcile.actions import Decision
from moe_operator.reconcile.snapshot import Snapshot, Wants
from moe_operator.runtime.execute import Executor
from moe_operator.runtime.health import HealthServer, Phase, Vitals
from moe_operator.runtime.kopf_app import Watches
from moe_operator.runtime.kube import MOE_DEPLOYMENT, ApiError, Kube
from moe_operator.runtime.lease import LeaderLease, LeaseLost
from moe_operator.runtime.metrics import MeteredKube, OperatorMetrics
from moe_operator.runtime.observe import Observer
from moe_operator.runtime.probes import Probes
from moe_operator.runtime.queue import WorkQueue, backoff_seconds
from moe_operator.runtime.reconcile_loop import AWAY_CAP_SECONDS, ReconcileLoop, every
from moe_operator.runtime.wakeups import SWEEP_SECONDS, Key, WakeUps

STOP_GRACE_SECONDS = 0.5
WATCH_STOP_SECONDS = 1.0
log = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """Exit codes of ``moe-operator run``."""

    OK = 0  # told to stop, stopped
    FAILED = 1  # a watch or a worker ended; the log says why
    USAGE = 2  # bad arguments, bad configuration file, or no way to reach an API server
    CRD_ABSENT = 3  # the API server does not know MoEDeployment
    LEASE_LOST = 4  # another operator may act now
    ADDRESS_TAKEN = 5  # --listen cannot be bound


@dataclass(frozen=True, slots=True)
class Options:
    """What ``moe-operator run`` was told."""

    policy: OperatorPolicy
    kubeconfig: str | None = None  # None = the pod's service account
    namespaces: tuple[str, ...] = ()  # empty = all
    listen: tuple[str, int] = ("0.0.0.0", 8080)
    lease_namespace: str | None = None  # None = no lease: the only operator
    workers: int = 4


Connect = Callable[[str | None], Awaitable[AbstractAsyncContextManager[Kube]]]


@dataclass(frozen=True, slots=True)
class Brain:
    """The pure part: which IO a snapshot still needs, and what follows from it."""

    wants: Callable[[Snapshot], Wants]
    decide: Callable[[Snapshot], Decision]


class CrdAbsent(Exception):
    """The API server does not serve MoEDeployments."""


async def run_operator(
    options: Options, brain: Brain, connect: Connect, stop: asyncio.Event | None = None
) -> ExitCode:
    """Run until SIGTERM, SIGINT or ``stop``, or until something ends it; see :class:`ExitCode`."""
    stop = stop or asyncio.Event()
    _take_signals(stop)
    metrics, vitals = OperatorMetrics(__version__), Vitals()
    health = HealthServer(*options.listen, vitals, metrics.exposition)
    try:
        await health.start()
    except OSError as error:
        log.error("address not available", extra={"listen": _address(options.listen), "error": str(error)})
        await health.stop()
        return ExitCode.ADDRESS_TAKEN
    log.info(
        "operator starting",
        extra={
            "version": __version__,
            "listen": _address(health.address),
            "namespaces": ",".join(options.namespaces) or "all",
            "workers": options.workers,
        },
    )
    try:
        async with await connect(options.kubeconfig) as client:
            code = await _Operator(options, brain, MeteredKube(client, metrics), metrics, vitals, stop).live()
    finally:
        await health.stop()
    log.info("operator stopped", extra={"exit_code": int(code), "reason": code.name})
    return code


class _Operator:
    """One life of the process, from the first answer of the API server to the last write."""

    def __init__(
        self,
        options: Options,
        brain: Brain,
        kube: Kube,
        metrics: OperatorMetrics,
        vitals: Vitals,
        stop: asyncio.Event,
    ) -> None:
        self._options = options
        self._brain = brain
        self._kube = kube
        self._metrics = metrics
        self._vitals = vitals
        self._stop = stop
        self._rng = random.Random()
        self._identity = _new_identity()

    async def live(self) -> ExitCode:
        try:
            if not await self._unless_stopped(self._api_answers()):
                return ExitCode.OK
        except CrdAbsent as error:
            log.error("custom resource definition absent", extra={"error": str(error)})
            return ExitCode.CRD_ABSENT
        if self._options.lease_namespace is None:
            log.info("no lease asked for: this must be the only operator")
            return await self._lead(None)
        self._vitals.phase = Phase.STANDBY
        lease = self._lease(self._options.lease_namespace)
        if not await self._unless_stopped(lease.acquire()):
            return ExitCode.OK
        code = await self._lead(lease)
        if code is not ExitCode.LEASE_LOST:
            await lease.release()
        return code

    async def _lead(self, lease: LeaderLease | None) -> ExitCode:
        """Watch and reconcile until stopped, or until one of the parts ends."""
        self._metrics.is_leader.set(1)
        queue: WorkQueue[Key] = WorkQueue(asyncio.get_running_loop(), self._rng, self._metrics)
        wakeups = WakeUps(queue, self._rng)
        probes = Probes()
        stop_watching = asyncio.Event()
        tasks: dict[str, asyncio.Task[Any]] = {
            "stop": asyncio.create_task(self._stop.wait()),
            "workers": asyncio.create_task(self._work(queue, wakeups, probes)),
            "sweep": asyncio.create_task(
                every(SWEEP_SECONDS, partial(self._sweep, wakeups), sleep=asyncio.sleep)
            ),
            "watches": asyncio.create_task(self._watch(wakeups, stop_watching)),
        }
        if lease is not None:
            tasks["lease"] = asyncio.create_task(lease.hold())
        try:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            code = _verdict(tasks)
            if code is ExitCode.OK:
                queue.close()
                await asyncio.wait({tasks["workers"]}, timeout=STOP_GRACE_SECONDS)
        finally:
            self._vitals.phase = Phase.STOPPING
            self._metrics.is_leader.set(0)
            queue.close()
            watches = tasks.pop("watches")
            await _end(*tasks.values())
            stop_watching.set()
            await asyncio.wait({watches}, timeout=WATCH_STOP_SECONDS)
            await _end(watches)
            await probes.aclose()
        return code

    async def _work(self, queue: WorkQueue[Key], wakeups: WakeUps, probes: Probes) -> None:
        observer = Observer(
            self._kube,
            probes,
            now=time.time,
            policy=self._options.policy,
            wants=self._brain.wants,
            overtaken=queue.overtaken,
            operator_version=__version__,
        )
        executor = Executor(self._kube, time.time, instance=self._identity)
        loop = ReconcileLoop(
            queue, observer, self._brain.decide, executor, self._metrics, gone=wakeups.forget
        )
        await queue.work(self._options.workers, loop.reconcile)

    async def _watch(self, wakeups: WakeUps, stop: asyncio.Event) -> None:
        watches = Watches(
            wakeups,
            self._metrics,
            kubeconfig=self._options.kubeconfig,
            namespaces=self._options.namespaces,
        )
        await watches.run(stop, after_start=self._watching)

    def _watching(self) -> None:
        _take_signals(self._stop)  # kopf has just installed its own handlers
        self._vitals.phase = Phase.WATCHING
        log.info("watching")

    async def _sweep(self, wakeups: WakeUps) -> None:
        for namespace in self._options.namespaces or (None,):
            wakeups.sweep((await self._kube.list(MOE_DEPLOYMENT, namespace)).items)

    async def _api_answers(self) -> None:
        """Wait for an API server that knows our resource; CrdAbsent when it answers but does not."""
        failures = 0
        while True:
            try:
                for namespace in self._options.namespaces or (None,):
                    await self._kube.list(MOE_DEPLOYMENT, namespace)
                return
            except ApiError as error:
                if error.not_found:
                    raise CrdAbsent(
                        f"the API server does not serve {PLURAL}.{GROUP}/{VERSION}: install the CRD first "
                        f"(kubectl apply -f crds/), then start the operator again"
                    ) from error
                delay = backoff_seconds(failures, self._rng, AWAY_CAP_SECONDS)
                failures += 1
                log.warning(
                    "API server not usable yet",
                    extra={"error": str(error), "reason": error.reason, "retry_in_s": round(delay, 1)},
                )
            await asyncio.sleep(delay)

    async def _unless_stopped(self, call: Awaitable[None]) -> bool:
        """Await ``call``; False when the process was told to stop first."""
        task, stopped = asyncio.ensure_future(call), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            await _end(task, stopped)

    def _lease(self, namespace: str) -> LeaderLease:
        return LeaderLease(
            self._kube,
            namespace,
            self._identity,
            monotonic=time.monotonic,
            wall=lambda: datetime.now(UTC),
            sleep=asyncio.sleep,
        )


def _verdict(tasks: dict[str, asyncio.Task[Any]]) -> ExitCode:
    """Which part ended first, and what that means."""
    for name, task in tasks.items():
        if name == "stop" or not task.done():
            continue
        error = task.exception()
        if isinstance(error, LeaseLost):
            log.error("lease lost", extra={"error": str(error)})
            return ExitCode.LEASE_LOST
        log.error(f"{name} ended", exc_info=error, extra={"error": str(error) if error else "without a word"})
        return ExitCode.FAILED
    return ExitCode.OK


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs and wait for it; what it raises was reported or matters no more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _take_signals(stop: asyncio.Event) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # the main thread's owner has the signals
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _new_identity() -> str:
    """Who we are in the Lease and in Events: the pod, or the host and a number nobody else has.

    A container that restarts in its pod is the same holder, so it need not wait for its own Lease to expire.
    """
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{uuid4().hex[:8]}"


def _address(listen: tuple[str, int]) -> str:
    host, port = listen
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
