"""A whole sandbox: API server, controllers, nodes, kubelets, Services and the operator, on this machine.

Everything is acquired in one order and given back in the reverse one, whatever goes wrong in between. The
operator is a process that knows nothing but its kubeconfig; the rest lives in this process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import yaml

from moe_operator.api.crd import custom_resource_definition
from moe_operator.api.policy import OperatorPolicy
from moe_operator.runtime.kube import NAMESPACE, PERSISTENT_VOLUME_CLAIM, Obj
from moe_operator.sandbox import controllers, loopback, nodes
from moe_operator.sandbox.api import MemoryApi, MemoryKube
from moe_operator.sandbox.background import Background
from moe_operator.sandbox.container import Timing
from moe_operator.sandbox.events import Recorder
from moe_operator.sandbox.images import Images
from moe_operator.sandbox.kubelet import Kubelet, RunningContainer
from moe_operator.sandbox.loopback import Addresses, Block
from moe_operator.sandbox.nodes import DEFAULT_PRESET
from moe_operator.sandbox.objects import Key, key_of
from moe_operator.sandbox.operator_process import OperatorProcess
from moe_operator.sandbox.pod_logs import read_log
from moe_operator.sandbox.pod_worker import Machine
from moe_operator.sandbox.reaper import Reaper
from moe_operator.sandbox.rest import RestServer
from moe_operator.sandbox.service_proxy import ServiceProxy
from moe_operator.sandbox.state_dir import StateDir, open_state_dir, temporary_path
from moe_operator.sandbox.taken_port import is_taken
from moe_operator.sandbox.tokens import Tokens
from moe_operator.staging.store import init_store

MANAGER = "moe-sandbox"
HEARTBEAT_SECONDS = 10.0
CLOSING_GRACE_SECONDS = 1.0
OPERATOR_PORT = 8080


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """What a sandbox is made of.

    ``images``: what images are on this machine; ``claims``: PersistentVolumeClaims and their directories;
    ``state_dir``: None = a temporary one that goes with the sandbox; ``operator``: whether it runs;
    ``api_port``: 0 = any free one; ``say``: gets lines for people.
    """

    nodes: str = DEFAULT_PRESET
    images: Images = field(default_factory=Images)
    claims: Mapping[Key, Path] = field(default_factory=dict)
    state_dir: Path | None = None
    namespaces: tuple[str, ...] = ("default",)
    policy: OperatorPolicy = field(default_factory=OperatorPolicy)
    loopback: IPv4Network = loopback.DEFAULT_RANGE
    timing: Timing = field(default_factory=Timing)
    api_port: int = 0
    operator: bool = True
    say: Callable[[str], None] = lambda _: None


class Sandbox:
    """A running sandbox; use as ``async with Sandbox(config) as sandbox``."""

    kube: MemoryKube
    kubelet: Kubelet
    proxy: ServiceProxy
    state: StateDir
    block: Block
    addresses: Addresses
    reaper: Reaper
    background: Background

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self.api_url = ""
        self.operator: OperatorProcess | None = None
        self.tokens = Tokens()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def kubeconfig(self) -> Path:
        """How clients reach the API as its administrator."""
        return self.state.path / "kubeconfig.yaml"

    @property
    def host(self) -> str:
        """The address of the sandbox itself; servers of tests and demos may use it, with any port."""
        return self.block.host

    def running(self) -> list[RunningContainer]:
        """Every container process."""
        return self.kubelet.running()

    def pid(self, pod: str, container: str, namespace: str = "default") -> int:
        """The process of a container; LookupError when it does not run."""
        for found in self.running():
            if (found.namespace, found.pod, found.container) == (namespace, pod, container):
                return found.pid
        raise LookupError(f"container {container} of pod {namespace}/{pod} does not run")

    def kill(self, pod: str, container: str, namespace: str = "default") -> int:
        """``kill -9`` of a container's process; who it was."""
        pid = self.pid(pod, container, namespace)
        os.kill(pid, signal.SIGKILL)
        return pid

    def logs(self, pod: str, container: str, namespace: str = "default") -> str:
        """What a container wrote in all its runs."""
        files = self.kubelet.log_files(namespace, pod, container)
        return "".join(path.read_text(errors="replace") for path in files)

    def service_url(self, name: str, port: int, namespace: str = "default") -> str:
        """Base URL of a Service from this machine; LookupError while nothing listens there."""
        address, bound = self.proxy.address(Key(namespace, name), port)
        return f"http://{address}:{bound}"

    def node_root(self, node: str) -> Path:
        """The directory that is a node's file system."""
        return self.state.path / "nodes" / node

    async def _start(self) -> None:
        config, stack = self.config, self._stack
        self.block = loopback.claim_block(config.loopback)
        stack.callback(self.block.close)
        chosen = config.state_dir or temporary_path(str(self.block.network.network_address))
        self.state = open_state_dir(chosen, temporary=config.state_dir is None)
        stack.callback(self.state.close)
        self.reaper = Reaper(self.state.marker, (self.block.lock.fileno(), self.state.lock))
        stack.callback(self.reaper.close)
        self.addresses = Addresses(self.block.network)
        self.kube = MemoryKube(MemoryApi(service_address=self._service_address), manager=MANAGER)
        self.background = Background()
        await self._furnish()
        await self._serve()
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        )
        self.proxy = ServiceProxy(self.kube, config.say)
        stack.push_async_callback(self.proxy.close)
        self.kubelet = Kubelet(self._machine(session), self.addresses.release)
        stack.push_async_callback(self.kubelet.close, CLOSING_GRACE_SECONDS)
        stack.push_async_callback(self.background.close)
        self.background.start(controllers.run(self.kube, time.time))
        self.background.start(self.kubelet.run())
        self.background.start(self.proxy.run())
        self.background.start(self._beat())
        if config.operator:
            self.background.start(self._operate())

    async def _serve(self) -> None:
        """Open the API to other processes."""
        rest = RestServer(
            self.kube.api,
            admin_token=self.tokens.admin,
            authenticate=self.tokens.account,
            logs=lambda pod, wanted: read_log(self.kubelet, pod, wanted),
        )
        await rest.start(self.host, self.config.api_port)
        self._stack.push_async_callback(rest.close)
        self.api_url = rest.url
        rest.write_kubeconfig(self.kubeconfig)

    async def _operate(self) -> None:
        """Keep the operator running; it ends with the task."""
        policy = self.state.path / "policy.yaml"
        policy.write_text(yaml.safe_dump(self.config.policy.model_dump(mode="json", by_alias=True)))
        port = 0 if is_taken(self.host, OPERATOR_PORT) else OPERATOR_PORT
        arguments = [
            "--kubeconfig",
            str(self.kubeconfig),
            "--config",
            str(policy),
            "--listen",
            f"{self.host}:{port}",
        ]
        self.operator = OperatorProcess(
            arguments,
            cwd=self.state.path,
            log=self.state.path / "operator.log",
            reaper=self.reaper,
            say=self.config.say,
        )
        try:
            await self.operator.run()
        finally:
            await self.operator.stop()

    async def _furnish(self) -> None:
        """Nodes with their stores, namespaces, claims and the CRD."""
        config = self.config
        for name in await nodes.register(self.kube, config.nodes):
            for store in config.policy.cache_classes.values():
                init_store(self.node_root(name) / store.root.lstrip("/"))
        await nodes.heartbeat(self.kube, time.time(), self._node_address)
        await self.kube.apply(_crd(), manager=MANAGER)
        for namespace in config.namespaces:
            await self.kube.apply(_namespace(namespace), manager=MANAGER)
        for claim in config.claims:
            await self.kube.apply(_claim(claim), manager=MANAGER)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await nodes.heartbeat(self.kube, time.time(), self._node_address)

    def _machine(self, session: aiohttp.ClientSession) -> Machine:
        return Machine(
            kube=self.kube,
            state=self.state.path,
            reaper=self.reaper,
            session=session,
            recorder=Recorder(self.kube, "kubelet"),
            images=self.config.images,
            claims=self.config.claims,
            timing=self.config.timing,
            api_url=self.api_url,
            token_of=self.tokens.issue,
            address_of=self.addresses.of,
        )

    def _node_address(self, node: str) -> str:
        return self.addresses.of(("node", node))

    def _service_address(self, service: Obj) -> str:
        return self.addresses.of(("service", *key_of(service)))


@cache
def _crd() -> Obj:
    """Generated once: it takes half a second."""
    return custom_resource_definition()


def _namespace(name: str) -> Obj:
    return {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.kind, "metadata": {"name": name}}


def _claim(key: Key) -> Obj:
    return {
        "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
        "kind": PERSISTENT_VOLUME_CLAIM.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}},
    }
