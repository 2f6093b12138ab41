"""Kopf as the shell: it authenticates, lists and watches; every event becomes a wake-up and nothing else.

Only low-level ``on.event`` handlers are used, so kopf writes nothing: no finalizers, no annotations, no
Events, no peering. Resources are scanned once (``scanning.disabled``): the CRD is there before we start,
and when it goes away the watch fails, the process ends and the next start says why.
This is the only module that imports kopf.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

import kopf

from moe_operator.api.names import GROUP, LABEL_DEPLOYMENT, PLURAL, VERSION
from moe_operator.runtime.kube import CONFIG_MAP, DEPLOYMENT, JOB, NODE, POD, SERVICE, Kind
from moe_operator.runtime.metrics import OperatorMetrics
from moe_operator.runtime.wakeups import WakeUps

# Children whose changes move a deployment on or break what serves; the rest is seen by the next pass.
WATCHED_CHILDREN: tuple[Kind, ...] = (POD, JOB, DEPLOYMENT, SERVICE, CONFIG_MAP)
WATCH_SECONDS = 300
LIST_CHUNK = 500
# Used for peering only; left out, kopf looks for the user's name, and the user of a pod has none.
IDENTITY: Any = "moe-operator"
BACKOFFS = (0.5, 1, 1, 2, 3, 5, 8, 13, 21, 30)
log = logging.getLogger(__name__)


class Watches:
    """All watches of the operator: MoEDeployments, their children, nodes."""

    def __init__(
        self,
        wakeups: WakeUps,
        metrics: OperatorMetrics,
        *,
        kubeconfig: str | None,
        namespaces: Collection[str] = (),
    ) -> None:
        self._wakeups = wakeups
        self._metrics = metrics
        self._kubeconfig = kubeconfig
        self._namespaces = tuple(namespaces)

    async def run(self, stop: asyncio.Event, after_start: Callable[[], None]) -> None:
        """Watch until ``stop`` is set; raises what made a watch impossible. In any case it is set at the end.

        ``after_start`` is called once kopf runs and has taken over the process's signals.
        """
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=_settings(stop),
            identity=IDENTITY,
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=stop,
        )
        after_start()
        try:
            await kopf.run_tasks(tasks, ignored=_Everybody())
        finally:
            stop.set()  # also for a watch that hides its cancellation

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, id="login")(self._login)
        kopf.on.event(GROUP, VERSION, PLURAL, registry=registry, id=PLURAL)(self._deployment_event)
        for kind in WATCHED_CHILDREN:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(
                self._child_event
            )
        kopf.on.event(NODE.group, NODE.version, NODE.plural, registry=registry, id=NODE.plural)(
            self._node_event
        )
        return registry

    async def _deployment_event(self, *, event: Any, **_: Any) -> None:
        self._metrics.event_seen(event["object"]["kind"])
        self._wakeups.deployment_changed(event["object"], deleted=event["type"] == "DELETED")

    async def _child_event(self, *, event: Any, resource: Any, **_: Any) -> None:
        self._metrics.event_seen(resource.kind)
        self._wakeups.child_changed(event["object"], deleted=event["type"] == "DELETED")

    async def _node_event(self, *, event: Any, **_: Any) -> None:
        self._metrics.event_seen(NODE.kind)
        self._wakeups.node_changed(event["object"], deleted=event["type"] == "DELETED")

    async def _login(self, **kwargs: Any) -> kopf.ConnectionInfo | None:
        if self._kubeconfig is None:
            return kopf.login_with_service_account(**kwargs)
        return await asyncio.to_thread(_kubeconfig_login, self._kubeconfig)


def _settings(stop: asyncio.Event) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.process.ultimate_exiting_timeout = None
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.chunk_size = LIST_CHUNK
    for kind in WATCHED_CHILDREN:
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = LABEL_DEPLOYMENT
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Backoffs(stop)
    settings.queueing.exit_timeout = 0.5
    settings.persistence.finalizer = f"{GROUP}/kopf"  # never written; no handler of ours asks for one
    return settings


def _kubeconfig_login(path: str) -> kopf.ConnectionInfo:
    """Credentials of a kubeconfig's current context, exec plugins and client certificates included."""
    from kubernetes import client, config

    found = client.Configuration()
    load: Any = config.load_kube_config
    load(config_file=path, client_configuration=found)
    header = found.get_api_key_with_prefix("BearerToken") or found.get_api_key_with_prefix("authorization")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        username=found.username or None,
        password=found.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
    )


class _Backoffs:
    """Seconds between attempts of one request: an API server that is away comes back.

    Kopf asks for the first of them before its first attempt. Once ``stop`` is set, that cancels the request:
    where all tasks are cancelled at once, kopf takes the cancellation of a request for a pause of its watch
    (``api.stream``), and would go on for ever.
    """

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def __iter__(self) -> Iterator[float]:
        for seconds in itertools.chain(BACKOFFS, itertools.repeat(BACKOFFS[-1])):
            if self._stop.is_set():
                raise asyncio.CancelledError("watching is over")
            yield seconds


class _Everybody(Collection[Any]):
    """Every task of the loop: none but kopf's own root tasks is kopf's to wait for or to cancel."""

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0
