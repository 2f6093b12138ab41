"""One container of a pod: from its image to its last exit.

The life is a loop: prepare (image, environment, command), run, judge the exit, and run again if the
restart policy says so, after kubelet's back-off. Whatever changes is told to the pod at once. Stopping
is preStop, SIGTERM, and SIGKILL to everything when the grace period is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import aiohttp

from moe_operator.runtime.kube import Obj
from moe_operator.sandbox import probes
from moe_operator.sandbox.environment import ConfigMissing
from moe_operator.sandbox.images import cannot_pull
from moe_operator.sandbox.pod_process import CannotStart, Process
from moe_operator.sandbox.pod_status import ContainerView, Running, State, Terminated, Waiting
from moe_operator.sandbox.rewrite import Rewriter
from moe_operator.sandbox.taken_port import PortTaken

START_ERROR_CODE = 128  # what containerd reports when the command cannot be executed
TERMINATION_MESSAGE_BYTES = 4096
LOG_TAIL_BYTES, LOG_TAIL_LINES = 2048, 80


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a kubelet's patience; the defaults are kubelet's."""

    restart_backoff: float = 10.0
    restart_backoff_max: float = 300.0
    restart_backoff_reset: float = 600.0
    image_backoff: float = 10.0
    image_backoff_max: float = 300.0
    config_retry: float = 5.0
    volume_retry: float = 2.0


@dataclass(frozen=True, slots=True)
class Command:
    """A container's command line as this machine runs it, and its files."""

    argv: list[str]
    env: dict[str, str]
    cwd: Path
    termination_log: Path
    rewriter: Rewriter

    def seen_by_host(self, argv: list[str]) -> Command:
        """Another command line in the same container."""
        return replace(self, argv=self.rewriter.argv(argv))


class ImageMissing(Exception):
    """The image means nothing on this machine."""


class Host(Protocol):
    """What a container needs of its pod."""

    pod: Obj
    pod_ip: str
    timing: Timing
    session: aiohttp.ClientSession

    async def command(self, container: Obj) -> Command:
        """Make everything ready; ImageMissing, ConfigMissing or PortTaken when it cannot be."""
        ...

    async def spawn(self, command: Command, log: Path, marker: str) -> Process:
        """Start a process; those with the same ``marker`` end together."""
        ...

    def log_path(self, container: Obj, restarts: int) -> Path:
        """Where the output of one run goes."""
        ...

    def changed(self) -> None:
        """The container's view has changed."""
        ...

    def event(self, kind: str, reason: str, message: str) -> None:
        """Something people should read."""
        ...


