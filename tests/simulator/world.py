"""A whole cluster in one process under a virtual clock: API, controllers, kubelets and the operator.

One ``step`` is one second of everybody's life. The operator is the real observer, the real ``decide`` and the
real executor; between steps it remembers nothing, so killing it at a write and starting the next step is a
restart.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from moe_operator.api import structural
from moe_operator.api.crd import custom_resource_definition
from moe_operator.api.manifest import Manifest, ManifestFile, WeightSummary
from moe_operator.api.policy import OperatorPolicy
from moe_operator.reconcile.decide import decide
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.reconcile.wants import wants
from moe_operator.runtime.execute import Executor, Outcome
from moe_operator.runtime.kube import MOE_DEPLOYMENT, NODE, POD, SECRET, ApiError, Kind
from moe_operator.runtime.observe import Observer
from moe_operator.runtime.wakeups import Key
from moe_operator.sandbox import controllers, nodes
from moe_operator.sandbox.api import Admission, MemoryApi, MemoryKube

from tests.runtime.world import never
from tests.simulator.kubelet import SimulatedKubelet
from tests.simulator.probes import SimulatedProbes

Obj = dict[str, Any]
WRITES = frozenset({"apply", "apply_status", "create", "replace", "patch_json", "delete"})
START = 1_796_000_000.0
CONFIGS = Path(__file__).parents[2] / "e2e" / "checkpoints" / "data"
CRD = custom_resource_definition()


class EverythingGoes:
    """An admission that admits: for runs whose objects were admitted elsewhere, where speed counts."""

    def prune(self, schema: Mapping[str, Any], obj: Obj, /) -> Obj:
        return obj

    def default(self, schema: Mapping[str, Any], obj: Obj, /) -> Obj:
        return obj

    def violations(self, schema: Mapping[str, Any], obj: Obj, old: Obj | None = None, /) -> list[str]:
        return []


class Killed(BaseException):
    """The operator's process ended, whatever it was doing."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write of the operator; ``object`` is empty for a delete."""

    verb: str
    kind: str
    name: str
    object: Obj = field(default_factory=dict)

    def __deepcopy__(self, memo: object) -> Write:
        return self


def _write(verb: str, first: Obj | Kind, *rest: Any) -> Write:
    if isinstance(first, Kind):
        return Write(verb, first.kind, str(rest[1]))
    return Write(verb, first["kind"], first["metadata"]["name"], first)


