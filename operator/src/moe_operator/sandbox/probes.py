"""A kubelet's probes: when to ask, how to ask, and what enough answers mean.

:class:`Verdicts` is the pure counting (thresholds in a row); :func:`watch` asks at the probe's period
for as long as the container lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.services import container_port

RunCommand = Callable[[list[str]], Awaitable[tuple[int, str]]]
Ask = Callable[[], Awaitable[str]]


@dataclass(slots=True)
class Verdicts:
    """Turns single answers into a state: ``None`` until a threshold is reached for the first time."""

    success_threshold: int = 1
    failure_threshold: int = 3
    state: bool | None = None
    _last: bool | None = None
    _in_row: int = 0

    @classmethod
    def of(cls, probe: Obj) -> Verdicts:
        """With the probe's thresholds."""
        return cls(int(probe.get("successThreshold") or 1), int(probe.get("failureThreshold") or 3))

    def count(self, success: bool) -> bool:
        """Take one answer; whether the state has been (re)established by it."""
        self._in_row = self._in_row + 1 if success == self._last else 1
        self._last = success
        if self._in_row < (self.success_threshold if success else self.failure_threshold):
            return False
        self.state = success
        return True


class Watched(Protocol):
    """Who wants to know what the probes of a container say."""

    def on_started(self) -> None:
        """The startup probe succeeded."""
        ...

    def on_ready(self, ready: bool) -> None:
        """The readiness probe says so."""
        ...

    async def on_dead(self, kind: str, probe: Obj) -> None:
        """The startup or liveness probe has given up."""
        ...

    def on_failure(self, text: str) -> None:
        """One probe failed once."""
        ...


async def supervise(container: Obj, ask_of: Callable[[Obj], Ask], watched: Watched) -> None:
    """Run a container's probes: the startup probe alone first, then readiness and liveness together."""

    async def started(ok: bool) -> bool:
        if ok:
            watched.on_started()
        else:
            await watched.on_dead("startup", container["startupProbe"])
        return False

    async def ready(ok: bool) -> bool:
        watched.on_ready(ok)
        return True

    async def alive(ok: bool) -> bool:
        if not ok:
            await watched.on_dead("liveness", container["livenessProbe"])
        return ok

    def run(kind: str, on_state: Callable[[bool], Awaitable[bool]]) -> Awaitable[None]:
        probe = container[f"{kind}Probe"]
        title = kind.capitalize()
        return watch(
            probe, ask_of(probe), lambda text: watched.on_failure(f"{title} probe failed: {text}"), on_state
        )

    if "startupProbe" in container:
        await run("startup", started)
    later = [("readiness", ready), ("liveness", alive)]
    await asyncio.gather(*(run(kind, on_state) for kind, on_state in later if f"{kind}Probe" in container))


async def watch(
    probe: Obj, ask: Ask, on_answer: Callable[[str], None], on_state: Callable[[bool], Awaitable[bool]]
) -> None:
    """Ask until ``on_state`` answers False. ``on_answer`` gets every failure's text."""
    await asyncio.sleep(float(probe.get("initialDelaySeconds") or 0))
    verdicts, period = Verdicts.of(probe), float(probe.get("periodSeconds") or 10)
    while True:
        failure = await _bounded(ask, float(probe.get("timeoutSeconds") or 1))
        if failure:
            on_answer(failure)
        if verdicts.count(not failure) and not await on_state(not failure):
            return
        await asyncio.sleep(period)


async def _bounded(ask: Ask, timeout: float) -> str:
    try:
        async with asyncio.timeout(timeout):
            return await ask()
    except TimeoutError:
        return f"no answer within {timeout:g}s"


def asker(probe: Obj, pod: Obj, pod_ip: str, session: aiohttp.ClientSession, run_command: RunCommand) -> Ask:
    """The question of a probe: an empty answer is success, anything else the failure's text."""
    action: Obj = probe.get("httpGet") or probe.get("tcpSocket") or {}
    port = container_port(pod, action["port"]) if action else 0
    host = str(action.get("host") or pod_ip)
    if action and not port:
        return _always(f"couldn't find port: {action['port']}")
    if "httpGet" in probe:
        url = _url(action, host, port)
        headers = {h["name"]: h["value"] for h in action.get("httpHeaders") or ()}
        return lambda: http_get(session, url, headers)
    if "tcpSocket" in probe:
        return lambda: _connect(host, port)
    if command := (probe.get("exec") or {}).get("command"):
        return lambda: _run(run_command, command)
    return _always(f"a sandbox knows httpGet, tcpSocket and exec, not {', '.join(sorted(probe))}")


def _always(failure: str) -> Ask:
    async def ask() -> str:
        return failure

    return ask


def _url(action: Obj, host: str, port: int) -> str:
    path = str(action.get("path") or "/")
    return f"{(action.get('scheme') or 'HTTP').lower()}://{host}:{port}/{path.removeprefix('/')}"


async def http_get(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> str:
    """Success is any status from 200 to 399, as for a kubelet; redirects are not followed."""
    try:
        async with session.get(url, headers=headers, allow_redirects=False, ssl=False) as response:
            if response.status < 400:
                return ""
            return f"HTTP probe failed with statuscode: {response.status}"
    except aiohttp.ClientError as error:
        return f'Get "{url}": {error}'


async def _connect(host: str, port: int) -> str:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        return f"dial tcp {host}:{port}: {error.strerror or error}"
    writer.close()
    return ""


async def _run(run_command: RunCommand, command: list[str]) -> str:
    code, output = await run_command(command)
    return "" if code == 0 else output.strip() or f"exit code {code}"
