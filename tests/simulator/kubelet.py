"""A kubelet, its engines, gateways and resolvers under a virtual clock.

Nothing runs: a pod's containers get to the next state because time has passed and because the pods they
depend on are in theirs. The rules are the real engine's (recordings of vLLM 0.32): the leader turns ready
once every rank of its life runs; when a rank goes, the leader ends with exit code 0 and workers stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from moe_operator.api.intent import INTENT_KEY, Ack, HostState, Intent
from moe_operator.api.manifest import Manifest, StageProgress
from moe_operator.api.moments import epoch, moment
from moe_operator.api.names import (
    ANNOTATION_INCARNATION,
    COMPONENT_ENGINE,
    COMPONENT_GATEWAY,
    COMPONENT_RESOLVER,
    LABEL_COMPONENT,
    LABEL_RANK,
    LABEL_REPLICA,
    LABEL_REVISION,
)
from moe_operator.reconcile.snapshot import GatewayProbe, LeaderProbe, ResolverProbe
from moe_operator.runtime.kube import CONFIG_MAP, POD
from moe_operator.sandbox.api import MemoryApi

Obj = dict[str, Any]
STAGE_SECONDS = 1
BOOT_SECONDS = 1
GATEWAY_BOOT_SECONDS = 1
RESOLVE_SECONDS = 1


def label(pod: Obj, name: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(name, ""))


def ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


@dataclass
class SimulatedKubelet:
    """Every node's kubelet at once; ``manifests``: source URL → facts, absent = the source is unreachable."""

    api: MemoryApi
    manifests: dict[str, Manifest] = field(default_factory=dict)
    crashes: dict[str, int] = field(default_factory=dict)  # image → exit code its engine ends with at once
    stage_failures: dict[str, Obj] = field(default_factory=dict)  # node → termination message of its stager
    wrong_models: dict[str, str] = field(default_factory=dict)  # image → id that its engine serves
    rejects: set[str] = field(default_factory=set)  # nodes whose kubelet refuses pods
    killed: dict[str, int] = field(default_factory=dict)  # pod uid → exit code
    addresses: dict[str, str] = field(default_factory=dict)  # pod uid → IP
    written: dict[str, Obj] = field(default_factory=dict)  # pod uid → status as it was written last

    def step(self, now: float) -> None:
        """Bring every bound pod up to ``now``."""
        pods = self.pods()
        for pod in pods:
            meta = pod["metadata"]
            if meta.get("deletionTimestamp"):
                if self._gone(pod, now):
                    self.api.delete(POD, meta["namespace"], meta["name"], uid=meta["uid"], grace_seconds=0)
            elif (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
                if pod["spec"].get("nodeName"):
                    self._advance(pod, pods, now)

    def pods(self) -> list[Obj]:
        return list(self.api.list(POD).items)

    def kill(self, pod: Obj, code: int = 137) -> None:
        """The engine process of a pod ends."""
        self.killed[pod["metadata"]["uid"]] = code

    # How pods get on

    def _gone(self, pod: Obj, now: float) -> bool:
        """Engines that still have work use their grace period to the full."""
        deadline = epoch(pod["metadata"]["deletionTimestamp"])
        lost = not self._whole(pod, self.pods())
        worker = label(pod, LABEL_RANK) not in {"", "0"}
        return now >= deadline if lost and worker else True

    def _advance(self, pod: Obj, pods: list[Obj], now: float) -> None:
        component, age = label(pod, LABEL_COMPONENT), now - epoch(pod["metadata"]["creationTimestamp"])
        if component == COMPONENT_ENGINE:
            self._engine(pod, pods, age, now)
        elif component == COMPONENT_GATEWAY:
            up = age >= GATEWAY_BOOT_SECONDS
            self._write(
                pod, "Running" if up else "Pending", up, [running("envoy"), running("agent")] if up else []
            )
        elif component == COMPONENT_RESOLVER:
            self._resolver(pod, age)

    def _engine(self, pod: Obj, pods: list[Obj], age: float, now: float) -> None:
        node, image = pod["spec"]["nodeName"], pod["spec"]["containers"][0]["image"]
        if node in self.rejects:
            self._write(pod, "Failed", False, [], reason="OutOfnvidia.com/gpu", message="no GPUs left")
            return
        staged = not pod["spec"].get("initContainers") or age >= STAGE_SECONDS
        init = (
            [ended("stage", 0) if staged else running("stage")] if pod["spec"].get("initContainers") else []
        )
        failure = self.stage_failures.get(node)
        if init and staged and failure:
            import json

            init = [ended("stage", failure["code"], json.dumps(failure))]
            self._write(pod, "Failed", False, [waiting("engine", "PodInitializing")], init)
            return
        if not staged:
            self._write(pod, "Pending", False, [waiting("engine", "PodInitializing")], init)
            return
        code = self.killed.get(pod["metadata"]["uid"], self.crashes.get(image))
        leader = label(pod, LABEL_RANK) == "0"
        if code is None and leader and self._was_ready(pod) and not self._whole(pod, pods):
            code = 0  # vLLM 0.32: a worker dies, the leader ends with 0
        if code is not None:
            self._write(pod, "Succeeded" if code == 0 else "Failed", False, [ended("engine", code)], init)
            return
        up = age >= STAGE_SECONDS + BOOT_SECONDS and (not leader or self._whole(pod, pods))
        self._write(pod, "Running", up, [running("engine")], init)

    def _was_ready(self, pod: Obj) -> bool:
        return ready(pod)

    def _whole(self, pod: Obj, pods: Iterable[Obj]) -> bool:
        """Whether every rank of this pod's life runs."""
        args = pod["spec"]["containers"][0].get("args") or []
        size = int(args[args.index("--nnodes") + 1]) if "--nnodes" in args else self._data_nodes(args)
        mates = [
            p
            for p in pods
            if all(label(p, k) == label(pod, k) for k in (LABEL_REVISION, LABEL_REPLICA))
            and p["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and self._life(p) == self._life(pod)
            and label(p, "moe-operator.io/deployment") == label(pod, "moe-operator.io/deployment")
        ]
        alive = [
            p
            for p in mates
            if not p["metadata"].get("deletionTimestamp")
            and (p.get("status") or {}).get("phase") == "Running"
            and p["metadata"]["uid"] not in self.killed
        ]
        return len(alive) >= size

    @staticmethod
    def _data_nodes(args: list[str]) -> int:
        if "--data-parallel-size" not in args:
            return 1
        total = int(args[args.index("--data-parallel-size") + 1])
        return total // int(args[args.index("--data-parallel-size-local") + 1])

    @staticmethod
    def _life(pod: Obj) -> str:
        return str((pod["metadata"].get("annotations") or {}).get(ANNOTATION_INCARNATION, ""))

    def _resolver(self, pod: Obj, age: float) -> None:
        source = pod["spec"]["containers"][0]["args"][2]
        if age < RESOLVE_SECONDS:
            self._write(pod, "Running", False, [running("resolve")])
        elif source in self.manifests:
            self._write(pod, "Running", True, [running("resolve")])
        else:
            message = '{"code": 40, "reason": "NETWORK", "message": "no answer from the source", "hint": ""}'
            self._write(pod, "Failed", False, [ended("resolve", 40, message)])

    def _write(
        self,
        pod: Obj,
        phase: str,
        is_ready: bool,
        containers: list[Obj],
        init: list[Obj] | None = None,
        **extra: str,
    ) -> None:
        meta = pod["metadata"]
        before = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
        stamp = moment(self.api._clock())
        conditions = []
        for kind, true in (("Ready", is_ready), ("PodScheduled", True)):
            status = "True" if true else "False"
            same = before.get(kind, {}).get("status") == status
            when = before[kind].get("lastTransitionTime", stamp) if same else stamp
            conditions.append({"type": kind, "status": status, "lastTransitionTime": when})
        status = {
            "phase": phase,
            "podIP": self._address(meta["uid"]),
            "conditions": conditions,
            "containerStatuses": containers,
            "initContainerStatuses": init or [],
            **extra,
        }
        if self.written.get(meta["uid"]) == status:
            return
        self.written[meta["uid"]] = status
        self.api.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
                "status": status,
            },
            manager="kubelet",
            subresource="status",
        )

    def _address(self, uid: str) -> str:
        number = len(self.addresses) + 1
        return self.addresses.setdefault(uid, f"10.0.{number // 250}.{number % 250 + 1}")

    # What pods answer

    def by_address(self, ip: str) -> Obj | None:
        return next((p for p in self.pods() if (p.get("status") or {}).get("podIP") == ip), None)


