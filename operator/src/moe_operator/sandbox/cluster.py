"""A cluster on this machine: API in memory, controllers, nodes, kubelets, Services.

Everything but the HTTP door and the operator (``sandbox.run``), so that tests and tools may use the parts
without them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

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
from moe_operator.sandbox.pod_worker import Machine
from moe_operator.sandbox.reaper import Reaper
from moe_operator.sandbox.service_proxy import ServiceProxy
from moe_operator.sandbox.state_dir import StateDir, open_state_dir, temporary_path
from moe_operator.staging.store import init_store

MANAGER = "moe-sandbox"
HEARTBEAT_SECONDS = 10.0
CLOSING_GRACE_SECONDS = 2.0
TOKEN = "sandbox"  # the API of a sandbox listens on loopback only and asks for nothing


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What a cluster is made of.

    ``images``: what images are on this machine; ``claims``: PersistentVolumeClaims and their directories;
    ``state_dir``: None = a temporary one that goes with the cluster; ``say``: gets lines for people.
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
    say: Callable[[str], None] = lambda _: None


class Cluster:
    """A running cluster; use as ``async with Cluster(config) as cluster``."""

    kube: MemoryKube
    kubelet: Kubelet
    proxy: ServiceProxy
    state: StateDir
    block: Block
    addresses: Addresses
    reaper: Reaper
    background: Background

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.api_url = ""
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
        self.api_url = await self._open_door()
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

    async def _open_door(self) -> str:
        """Make the API reachable for other processes; its URL, "" when it is not."""
        return ""

    async def _furnish(self) -> None:
        """Nodes with their stores, namespaces, claims and the CRD."""
        config = self.config
        for name in await nodes.register(self.kube, config.nodes):
            for cache in config.policy.cache_classes.values():
                init_store(self.node_root(name) / cache.root.lstrip("/"))
        await nodes.heartbeat(self.kube, time.time(), self._node_address)
        await self.kube.apply(custom_resource_definition(), manager=MANAGER)
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
            token=TOKEN,
            address_of=self.addresses.of,
        )

    def _node_address(self, node: str) -> str:
        return self.addresses.of(("node", node))

    def _service_address(self, service: Obj) -> str:
        return self.addresses.of(("service", *key_of(service)))


def _namespace(name: str) -> Obj:
    return {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.kind, "metadata": {"name": name}}


def _claim(key: Key) -> Obj:
    return {
        "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
        "kind": PERSISTENT_VOLUME_CLAIM.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}},
    }
