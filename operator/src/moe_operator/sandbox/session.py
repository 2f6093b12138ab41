"""One run of ``moe-operator sandbox``: start, apply, tell what happens, end.

:func:`request` reads everything the user named before anything is started; :func:`run` returns the exit
code.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import yaml

from moe_operator.api import names
from moe_operator.api.policy import OperatorPolicy
from moe_operator.runtime.kube import MOE_DEPLOYMENT, SERVICE, ApiError, Obj, kind_of
from moe_operator.sandbox import progress
from moe_operator.sandbox.controllers import changed_or_tick, notice
from moe_operator.sandbox.images import Images
from moe_operator.sandbox.loopback import NoAddressLeft
from moe_operator.sandbox.objects import Key, key_of
from moe_operator.sandbox.run import Sandbox, SandboxConfig
from moe_operator.sandbox.state_dir import StateUnusable
from moe_operator.sandbox.taken_port import PortTaken

Say = Callable[[str], None]
MANAGER = "kubectl"
TICK_SECONDS = 1.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Source:
    """An object and the file it came from."""

    file: Path
    obj: Obj

    def __str__(self) -> str:
        return f"{self.file}: {self.obj['kind']} {self.obj['metadata']['name']}"


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    config: SandboxConfig
    sources: tuple[Source, ...]
    exit_after_ready: bool


def request(
    *,
    files: Sequence[Path],
    nodes: str,
    images: Sequence[str],
    claims: Sequence[str],
    state_dir: Path | None,
    namespace: str,
    policy_path: Path | None,
    api_port: int,
    loopback: IPv4Network,
    exit_after_ready: bool,
) -> Request:
    """Check and read what was named; ValueError says which of it is wrong."""
    sources = tuple(source for file in files for source in _read(file, namespace))
    named = {
        namespace,
        *(s.obj["metadata"]["namespace"] for s in sources if "namespace" in s.obj["metadata"]),
    }
    config = SandboxConfig(
        nodes=nodes,
        images=Images.parse(images),
        claims=dict(_claim(text, namespace) for text in claims),
        state_dir=state_dir,
        namespaces=tuple(sorted(named)),
        policy=OperatorPolicy.from_yaml(policy_path.read_text()) if policy_path else OperatorPolicy(),
        loopback=loopback,
        api_port=api_port,
    )
    return Request(config, sources, exit_after_ready)


def _read(file: Path, namespace: str) -> list[Source]:
    try:
        documents = [d for d in yaml.safe_load_all(file.read_text()) if d is not None]
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not YAML: {error}") from error
    found = []
    for document in documents:
        try:
            kind = kind_of(document)
            document["metadata"]["name"]
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{file}: a document lacks apiVersion, kind or metadata.name, or its kind is unknown: {error}"
            ) from error
        if kind.namespaced:
            document["metadata"].setdefault("namespace", namespace)
        found.append(Source(file, document))
    return found


def _claim(text: str, namespace: str) -> tuple[Key, Path]:
    name, separator, directory = text.partition("=")
    path = Path(directory).absolute()
    if not name or not separator or not path.is_dir():
        raise ValueError(f"{text!r} is not NAME=DIRECTORY of a directory that exists")
    space, slash, bare = name.partition("/")
    return (Key(space, bare) if slash else Key(namespace, name)), path


def run(asked: Request, say: Say) -> int:
    """Run until a signal, or as long as ``asked`` says; the exit code."""
    try:
        return asyncio.run(_run(asked, say))
    except (NoAddressLeft, PortTaken, StateUnusable) as error:
        say(f"Error: {error}")
        return 1


async def _run(asked: Request, say: Say) -> int:
    config = replace(asked.config, say=say)
    async with _signals() as stop, Sandbox(config) as sandbox:
        _greet(sandbox, say)
        if not await _apply(sandbox, asked.sources, say):
            return 1
        watching = asyncio.create_task(_watch(sandbox, asked, say))
        stopped = asyncio.create_task(stop.wait())
        ends: list[asyncio.Future[Any]] = [watching, stopped, sandbox.background.failed]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                return watching.result()
            if stop.is_set():
                say("Stopping …")
            return 0
        finally:
            watching.cancel()
            stopped.cancel()
            await asyncio.gather(watching, stopped, return_exceptions=True)


@contextlib.asynccontextmanager
async def _signals() -> AsyncIterator[asyncio.Event]:
    """An event that the first stop signal sets; a second one ends the process the hard way."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def first() -> None:
        stop.set()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, first)
    try:
        yield stop
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _greet(sandbox: Sandbox, say: Say) -> None:
    say(f"Sandbox with nodes {sandbox.config.nodes}, files in {sandbox.state.path}")
    say(f"API server: {sandbox.api_url}")
    say(f"In another terminal: export KUBECONFIG={sandbox.kubeconfig}")


async def _apply(sandbox: Sandbox, sources: Sequence[Source], say: Say) -> bool:
    for source in sources:
        try:
            await sandbox.kube.apply(source.obj, manager=MANAGER)
        except ApiError as error:
            say(f"Error: {source} was refused: {error.message}")
            return False
        say(f"Applied {source}")
    return True


async def _watch(sandbox: Sandbox, asked: Request, say: Say) -> int:
    """Say what is new about every deployment; ends only when asked to."""
    changed, told = asyncio.Event(), dict[Key, dict[str, str]]()
    following = asyncio.create_task(notice(sandbox.kube, (MOE_DEPLOYMENT, SERVICE), changed))
    welcomed: set[Key] = set()
    try:
        while True:
            deployments = (await sandbox.kube.list(MOE_DEPLOYMENT)).items
            for deployment in deployments:
                _tell(deployment, told, say)
                if progress.is_true(deployment, "Ready") and key_of(deployment) not in welcomed:
                    welcomed.add(key_of(deployment))
                    await _welcome(sandbox, deployment, say)
            if asked.exit_after_ready and deployments:
                if any(progress.is_true(d, "Stalled") for d in deployments):
                    return 1
                if all(progress.is_true(d, "Ready") for d in deployments):
                    return 0
            await changed_or_tick(changed, TICK_SECONDS)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _tell(deployment: Obj, told: dict[Key, dict[str, str]], say: Say) -> None:
    key = key_of(deployment)
    now = progress.facts(deployment)
    for sentence in progress.news(told.get(key, {}), now):
        say(f"{key.name}: {sentence}")
    told[key] = now


async def _welcome(sandbox: Sandbox, deployment: Obj, say: Say) -> None:
    """Where it is reached, and what to try."""
    key = key_of(deployment)
    name = names.gateway_name(key.name)
    service = await sandbox.kube.get(SERVICE, key.namespace, name)
    try:
        url = sandbox.service_url(name, int(service["spec"]["ports"][0]["port"]), key.namespace)
    except LookupError as error:  # its port was taken, and that has been said
        say(f"{key.name} is Ready, but not from this machine: {error}")
        return
    say(f"{key.name} serves at {url}")
    say(f"  curl {url}/v1/models")
    say(f"  KUBECONFIG={sandbox.kubeconfig} kubectl get moed,pods -o wide")
