"""One pod on this machine: volumes, init containers in order, containers together, and the way out.

The worker owns everything the pod has here. It ends in one of two ways: the pod is asked to go (stop
within the grace period, last status, then the API object is released) or is gone already (stop at once).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from moe_operator.api import names
from moe_operator.runtime.kube import POD, SERVICE, ApiError, Kube, Obj
from moe_operator.sandbox import environment
from moe_operator.sandbox.cluster_names import address_owner, resolver
from moe_operator.sandbox.container import Command, Container, ImageMissing, Timing
from moe_operator.sandbox.environment import PodFacts
from moe_operator.sandbox.events import Recorder
from moe_operator.sandbox.images import Images, bin_directory
from moe_operator.sandbox.objects import Key, deleting, key_of, moved_on, status_patch
from moe_operator.sandbox.pod_process import Process, spawn
from moe_operator.sandbox.pod_status import pod_status
from moe_operator.sandbox.reaper import Reaper
from moe_operator.sandbox.rewrite import Rewriter, expand
from moe_operator.sandbox.taken_port import PortTaken, holder_of, is_taken
from moe_operator.sandbox.volumes import Roots, VolumeNotReady, Volumes

logger = logging.getLogger(__name__)
MANAGER = "kubelet"
FORCED_GRACE_SECONDS = 1.0  # a pod that was deleted by force still gets a SIGTERM first
REPORT_RETRY_SECONDS = 0.5


Afterwards = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Machine:
    """What all pods of a sandbox share."""

    kube: Kube
    state: Path
    reaper: Reaper
    session: aiohttp.ClientSession
    recorder: Recorder
    images: Images
    claims: Mapping[Key, Path]
    timing: Timing
    api_url: str
    token_of: Callable[[str, str], str]
    address_of: Callable[[Hashable], str]
    clock: Callable[[], float] = time.time

    def node_root(self, node: str) -> Path:
        """The file system of a node."""
        return self.state / "nodes" / node

    def pod_root(self, pod: Obj) -> Path:
        """Everything of a pod that goes with it."""
        namespace, name = key_of(pod)
        return self.state / "pods" / f"{namespace}_{name}_{pod['metadata']['uid']}"


class PodWorker:
    """The life of one pod."""

    def __init__(self, pod: Obj, machine: Machine, on_end: Callable[[], None]) -> None:
        self.pod = pod
        self.pod_ip = machine.address_of(address_owner(pod))
        self.timing = machine.timing
        self.session = machine.session
        self._machine = machine
        self._on_end = on_end
        self._host_ip = machine.address_of(("node", pod["spec"]["nodeName"]))
        self._root = machine.pod_root(pod)
        self._volumes = Volumes(pod, self._roots(), machine.kube, self._facts())
        policy = pod["spec"].get("restartPolicy") or "Always"
        self._inits = [_init_container(c, self, policy) for c in pod["spec"].get("initContainers") or ()]
        self._containers = [Container(c, self, policy) for c in pod["spec"]["containers"]]
        self._begun = machine.clock()
        self._dirty = asyncio.Event()
        self._conditions = list((pod.get("status") or {}).get("conditions") or ())
        self._written: Obj = {}
        self._mounted = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self._ending_within = math.inf
        self._life = self._task(self._live())
        self._life.add_done_callback(self._report_defect)
        self._reports = self._task(self._report())

    @property
    def ended(self) -> bool:
        """Whether nothing of the pod is left here."""
        return self._ending is not None and self._ending.done()

    def processes(self) -> dict[str, int]:
        """Container → process id of what runs now."""
        return {
            c.name: c.process.pid for c in self._everything() if c.process is not None and c.process.running
        }

    # What the kubelet tells it

    def update(self, pod: Obj) -> None:
        """The pod as the API has it now."""
        self.pod = pod
        if deleting(pod):
            grace = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            self._end(grace, self._release)

    def vanish(self) -> None:
        """The API does not know the pod any more."""
        self._end(FORCED_GRACE_SECONDS, _nothing)

    async def refresh_volumes(self) -> None:
        """ConfigMaps or Secrets have changed."""
        if self._mounted:
            await self._volumes.refresh()

    async def close(self, grace: float) -> None:
        """The sandbox ends."""
        self._end(grace, _nothing)
        if self._ending:
            await self._ending

    # What its containers ask of it

    async def command(self, container: Obj) -> Command:
        """A container's command line on this machine."""
        image = self._machine.images.command(container)
        if image is None:
            raise ImageMissing(container["image"])
        seen = await environment.resolve(self._machine.kube, self.pod, container, self._facts())
        scratch = self._root / "containers" / container["name"]
        scratch.mkdir(parents=True, exist_ok=True)
        termination_log = scratch / "termination-log"
        rewriter = await self._rewriter(container, termination_log)
        self._check_ports(container)
        given = self._own_environment(scratch)
        return Command(
            argv=[*image.host, *rewriter.argv([expand(word, {**given, **seen}) for word in image.container])],
            env={**given, **{name: rewriter.text(value) for name, value in seen.items()}},
            cwd=Path(rewriter.path(str(container.get("workingDir") or "")) or scratch),
            termination_log=termination_log,
            rewriter=rewriter,
        )

    async def spawn(self, command: Command, log: Path, marker: str) -> Process:
        """Start a process of a container."""
        log.parent.mkdir(parents=True, exist_ok=True)
        return await spawn(
            command.argv,
            env=command.env,
            cwd=command.cwd,
            log=log,
            reaper=self._machine.reaper,
            marker=marker,
        )

    def log_path(self, container: Obj, restarts: int) -> Path:
        """Where the output of one run of a container goes."""
        return self._root / "logs" / str(container["name"]) / f"{restarts}.log"

    def changed(self) -> None:
        """A container's view has changed."""
        self._dirty.set()

    def event(self, kind: str, reason: str, message: str) -> None:
        """Record an event about the pod."""
        now = self._machine.clock()
        self._task(self._machine.recorder.record(self.pod, kind, reason, message, now))

    # Its life

    async def _live(self) -> None:
        waiting = "PodInitializing" if self._inits else "ContainerCreating"
        for container in self._everything():
            container.wait_for(waiting)
        self.changed()
        await self._mount()
        sidecars = []
        for container in self._inits:
            if container.sidecar:
                sidecars.append(self._task(_run(container)))
                await container.started.wait()
            elif not await _succeeds(container):
                break
        else:
            await asyncio.gather(*(c.run() for c in self._containers))
        await asyncio.gather(*(c.stop(self._grace()) for c in self._inits if c.sidecar))
        await asyncio.gather(*sidecars)

    async def _mount(self) -> None:
        while True:
            try:
                await self._volumes.prepare()
            except VolumeNotReady as error:
                self.event("Warning", "FailedMount", str(error))
                await asyncio.sleep(self.timing.volume_retry)
            else:
                self._mounted = True
                return

    def _end(self, grace: float, afterwards: Afterwards) -> None:
        """Begin to end, or hurry up: the shortest grace period that was given counts."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._stop(grace, afterwards))
        elif grace < self._ending_within:
            asyncio.get_running_loop().call_later(grace, self._kill)
        self._ending_within = min(grace, self._ending_within)

    async def _stop(self, grace: float, afterwards: Afterwards) -> None:
        await self._stop_containers(grace)
        self._life.cancel()
        self._reports.cancel()
        await asyncio.wait({self._life, self._reports})
        await afterwards()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self._root, ignore_errors=True)
        self._on_end()

    async def _stop_containers(self, grace: float) -> None:
        """Sidecars last, the newest first, in what is left of the grace period."""
        deadline = asyncio.get_running_loop().time() + grace
        await asyncio.gather(*(c.stop(grace) for c in self._everything() if not c.sidecar))
        for sidecar in (c for c in reversed(self._inits) if c.sidecar):
            await sidecar.stop(max(0.0, deadline - asyncio.get_running_loop().time()))

    async def _release(self) -> None:
        """Say the last word about the pod and let go of the API object."""
        namespace, name = key_of(self.pod)
        try:
            await self._write_status()
            await self._machine.kube.delete(
                POD, namespace, name, uid=self.pod["metadata"]["uid"], grace_seconds=0
            )
        except ApiError as error:
            if not moved_on(error):
                raise

    def _report_defect(self, life: asyncio.Task[None]) -> None:
        """What no rule foresaw is a defect of the sandbox: say it, loudly, where both readers look."""
        if not life.cancelled() and (error := life.exception()):
            logger.error("pod %s: internal error", key_of(self.pod), exc_info=error)
            self.event("Warning", "InternalError", f"{type(error).__name__}: {error}")

    def _kill(self) -> None:
        for container in self._everything():
            container.kill()

    # Its status

    async def _report(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._write_status()
            except ApiError as error:
                if error.not_found:
                    return
                await asyncio.sleep(REPORT_RETRY_SECONDS)
                self._dirty.set()

    async def _write_status(self) -> None:
        status = pod_status(
            {**self.pod, "status": {"conditions": self._conditions}},
            [c.view() for c in self._inits],
            [c.view() for c in self._containers],
            pod_ip=self.pod_ip,
            host_ip=self._host_ip,
            started_at=self._begun,
            now=self._machine.clock(),
        )
        if status != self._written:
            await self._machine.kube.apply_status(status_patch(self.pod, status), manager=MANAGER)
            self._written, self._conditions = status, status["conditions"]

    # What it is made of

    def _everything(self) -> Iterable[Container]:
        return [*self._inits, *self._containers]

    def _grace(self) -> float:
        grace = self.pod["spec"].get("terminationGracePeriodSeconds")
        return 30.0 if grace is None else float(grace)

    def _facts(self) -> PodFacts:
        return PodFacts(pod_ip=self.pod_ip, host_ip=self._host_ip)

    def _roots(self) -> Roots:
        machine = self._machine
        node = machine.node_root(self.pod["spec"]["nodeName"])
        account = self.pod["spec"].get("serviceAccountName") or "default"
        token = machine.token_of(key_of(self.pod).namespace, account)
        return Roots(pod=self._root, node=node, claims=machine.claims, token=token)

    async def _rewriter(self, container: Obj, termination_log: Path) -> Rewriter:
        services = (await self._machine.kube.list(SERVICE)).items
        pods = (await self._machine.kube.list(POD)).items
        message_path = container.get("terminationMessagePath") or names.PATH_TERMINATION_LOG
        mounts = {**self._volumes.mounts(container), message_path: str(termination_log)}
        return Rewriter(self.pod_ip, mounts, resolver(services, pods, self._machine.address_of))

    def _own_environment(self, scratch: Path) -> dict[str, str]:
        """What a runtime and a kubelet give every container."""
        host, _, port = self._machine.api_url.rpartition("://")[2].rpartition(":")
        return {
            "PATH": f"{bin_directory()}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "HOSTNAME": self.pod["spec"].get("hostname") or key_of(self.pod).name,
            "LANG": "C.UTF-8",
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "MOE_API_URL": self._machine.api_url,
        }

    def _check_ports(self, container: Obj) -> None:
        for entry in container.get("ports") or ():
            port = int(entry["containerPort"])
            if entry.get("protocol", "TCP") == "TCP" and is_taken(self.pod_ip, port):
                raise PortTaken(self.pod_ip, port, holder_of(self.pod_ip, port))

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _init_container(spec: Obj, worker: PodWorker, policy: str) -> Container:
    """An init container is tried again unless the pod never restarts; a sidecar always is."""
    sidecar = spec.get("restartPolicy") == "Always"
    own = "Always" if sidecar else "Never" if policy == "Never" else "OnFailure"
    return Container(spec, worker, own, sidecar=sidecar)


async def _succeeds(container: Container) -> bool:
    ended = await container.run()
    return ended is not None and ended.exit_code == 0


async def _run(container: Container) -> None:
    await container.run()


async def _nothing() -> None:
    return None