def running(name: str) -> Obj:
    return {
        "name": name,
        "state": {"running": {}},
        "ready": True,
        "restartCount": 0,
        "image": "",
        "imageID": "",
    }


def waiting(name: str, reason: str) -> Obj:
    return {**running(name), "state": {"waiting": {"reason": reason}}, "ready": False}


def ended(name: str, code: int, message: str = "") -> Obj:
    state = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": message}
    return {**running(name), "state": {"terminated": state}, "ready": False}


@dataclass
class SimulatedProbes:
    """Answers of pods, as the runtime's HTTP probes would get them."""

    kubelet: SimulatedKubelet
    applied: dict[str, Intent] = field(default_factory=dict)  # gateway pod uid → what its Envoy runs
    deaf: set[str] = field(default_factory=set)  # gateway pods that follow nothing

    async def resolver(self, ip: str) -> ResolverProbe:
        pod = self.kubelet.by_address(ip)
        if pod is None or not ready(pod):
            return ResolverProbe(error="connection refused")
        source = pod["spec"]["containers"][0]["args"][2]
        return ResolverProbe(manifest=self.kubelet.manifests[source])

    async def progress(self, ip: str) -> StageProgress | None:
        pod = self.kubelet.by_address(ip)
        return StageProgress(phase="Pulling", bytes_total=1000, bytes_done=500) if pod else None

    async def leader(self, ip: str, *, completion_of: str = "") -> LeaderProbe:
        pod = self.kubelet.by_address(ip)
        if pod is None or not ready(pod):
            return LeaderProbe(error="connection refused")
        args = pod["spec"]["containers"][0]["args"]
        name = args[args.index("--served-model-name") + 1]
        served = self.kubelet.wrong_models.get(pod["spec"]["containers"][0]["image"], name)
        text = "hello" if completion_of == served else None
        return LeaderProbe(healthy=True, served_models=(served,), completion=text, running=0)

    async def gateway(self, pod: str, ip: str, *, wait_generation: int = -1) -> GatewayProbe:
        found = self.kubelet.by_address(ip)
        if found is None or not ready(found):
            return GatewayProbe(pod, error="connection refused")
        intent = self._follow(found)
        if intent is None:
            return GatewayProbe(pod, Ack(generation=-1))
        return GatewayProbe(pod, Ack(generation=intent.generation, hosts=list(self._hosts(intent))))

    def _follow(self, pod: Obj) -> Intent | None:
        meta = pod["metadata"]
        if meta["name"] not in self.deaf:
            name = meta["labels"]["moe-operator.io/deployment"]
            config_map = self.kubelet.api.get(CONFIG_MAP, meta["namespace"], f"{name}-gateway")
            fresh = Intent.model_validate_json(config_map["data"][INTENT_KEY])
            before = self.applied.get(meta["uid"])
            if before is None or fresh.generation > before.generation:
                self.applied[meta["uid"]] = fresh
        return self.applied.get(meta["uid"])

    def _hosts(self, intent: Intent) -> Iterable[HostState]:
        for colour in intent.colours:
            for endpoint in colour.endpoints:
                pod = self.kubelet.by_address(endpoint.address)
                yield HostState(
                    address=endpoint.address,
                    port=endpoint.port,
                    revision=colour.revision,
                    healthy=bool(pod and ready(pod)),
                    weight=colour.weight,
                )