class Container:
    """The life of one container."""

    def __init__(self, spec: Obj, host: Host, restart_policy: str, *, sidecar: bool = False) -> None:
        self.spec = spec
        self.process: Process | None = None
        self.started = asyncio.Event()
        self._host = host
        self._restart_policy = restart_policy
        self.sidecar = sidecar
        self._state: State = Waiting("ContainerCreating")
        self._last: Terminated | None = None
        self._restarts = 0
        self._ready = self._done = False
        self._stopping = asyncio.Event()
        self._returned: asyncio.Event | None = None
        self._command: Command | None = None
        self._execs = 0

    @property
    def name(self) -> str:
        """Its name in the pod."""
        return str(self.spec["name"])

    @property
    def _marker(self) -> str:
        """What all its processes carry, and no other container's."""
        pod = self._host.pod["metadata"]
        return f"{pod['namespace']}/{pod['name']}/{pod.get('uid', '')}/{self.name}/{self._restarts}"

    def view(self) -> ContainerView:
        """Itself at this moment."""
        return ContainerView(
            name=self.name,
            image=self.spec["image"],
            state=self._state,
            last=self._last,
            restarts=self._restarts,
            ready=self._ready,
            started=self.started.is_set(),
            done=self._done,
            sidecar=self.sidecar,
            container_id=f"process://{self.process.pid}" if self.process else "",
        )

    async def run(self) -> Terminated | None:
        """Live until nothing will run again; how it ended, None when it was stopped before it ran."""
        self._returned = asyncio.Event()
        try:
            return await self._live()
        finally:
            self._done = True
            self._host.changed()
            self._returned.set()

    async def _live(self) -> Terminated | None:
        backoff = _Backoff(self._host.timing)
        while True:
            command = await self._prepare()
            if command is None:
                break
            ended = await self._run_once(command)
            if self._stopping.is_set() or not self._restarts_after(ended.exit_code):
                break
            self._last = ended
            if not await self._wait_to_restart(backoff, ended):
                break
            self._restarts += 1
        return self._state if isinstance(self._state, Terminated) else None

    async def stop(self, grace: float) -> None:
        """End it for good within ``grace`` seconds."""
        self._stopping.set()
        if self.process and self.process.running:
            await self._end(self.process, grace)
        if self._returned:
            await self._returned.wait()

    def kill(self) -> None:
        """End it now."""
        self._stopping.set()
        if self.process:
            self.process.kill()

    def wait_for(self, reason: str, message: str = "") -> None:
        """Say why it does not run yet."""
        self._become(Waiting(reason, message))

    def _become(self, state: State) -> None:
        if state != self._state:
            self._state = state
            self._host.changed()

    async def _prepare(self) -> Command | None:
        """The command, as soon as image, configuration and ports are there; None when stopped before."""
        timing = self._host.timing
        pull_delay = timing.image_backoff
        while not self._stopping.is_set():
            try:
                return await self._host.command(self.spec)
            except ImageMissing:
                image = self.spec["image"]
                message = cannot_pull(image)
                self.wait_for("ErrImagePull", message)
                self._host.event("Warning", "Failed", message)
                # A kubelet shows the first error for one sync before it says that it waits.
                if await self._stopped_within(min(1.0, pull_delay)):
                    return None
                self.wait_for(
                    "ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {message}'
                )
                delay, pull_delay = pull_delay, min(pull_delay * 2, timing.image_backoff_max)
            except ConfigMissing as error:
                self.wait_for("CreateContainerConfigError", str(error))
                self._host.event("Warning", "Failed", f"Error: {error}")
                delay = timing.config_retry
            except PortTaken as error:
                self.wait_for("CreateContainerError", str(error))
                self._host.event("Warning", "Failed", f"Error: {error}")
                delay = timing.config_retry
            if await self._stopped_within(delay):
                return None
        return None

    async def _run_once(self, command: Command) -> Terminated:
        self._command = command
        command.termination_log.write_bytes(b"")
        log = self._host.log_path(self.spec, self._restarts)
        begun = time.time()
        try:
            self.process = await self._host.spawn(command, log, self._marker)
        except CannotStart as error:
            message = f"failed to create containerd task: failed to start container: {error}"
            self._host.event("Warning", "Failed", f"Error: {message}")
            ended = Terminated(START_ERROR_CODE, "StartError", begun, time.time(), message)
            self._become(ended)
            return ended
        if self._stopping.is_set():
            self.process.kill()
        code = await self._until_exit(self.process, begun)
        self._ready = False
        self.started.clear()
        ended = Terminated(
            exit_code=code,
            reason="Completed" if code == 0 else "Error",
            started_at=begun,
            finished_at=time.time(),
            message=self._termination_message(command, log, code),
            container_id=f"process://{self.process.pid}",
        )
        self._become(ended)
        return ended

    async def _until_exit(self, process: Process, begun: float) -> int:
        """Watch a running process with its probes; its exit code."""
        if "startupProbe" not in self.spec:
            self.on_started()
        self._become(Running(begun))
        self._host.event("Normal", "Started", f"Started container {self.name}")
        probing = asyncio.create_task(probes.supervise(self.spec, self._ask_of, self))
        try:
            return await process.wait()
        finally:
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing

    def _restarts_after(self, code: int) -> bool:
        if self._restart_policy == "OnFailure":
            return code != 0
        return self._restart_policy == "Always"

    async def _wait_to_restart(self, backoff: _Backoff, ended: Terminated) -> bool:
        delay = backoff.next(ended.finished_at - ended.started_at)
        if delay:
            pod = self._host.pod["metadata"]
            self._become(
                Waiting(
                    "CrashLoopBackOff",
                    f"back-off {delay:g}s restarting failed container={self.name} "
                    f"pod={pod['name']}_{pod['namespace']}({pod.get('uid', '')})",
                )
            )
            self._host.event("Warning", "BackOff", f"Back-off restarting failed container {self.name}")
        return not await self._stopped_within(delay)

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def _end(self, process: Process, grace: float) -> None:
        """preStop, SIGTERM, SIGKILL; the hook's time comes out of the grace period."""
        begun = asyncio.get_running_loop().time()
        if hook := (self.spec.get("lifecycle") or {}).get("preStop"):
            await self._run_hook(hook, grace, process)
        spent = asyncio.get_running_loop().time() - begun
        # A hook that used up the time still leaves the process a moment, as a kubelet does (2 s).
        await process.stop(max(grace - spent, min(grace, 2.0)))

    async def _run_hook(self, hook: Obj, grace: float, process: Process) -> None:
        """Run a lifecycle hook until it, the container or the grace period ends."""
        hook_task = asyncio.create_task(self._hook(hook))
        ended = asyncio.create_task(process.wait())
        done, pending = await asyncio.wait(
            {hook_task, ended}, timeout=grace, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        failure = hook_task.result() if hook_task in done else ""
        if failure:
            self._host.event("Warning", "FailedPreStopHook", f"PreStopHook failed: {failure}")

    async def _hook(self, hook: Obj) -> str:
        if "sleep" in hook:
            await asyncio.sleep(float(hook["sleep"]["seconds"]))
            return ""
        return await self._ask_of(hook)()

    async def _exec(self, argv: list[str]) -> tuple[int, str]:
        """Run a command of a probe or hook beside the process; (exit code, output)."""
        if self._command is None:
            raise RuntimeError(f"container {self.name} has not started")
        self._execs += 1
        output = self._command.cwd / f".exec-{self._execs}"
        try:
            process = await self._host.spawn(
                self._command.seen_by_host(argv), output, f"{self._marker}/exec-{self._execs}"
            )
        except CannotStart as error:
            return 127, str(error)
        try:
            code = await process.wait()
            return code, output.read_text(errors="replace")
        finally:
            process.kill()
            await process.wait()
            output.unlink()

    def _ask_of(self, probe: Obj) -> probes.Ask:
        return probes.asker(probe, self._host.pod, self._host.pod_ip, self._host.session, self._exec)

    def on_started(self) -> None:
        """The startup probe succeeded, or there is none."""
        self.started.set()
        self._ready = "readinessProbe" not in self.spec
        self._host.changed()

    def on_ready(self, ready: bool) -> None:
        """The readiness probe says so."""
        if ready != self._ready:
            self._ready = ready
            self._host.changed()

    async def on_dead(self, kind: str, probe: Obj) -> None:
        """A probe has given up on the process: end it; the restart policy decides what follows."""
        self._host.event("Normal", "Killing", f"Container {self.name} failed {kind} probe")
        grace = probe.get("terminationGracePeriodSeconds")
        if grace is None:
            grace = self._host.pod["spec"].get("terminationGracePeriodSeconds", 30)
        if self.process:
            await self._end(self.process, float(grace))

    def on_failure(self, text: str) -> None:
        """One probe failed once."""
        self._host.event("Warning", "Unhealthy", text)

    def _termination_message(self, command: Command, log: Path, code: int) -> str:
        written = _content(command.termination_log)[:TERMINATION_MESSAGE_BYTES]
        text = written.decode(errors="replace")
        if text or code == 0 or self.spec.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return text
        tail = _content(log)[-LOG_TAIL_BYTES:].decode(errors="replace")
        return "".join(tail.splitlines(keepends=True)[-LOG_TAIL_LINES:])


def _content(path: Path) -> bytes:
    """What a file holds; nothing when the container removed it."""
    return path.read_bytes() if path.exists() else b""


class _Backoff:
    """Kubelet's restart back-off: none the first time, then doubling; forgotten after a long run."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._delay = 0.0

    def next(self, ran_for: float) -> float:
        timing = self._timing
        if ran_for >= timing.restart_backoff_reset:
            self._delay = 0.0
        current = self._delay
        self._delay = min(current * 2 or timing.restart_backoff, timing.restart_backoff_max)
        return current