@dataclass
class CountedKube:
    """The operator's client: counts writes, and ends the process before or after a chosen one.

    A process that has ended writes nothing more, until it lives again.
    """

    inner: MemoryKube
    writes: int = 0
    log: list[Write] = field(default_factory=list)
    kill_before: int | None = None
    kill_after: int | None = None
    dead: bool = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        call = getattr(self.inner, name)
        return call if name not in WRITES else self._counted(name, call)

    def _counted(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def write(*args: Any, **kwargs: Any) -> Any:
            if self.writes == self.kill_before:
                self.kill_before, self.dead = None, True
            if self.dead:
                raise Killed
            self.writes += 1
            self.log.append(_write(verb, *args))
            answer = await call(*args, **kwargs)
            if self.writes - 1 == self.kill_after:
                self.kill_after, self.dead = None, True
                raise Killed
            return answer

        return write


@dataclass
class World:
    preset: str = "h20-4x8"
    admission: Admission = structural
    now: float = START
    policy: OperatorPolicy = field(default_factory=OperatorPolicy)

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        self.api = MemoryApi(admission=self.admission, clock=self.time, new_uid=self.next_uid)
        self.api.create(CRD)
        self.user = MemoryKube(self.api, manager="kubectl")
        self.kube = CountedKube(MemoryKube(self.api, shared=True))
        self.kubelet = SimulatedKubelet(self.api)
        self.probes = SimulatedProbes(self.kubelet)
        self.errors: dict[Key, str] = {}
        self.operator_up = True
        self.kills = 0
        self.neighbours: list[Callable[[], None]] = []  # other controllers, each looks once in a step

    def time(self) -> float:
        return self.now

    def next_uid(self) -> str:
        return f"uid-{next(self.numbers):05d}"

    def next_token(self) -> str:
        return f"token-{next(self.numbers):05d}"

    async def build(self) -> World:
        for preset in self.preset.split("+"):
            await nodes.register(self.user, preset)
        await nodes.heartbeat(self.user, self.now, lambda name: "10.1.0.1")
        return self

    # The operator

    def observer(self) -> Observer:
        return Observer(
            self.kube,  # type: ignore[arg-type]
            self.probes,
            now=self.time,
            policy=self.policy,
            wants=wants,
            entropy=self.next_token,
            overtaken=never,
        )

    async def observe(self, key: Key) -> Snapshot:
        async with self.observer().observed(key, self.errors.get(key, "")) as snapshot:
            assert snapshot is not None
            return snapshot

    async def reconcile(self, key: Key) -> Outcome | None:
        async with self.observer().observed(key, self.errors.get(key, "")) as snapshot:
            if snapshot is None:
                return None
            outcome = await Executor(self.kube, self.time).execute(snapshot, decide(snapshot))  # type: ignore[arg-type]
        if outcome.error and not outcome.conflict:
            self.errors[key] = str(outcome.error)
        else:
            self.errors.pop(key, None)
        return outcome

    def deployment_keys(self) -> list[Key]:
        return [Key(*stored.key) for stored in self.api.select(MOE_DEPLOYMENT)]

    async def operator_pass(self) -> None:
        self.kube.dead = False
        for key in self.deployment_keys():
            for _ in range(10):
                outcome = await self.reconcile(key)
                if outcome is None or outcome.wake_after != 0.0:
                    break

    async def step(self, seconds: float = 1.0) -> None:
        """One round of everybody; a killed operator is back in the next round."""
        await controllers.step(self.user, self.now)
        self.kubelet.step(self.now)
        for look in self.neighbours:
            look()
        if self.operator_up:
            try:
                await self.operator_pass()
            except Killed:
                self.kills += 1
                self.errors.clear()
        self.now += seconds

    async def until(self, true: Callable[[], bool], steps: int = 300, seconds: float = 1.0) -> int:
        """Steps until ``true``; fails with the whole status when it never is."""
        for count in range(steps):
            if true():
                return count
            await self.step(seconds)
        states = {str(k): self.status(k.name, k.namespace).get("conditions") for k in self.deployment_keys()}
        raise AssertionError(f"not reached in {steps} steps:\n{yaml.safe_dump(states, allow_unicode=True)}")

    async def settle(self, quiet: int = 3, steps: int = 400) -> None:
        """Step until the operator has lived through ``quiet`` rounds without writing."""
        silent = 0
        for _ in range(steps):
            before = self.kube.writes, self.kills
            await self.step()
            silent = silent + 1 if (self.kube.writes, self.kills) == before else 0
            if silent >= quiet:
                return
        raise AssertionError(f"still writing after {steps} steps")

    # What users do and see

    def deployment(self, name: str, namespace: str = "default") -> Obj:
        return self.api.get(MOE_DEPLOYMENT, namespace, name)

    def status(self, name: str, namespace: str = "default") -> Obj:
        return dict(self.deployment(name, namespace).get("status") or {})

    def condition(self, name: str, kind: str, namespace: str = "default") -> Obj:
        conditions = self.status(name, namespace).get("conditions") or ()
        return next((c for c in conditions if c["type"] == kind), {})

    def is_ready(self, name: str, namespace: str = "default") -> bool:
        return self.condition(name, "Ready", namespace).get("status") == "True"

    def stable(self, name: str, namespace: str = "default") -> bool:
        status = self.status(name, namespace)
        return (
            self.is_ready(name, namespace)
            and status.get("rollout", {}).get("phase") == "Stable"
            and status.get("activeRevision") == status.get("targetRevision")
            and status.get("observedGeneration") == self.deployment(name, namespace)["metadata"]["generation"]
        )

    def exists(self, name: str, namespace: str = "default") -> bool:
        try:
            self.deployment(name, namespace)
        except ApiError as error:
            return not error.not_found
        return True

    def engine_pods(self, name: str = "") -> list[Obj]:
        selector = "app.kubernetes.io/component=engine" + (
            f",moe-operator.io/deployment={name}" if name else ""
        )
        return list(self.api.list(POD, labels=selector).items)

    def gateway_pods(self, name: str = "") -> list[Obj]:
        selector = "app.kubernetes.io/component=gateway" + (
            f",moe-operator.io/deployment={name}" if name else ""
        )
        return list(self.api.list(POD, labels=selector).items)

    def group(self, name: str, revision: str, replica: int = 0) -> Obj:
        """The record of one group; empty when there is none."""
        groups = self.status(name).get("groups") or ()
        return next((g for g in groups if (g["revision"], g["replica"]) == (revision, replica)), {})

    def pods_of(self, name: str, revision: str, replica: int = 0) -> dict[str, str]:
        """Pod name → uid of one group."""
        wanted = {"moe-operator.io/revision": revision, "moe-operator.io/replica": str(replica)}
        return {
            p["metadata"]["name"]: p["metadata"]["uid"]
            for p in self.engine_pods(name)
            if wanted.items() <= p["metadata"]["labels"].items()
        }

    async def apply(self, obj: Obj) -> Obj:
        obj = {**obj, "metadata": {"namespace": "default", **obj["metadata"]}}
        return await self.user.apply(obj, manager="kubectl")

    async def edit(self, name: str, change: Callable[[Obj], None], namespace: str = "default") -> None:
        obj = self.deployment(name, namespace)
        change(obj["spec"])
        await self.user.replace(obj)

    async def annotate(self, name: str, key: str, value: str) -> None:
        obj = self.deployment(name)
        obj["metadata"].setdefault("annotations", {})[key] = value
        await self.user.replace(obj)

    async def delete(self, name: str) -> None:
        await self.user.delete(MOE_DEPLOYMENT, "default", name)

    async def cordon(self, node: str, cordoned: bool = True) -> None:
        found = await self.user.get(NODE, None, node)
        found["spec"]["unschedulable"] = cordoned
        await self.user.replace(found)

    async def secret(self, name: str, namespace: str = "default") -> None:
        meta = {"name": name, "namespace": namespace}
        await self.user.create({"apiVersion": "v1", "kind": SECRET.kind, "metadata": meta, "stringData": {}})


def facts(source: str, config: str, size: int) -> Manifest:
    """A manifest with a published config.json and one shard of ``size`` bytes."""
    content = json.loads((CONFIGS / f"{config}.config.json").read_text())
    shard = ManifestFile(path="model-00001-of-00001.safetensors", size=size, sha256="ab" * 32)
    return Manifest(
        source=source,
        resolved="0123abcd",
        files=[shard],
        config=content,
        weights=WeightSummary(tensors=1, total_bytes=size, shards=1),
    )


def moe_deployment(name: str = "k3", **spec: Any) -> Obj:
    """A small valid object on 2×8 H20; keyword arguments replace members of the spec."""
    base = {
        "model": {"source": "https://models.example/dsv31"},
        "engine": {"type": "vLLM", "image": "vllm:blue"},
        "accelerators": {"product": "NVIDIA-H20", "nodes": 2},
    }
    return {
        "apiVersion": "moe-operator.io/v1alpha1",
        "kind": "MoEDeployment",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }
