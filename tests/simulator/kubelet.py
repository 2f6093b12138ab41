"""Every kubelet of a cluster, and the engines, gateways and stagers on them, under a virtual clock.

Nothing runs: a pod's containers get to the next state because time has passed and because the pods they
depend on are in theirs. The rules are the real engine's (recordings of vLLM 0.32): the leader turns ready
once every rank of its life runs; when a rank goes, the leader ends with exit code 0 and workers stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from moe_operator.api.manifest import Manifest
from moe_operator.api.moments import epoch
from moe_operator.api.names import (
    ANNOTATION_INCARNATION,
    COMPONENT_COLLECTOR,
    COMPONENT_ENGINE,
    COMPONENT_GATEWAY,
    COMPONENT_RESOLVER,
    COMPONENT_SCRUBBER,
    COMPONENT_SEEDER,
    COMPONENT_STAGER,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    LABEL_RANK,
    LABEL_REPLICA,
    LABEL_REVISION,
)
from moe_operator.runtime.kube import EVENT, POD, SECRET, ApiError
from moe_operator.sandbox.api import MemoryApi

from tests.simulator.stores import NodeStores, values_of

Obj = dict[str, Any]
STAGE_SECONDS = 1
BOOT_SECONDS = 1
GATEWAY_BOOT_SECONDS = 1
RESOLVE_SECONDS = 1
OVER = frozenset({"Succeeded", "Failed"})
UNREACHABLE = {"code": 40, "reason": "NETWORK", "message": "no answer from the source"}


def label(pod: Obj, name: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(name, ""))


def ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


@dataclass
class SimulatedKubelet:
    """Every node's kubelet at once. What the world around the pods is like is plain data, to be changed."""

    api: MemoryApi
    manifests: dict[str, Manifest] = field(default_factory=dict)  # source → facts; absent = unreachable
    resolve_failures: dict[str, Obj] = field(default_factory=dict)  # source → its termination message
    stage_failures: dict[str, Obj] = field(default_factory=dict)  # node → termination message of its stager
    altered: dict[str, Obj] = field(default_factory=dict)  # source → termination message of every stager
    crashes: dict[str, int] = field(default_factory=dict)  # image → exit code its engine ends with at once
    last_words: dict[str, str] = field(default_factory=dict)  # image → what it leaves when it ends
    wrong_models: dict[str, str] = field(default_factory=dict)  # image → id that its engine serves
    mute: set[str] = field(default_factory=set)  # images whose engine answers no completion
    missing_images: set[str] = field(default_factory=set)  # images that no registry has
    rejects: set[str] = field(default_factory=set)  # nodes whose kubelet refuses pods
    dead: set[str] = field(default_factory=set)  # nodes whose kubelet says and does nothing any more
    lingering: set[str] = field(default_factory=set)  # pods that use their grace period to the full
    slow: dict[str, float] = field(default_factory=dict)  # node → seconds that its staging takes
    scrub_seconds: float = 2.0  # how long it takes to read one store
    seeders_boot: bool = True  # whether seeders ever get ready
    stored: dict[str, Obj] = field(default_factory=dict)  # pod uid → how its work on the store ended
    gateway_boots: bool = True  # whether gateway pods ever get ready
    killed: dict[str, int] = field(default_factory=dict)  # pod uid → exit code
    addresses: dict[str, str] = field(default_factory=dict)  # pod uid → IP
    uids: dict[str, str] = field(default_factory=dict)  # IP → pod uid
    written: dict[str, Obj] = field(default_factory=dict)  # pod uid → status as it was written last

    def __post_init__(self) -> None:
        self.stores = NodeStores(self.api)

    def step(self, now: float) -> None:
        """Bring every bound pod up to ``now``."""
        pods = self.pods()
        for pod in pods:
            meta, node = pod["metadata"], pod["spec"].get("nodeName")
            if node in self.dead:
                continue
            if meta.get("deletionTimestamp"):
                if self._gone(pod, pods, now):
                    self.api.delete(POD, meta["namespace"], meta["name"], uid=meta["uid"], grace_seconds=0)
            elif node and (pod.get("status") or {}).get("phase") not in OVER:
                self._advance(pod, pods, now)

    def pods(self) -> list[Obj]:
        """All pods as they are stored, to be read only."""
        return [stored.obj for stored in self.api.select(POD)]

    def kill(self, pod: Obj, code: int = 137) -> None:
        """The engine or stager of a pod ends."""
        self.killed[pod["metadata"]["uid"]] = code

    def by_address(self, ip: str) -> Obj | None:
        """The pod that has this address."""
        found = self.api.store.by_uid(self.uids.get(ip, ""))
        return found[1].obj if found else None

    # How pods get on

    def _gone(self, pod: Obj, pods: Iterable[Obj], now: float) -> bool:
        """A worker without its leader hangs in a collective until its grace period is over."""
        hangs = label(pod, LABEL_RANK) not in {"", "0"} and not self._whole(pod, pods)
        hangs = hangs or pod["metadata"]["name"] in self.lingering
        return now >= epoch(pod["metadata"]["deletionTimestamp"]) if hangs else True

    def _advance(self, pod: Obj, pods: list[Obj], now: float) -> None:
        missing = self._missing_volume(pod)
        if missing:
            self._cannot_mount(pod, missing)
            return
        age = now - epoch(pod["metadata"]["creationTimestamp"])
        match label(pod, LABEL_COMPONENT):
            case str(component) if component == COMPONENT_ENGINE:
                self._engine(pod, pods, age)
            case str(component) if component == COMPONENT_GATEWAY:
                self._gateway(pod, age)
            case str(component) if component == COMPONENT_RESOLVER:
                self._resolver(pod, age)
            case str(component) if component == COMPONENT_STAGER:
                self._stager(pod, age)
            case str(component) if component == COMPONENT_SEEDER:
                self._write(
                    pod, "Running", [running("serve")], is_ready=self.seeders_boot and age >= BOOT_SECONDS
                )
            case str(component) if component == COMPONENT_COLLECTOR:
                self._collector(pod, age)
            case str(component) if component == COMPONENT_SCRUBBER:
                self._scrubber(pod, age)

    def _engine(self, pod: Obj, pods: list[Obj], age: float) -> None:
        node, engine = pod["spec"]["nodeName"], pod["spec"]["containers"][0]
        has_stager = bool(pod["spec"].get("initContainers"))
        if node in self.rejects:
            self._write(pod, "Failed", reason="OutOfnvidia.com/gpu", message="no GPUs left")
            return
        staged = not has_stager or age >= STAGE_SECONDS
        init = [ended("stage", 0) if staged else running("stage")] if has_stager else []
        failure = self._stage_end(pod) if has_stager and staged else {"code": 0}
        if failure["code"]:
            init = [ended("stage", failure["code"], json.dumps(failure))]
            self._write(pod, "Failed", [waiting("engine", "PodInitializing")], init)
        elif not staged:
            self._write(pod, "Pending", [waiting("engine", "PodInitializing")], init)
        elif engine["image"] in self.missing_images:
            stuck = waiting("engine", "ErrImagePull", f"{engine['image']}: not found")
            self._write(pod, "Pending", [stuck], init)
        elif secret := self._missing_variable(pod):
            stuck = waiting("engine", "CreateContainerConfigError", f'secret "{secret}" not found')
            self._write(pod, "Pending", [stuck], init)
        else:
            self._run_engine(pod, pods, age, init)

    def _stager(self, pod: Obj, age: float) -> None:
        if pod["spec"]["containers"][0]["image"] in self.missing_images:
            self._write(pod, "Pending", [waiting("stage", "ErrImagePull", "not found")])
        elif code := self.killed.get(pod["metadata"]["uid"]):
            self._write(pod, "Failed", [ended("stage", code, "", self.api.now())])
        elif age < (seconds := self.slow.get(pod["spec"]["nodeName"], STAGE_SECONDS)):
            self._write(pod, "Running", [running("stage")])
            self._pulled(pod, pod["spec"]["containers"][0], share=age / seconds)
        else:
            self._end(pod, "stage", self._stage_end(pod))

    def _collector(self, pod: Obj, age: float) -> None:
        keep = values_of(pod["spec"]["containers"][0]["args"], "--keep")
        if age < STAGE_SECONDS:
            self._write(pod, "Running", [running("gc")])
        else:
            self._end(pod, "gc", self._once(pod, lambda: self.stores.free(pod, keep)))

    def _scrubber(self, pod: Obj, age: float) -> None:
        if age < self.scrub_seconds:
            self._write(pod, "Running", [running("scrub")])
        else:
            self._end(pod, "scrub", self._once(pod, lambda: self.stores.scrub(pod)))

    def _end(self, pod: Obj, container: str, words: Obj) -> None:
        code = words["code"]
        last = ended(container, code, json.dumps(words), self.api.now())
        self._write(pod, "Failed" if code else "Succeeded", [last])

    def _stage_end(self, pod: Obj) -> Obj:
        """How the stager of a pod ends, in its own words."""
        container = (pod["spec"].get("initContainers") or pod["spec"]["containers"])[0]
        source = values_of(container["args"], "--source")[0]
        failure = self.stage_failures.get(pod["spec"]["nodeName"]) or self.altered.get(source)
        failure = failure if pod["metadata"]["uid"] not in self.stored else None  # it ended well before
        return failure or self._once(pod, lambda: self._pulled(pod, container))

    def _pulled(self, pod: Obj, container: Obj, share: float = 1.0) -> Obj:
        urls = values_of(container["args"], "--peer")
        servers = [self.by_address(urlsplit(url).hostname or "") for url in urls]
        peers = [p["spec"]["nodeName"] for p in servers if p and ready(p)]
        before = sum(self.stores.origin.values()) + self.stores.from_peers
        words = self.stores.pull(pod, container, peers, share)
        if label(pod, LABEL_RANK) and before != sum(self.stores.origin.values()) + self.stores.from_peers:
            self.stores.late.append(pod["metadata"]["name"])
        return words

    def _once(self, pod: Obj, work: Callable[[], Obj]) -> Obj:
        uid = pod["metadata"]["uid"]
        if uid not in self.stored:
            self.stored[uid] = work()
        return self.stored[uid]

    def _run_engine(self, pod: Obj, pods: list[Obj], age: float, init: list[Obj]) -> None:
        image, leader = pod["spec"]["containers"][0]["image"], label(pod, LABEL_RANK) == "0"
        code = self.killed.get(pod["metadata"]["uid"], self.crashes.get(image))
        if code is None and leader and ready(pod) and not self._whole(pod, pods):
            code = 0  # vLLM 0.32: a worker dies, the leader ends with 0
        if code is not None:
            last = ended("engine", code, self.last_words.get(image, ""))
            self._write(pod, "Succeeded" if code == 0 else "Failed", [last], init)
            return
        up = age >= STAGE_SECONDS + BOOT_SECONDS and (not leader or self._whole(pod, pods))
        self._write(pod, "Running", [running("engine")], init, is_ready=up)

    def _gateway(self, pod: Obj, age: float) -> None:
        if age >= GATEWAY_BOOT_SECONDS and self.gateway_boots:
            init = [ended("bootstrap", 0), running("envoy")]
            self._write(pod, "Running", [running("agent")], init, is_ready=True)
        else:
            self._write(pod, "Pending", [])

    def _resolver(self, pod: Obj, age: float) -> None:
        source = pod["spec"]["containers"][0]["args"][2]
        failure = self.resolve_failures.get(source, None if source in self.manifests else UNREACHABLE)
        if age < RESOLVE_SECONDS:
            self._write(pod, "Running", [running("resolve")])
        elif failure is None:
            self._write(pod, "Running", [running("resolve")], is_ready=True)
        else:
            self._write(
                pod, "Failed", [ended("resolve", failure["code"], json.dumps(failure), self.api.now())]
            )

    def _whole(self, pod: Obj, pods: Iterable[Obj]) -> bool:
        """Whether every rank of this pod's life runs."""
        mates = (p for p in pods if label(p, LABEL_RANK) and life(p) == life(pod))
        alive = [
            p
            for p in mates
            if not p["metadata"].get("deletionTimestamp")
            and (p.get("status") or {}).get("phase") == "Running"
            and p["metadata"]["uid"] not in self.killed
            and p["spec"].get("nodeName") not in self.dead
        ]
        return len(alive) >= ranks_of(pod["spec"]["containers"][0].get("args") or [])

    # What pods need

    def _missing_volume(self, pod: Obj) -> str:
        secrets = (v["secret"] for v in pod["spec"].get("volumes") or () if "secret" in v)
        needed = (s["secretName"] for s in secrets if not s.get("optional"))
        return next((s for s in needed if not self._has_secret(pod, s)), "")

    def _missing_variable(self, pod: Obj) -> str:
        variables = pod["spec"]["containers"][0].get("env") or ()
        references = (v["valueFrom"]["secretKeyRef"] for v in variables if "secretKeyRef" in _source(v))
        return next((r["name"] for r in references if not self._has_secret(pod, r["name"])), "")

    def _has_secret(self, pod: Obj, name: str) -> bool:
        try:
            self.api.get(SECRET, pod["metadata"]["namespace"], name)
        except ApiError as error:
            return not error.not_found
        return True

    def _cannot_mount(self, pod: Obj, secret: str) -> None:
        """A kubelet says so in an Event and nowhere else: the containers just stay ContainerCreating."""
        meta, spec = pod["metadata"], pod["spec"]
        init = [waiting(c["name"], "PodInitializing") for c in spec.get("initContainers") or ()]
        reason = "PodInitializing" if init else "ContainerCreating"
        self._write(pod, "Pending", [waiting(c["name"], reason) for c in spec["containers"]], init)
        name = f"{meta['name']}.mount"
        if not any(e.obj["metadata"]["name"] == name for e in self.api.select(EVENT, meta["namespace"])):
            self.api.create(
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"name": name, "namespace": meta["namespace"]},
                    "involvedObject": {"kind": "Pod", **{k: meta[k] for k in ("name", "namespace", "uid")}},
                    "type": "Warning",
                    "reason": "FailedMount",
                    "message": f'MountVolume.SetUp failed for volume : secret "{secret}" not found',
                }
            )

    # What kubelets write

    def _write(
        self,
        pod: Obj,
        phase: str,
        containers: Iterable[Obj] = (),
        init: Iterable[Obj] = (),
        *,
        is_ready: bool = False,
        **extra: str,
    ) -> None:
        meta = pod["metadata"]
        status = {
            "phase": phase,
            "podIP": self._address(meta["uid"]),
            "conditions": self._conditions(pod, {"Ready": is_ready, "PodScheduled": True}),
            "containerStatuses": list(containers),
            "initContainerStatuses": list(init),
            **extra,
        }
        if self.written.get(meta["uid"]) == status:
            return
        self.written[meta["uid"]] = status
        identity = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
        self.api.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": identity, "status": status},
            manager="kubelet",
            subresource="status",
        )

    def _conditions(self, pod: Obj, truths: Mapping[str, bool]) -> list[Obj]:
        before = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
        stamp, conditions = self.api.now(), []
        for kind, true in truths.items():
            status = "True" if true else "False"
            same = before.get(kind, {}).get("status") == status
            when = before[kind].get("lastTransitionTime", stamp) if same else stamp
            conditions.append({"type": kind, "status": status, "lastTransitionTime": when})
        return conditions

    def _address(self, uid: str) -> str:
        number = len(self.addresses) + 1
        ip = self.addresses.setdefault(uid, f"10.0.{number // 250}.{number % 250 + 1}")
        self.uids[ip] = uid
        return ip


