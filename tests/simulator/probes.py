"""What pods answer when the operator asks them, as the runtime's HTTP probes would bring it home."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from moe_operator.api.intent import INTENT_KEY, Ack, HostState, Intent
from moe_operator.api.manifest import StageProgress
from moe_operator.reconcile.snapshot import GatewayProbe, LeaderProbe, ResolverProbe
from moe_operator.runtime.kube import CONFIG_MAP, SECRET, ApiError
from pydantic import ValidationError

from tests.simulator.kubelet import SimulatedKubelet, ready

Obj = dict[str, Any]


@dataclass
class SimulatedProbes:
    """Answers from what the simulated kubelet says of a pod."""

    kubelet: SimulatedKubelet
    applied: dict[str, Intent] = field(default_factory=dict)  # gateway pod uid → what its Envoy runs
    deaf: set[str] = field(default_factory=set)  # gateway pods that answer but follow no intent any more
    refusing: dict[str, str] = field(default_factory=dict)  # gateway pod → its Envoy's words to any news
    running: dict[str, int] = field(
        default_factory=dict
    )  # engine pod → requests that every gateway has on it
    streams: set[tuple[str, str]] = field(default_factory=set)  # (gateway pod, engine pod) with one more

    async def resolver(self, ip: str) -> ResolverProbe:
        pod = self._ready(ip)
        if pod is None:
            return ResolverProbe(error="connection refused")
        source = pod["spec"]["containers"][0]["args"][2]
        return ResolverProbe(manifest=self.kubelet.manifests[source])

    async def progress(self, ip: str) -> StageProgress | None:
        pod = self.kubelet.by_address(ip)
        if pod is None:
            return None
        stores, node = self.kubelet.stores, pod["spec"]["nodeName"]
        if node in stores.capacity or node in stores.unmounted:
            return StageProgress(phase="Reserving", bytes_total=1000)
        return StageProgress(phase="Pulling", bytes_total=1000, bytes_done=500)

    async def leader(self, ip: str, *, completion_of: str = "") -> LeaderProbe:
        pod = self._ready(ip)
        if pod is None:
            return LeaderProbe(error="connection refused")
        engine = pod["spec"]["containers"][0]
        name = engine["args"][engine["args"].index("--served-model-name") + 1]
        served = self.kubelet.wrong_models.get(engine["image"], name)
        answers = completion_of == served and engine["image"] not in self.kubelet.mute
        text, error = ("hello", "") if answers else (None, "no answer within 20 s")
        running = self.running.get(pod["metadata"]["name"], 0)
        return LeaderProbe(True, served_models=(served,), completion=text, error=error, running=running)

    async def gateway(self, pod: str, ip: str, *, wait_generation: int = -1) -> GatewayProbe:
        found = self._ready(ip)
        if found is None:
            return GatewayProbe(pod, error="connection refused")
        intent = self._follow(found)
        if intent is None:
            return GatewayProbe(pod, Ack(generation=-1))
        words = self.refusing.get(pod, "")
        hosts = list(self._hosts(pod, intent))
        return GatewayProbe(
            pod,
            Ack(
                generation=intent.generation,
                accepted=not words,
                rejected=words,
                hosts=hosts,
                keys=self._keys(found) if intent.keys else None,
            ),
        )

    def routed(self, gateway: Obj) -> set[str]:
        """Engine pods to which a gateway pod sends new requests now."""
        intent = self.applied.get(gateway["metadata"]["uid"])
        colours = intent.colours if intent else ()
        return {e.pod for c in colours if c.weight for e in c.endpoints if not e.leaving}

    def _ready(self, ip: str) -> Obj | None:
        pod = self.kubelet.by_address(ip)
        return pod if pod and ready(pod) else None

    def _follow(self, pod: Obj) -> Intent | None:
        meta = pod["metadata"]
        if meta["name"] not in self.deaf and meta["name"] not in self.refusing:
            fresh, before = self._told(pod), self.applied.get(meta["uid"])
            if fresh and (before is None or fresh.generation > before.generation):
                self.applied[meta["uid"]] = fresh
        return self.applied.get(meta["uid"])

    def _told(self, pod: Obj) -> Intent | None:
        """The intent in the pod's ConfigMap; None while there is none that can be read."""
        volume = next(v for v in pod["spec"]["volumes"] if v["name"] == "intent")
        namespace, name = pod["metadata"]["namespace"], volume["configMap"]["name"]
        try:
            return Intent.model_validate_json(
                self.kubelet.api.get(CONFIG_MAP, namespace, name)["data"][INTENT_KEY]
            )
        except (ApiError, ValidationError):
            return None

    def _keys(self, pod: Obj) -> int:
        """How many keys the kubelet has mounted; a Secret that is not there holds none."""
        secret = next(v["secret"] for v in pod["spec"]["volumes"] if v["name"] == "keys")
        try:
            found = self.kubelet.api.get(SECRET, pod["metadata"]["namespace"], secret["secretName"])
        except ApiError:
            return 0
        return len(found.get("data") or {})

    def _hosts(self, gateway: str, intent: Intent) -> Iterable[HostState]:
        for colour in intent.colours:
            for endpoint in colour.endpoints:
                yield HostState(
                    address=endpoint.address,
                    port=endpoint.port,
                    revision=colour.revision,
                    healthy=self._ready(endpoint.address) is not None,
                    weight=colour.weight,
                    active_requests=self.running.get(endpoint.pod, 0)
                    + ((gateway, endpoint.pod) in self.streams),
                )