def life(pod: Obj) -> tuple[str, ...]:
    """What all ranks of one life of a group have in common, and nobody else."""
    own = (label(pod, name) for name in (LABEL_DEPLOYMENT, LABEL_REVISION, LABEL_REPLICA))
    number = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_INCARNATION, "")
    return (pod["metadata"]["namespace"], *own, str(number))


def ranks_of(args: list[str]) -> int:
    """How many pods an engine with this command line waits for."""
    if "--nnodes" in args:
        return int(args[args.index("--nnodes") + 1])
    if "--data-parallel-size" not in args:
        return 1
    total = int(args[args.index("--data-parallel-size") + 1])
    return total // int(args[args.index("--data-parallel-size-local") + 1])


def running(name: str) -> Obj:
    state = {"running": {}}
    return {"name": name, "state": state, "ready": True, "restartCount": 0, "image": "", "imageID": ""}


def waiting(name: str, reason: str, message: str = "") -> Obj:
    state = {"reason": reason, **({"message": message} if message else {})}
    return {**running(name), "state": {"waiting": state}, "ready": False}


def ended(name: str, code: int, message: str = "", at: str = "") -> Obj:
    state = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": message}
    state |= {"finishedAt": at} if at else {}
    return {**running(name), "state": {"terminated": state}, "ready": False}


def _source(variable: Obj) -> Mapping[str, Any]:
    return variable.get("valueFrom") or {}
