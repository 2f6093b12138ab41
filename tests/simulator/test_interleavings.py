"""Three deployments on one cluster, and everything that can happen to them in any order.

The operator is the real reconcile loop with a worker per deployment; before every call to the API server it
gives way to the others a random number of times, so observing, deciding and writing interleave, and being
killed can mean being killed between any two calls.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import filterfalse
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from moe_operator.api.manifest import Manifest, ManifestFile
from moe_operator.api.names import digest, pod_name
from moe_operator.reconcile.decide import decide
from moe_operator.reconcile.kept import mounted_on
from moe_operator.reconcile.wants import wants
from moe_operator.runtime.execute import Executor
from moe_operator.runtime.kube import JOB, POD
from moe_operator.runtime.metrics import OperatorMetrics
from moe_operator.runtime.observe import Observer
from moe_operator.runtime.reconcile_loop import ReconcileLoop
from moe_operator.runtime.wakeups import Key
from moe_operator.sandbox import nodes

from tests.simulator.world import EverythingGoes, Killed, World, facts, moe_deployment

Obj = dict[str, Any]
GPUS = 8
PASSES = 10
SIZE = 2 << 30  # worth handing on from node to node
SOURCES = {f"vllm:{name}": f"https://models.example/{name}" for name in ("blue", "green", "red")}
SHAPES = {"a": (2, 8), "b": (1, 8), "c": (1, 4)}  # nodes × GPUs of each deployment


class GivingWay:
    """A client that lets the other workers go first, as often as chance has it."""

    def __init__(self, inner: Any, rng: random.Random) -> None:
        self._inner, self._rng = inner, rng

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)

        async def later(*args: Any, **kwargs: Any) -> Any:
            for _ in range(self._rng.randrange(3)):
                await asyncio.sleep(0)
            return await call(*args, **kwargs)

        return later


class NextPass:
    """A work queue that only remembers who wants to go on at once."""

    def __init__(self) -> None:
        self.due: set[Key] = set()

    def add(self, key: Key) -> None:
        self.due.add(key)

    def add_after(self, key: Key, delay: float) -> None:
        if delay <= 0:
            self.due.add(key)

    def retry(self, key: Key, *, cap: float = 0.0) -> float:
        return 1.0

    def forgive(self, key: Key) -> None:
        return None


class Busy(World):
    """A world whose operator works on all deployments at the same time."""

    def start_operator(self, rng: random.Random) -> None:
        self.rng = rng
        self.queue = NextPass()
        kube = GivingWay(self.kube, rng)
        observer = Observer(
            kube,  # type: ignore[arg-type]
            self.probes,
            now=self.time,
            policy=self.policy,
            wants=wants,
            entropy=self.next_token,
            overtaken=self.overtaken,
        )
        self.loop = ReconcileLoop(
            self.queue,  # type: ignore[arg-type]
            observer,
            decide,
            Executor(kube, self.time),  # type: ignore[arg-type]
            OperatorMetrics("test", self.time),
            gone=lambda key: None,
            clock=self.time,
        )

    async def overtaken(self, key: Key) -> None:
        """By something that happens while pods are asked, as often as chance has it."""
        if self.rng.random() < 0.9:
            await asyncio.Event().wait()
        for _ in range(self.rng.randrange(3)):
            await asyncio.sleep(0)
        self.queue.add(key)

    async def operator_pass(self) -> None:
        self.kube.dead = False
        try:
            async with asyncio.TaskGroup() as workers:
                for key in self.deployment_keys():
                    workers.create_task(self._work(key))
        except* Killed:
            self.start_operator(self.rng)

    async def _work(self, key: Key) -> None:
        for _ in range(PASSES):
            self.queue.due.discard(key)
            await self.loop.reconcile(key)
            if key not in self.queue.due:
                return

    async def step(self, seconds: float = 1.0) -> None:
        await super().step(seconds)
        self.no_gpu_is_given_twice()
        self.nodes_take_turns()
        self.no_file_is_freed_under_an_engine()

    def nodes_take_turns(self) -> None:
        """One pull from the source at a time over all deployments; a store is filled or freed, never both.

        And by one scrubber at a time, which an operator that is killed may leave beside them for a moment.
        """
        jobs = [
            j for j in self.api.list(JOB).items if "moe-operator.io/node" in annotations(j) and not is_over(j)
        ]
        pulls = [j for j in jobs if "moe-operator.io/source-host" in annotations(j)]
        assert sum("moe-operator.io/from-peers" not in annotations(j) for j in pulls) <= 1
        read = [annotations(j)["moe-operator.io/node"] for j in jobs if is_scrubber(j)]
        assert len(read) == len(set(read)), "two read the same store"
        by_node: dict[str, set[bool]] = {}
        for job in filterfalse(is_scrubber, jobs):
            by_node.setdefault(annotations(job)["moe-operator.io/node"], set()).add(job in pulls)
        assert all(len(kinds) == 1 for kinds in by_node.values()), "filled and freed at the same time"

    def no_file_is_freed_under_an_engine(self) -> None:
        """And what an engine reads is on its deployment's record, which is what collectors spare."""
        for pod in self.engine_pods():
            if not any("running" in c["state"] for c in pod.get("status", {}).get("containerStatuses") or ()):
                continue
            node, name = pod["spec"]["nodeName"], pod["metadata"]["labels"]["moe-operator.io/deployment"]
            [view] = mounted_on(node, [pod])
            assert view in self.kubelet.stores.disk(node).views, f"{pod['metadata']['name']} lost its files"
            if self.exists(name) and not self.deployment(name)["metadata"].get("deletionTimestamp"):
                stores = self.status(name)["stores"]
                assert any(s["node"] == node and view in s["views"] for s in stores)

    def no_gpu_is_given_twice(self) -> None:
        """What bound pods hold and what placements on record promise; a rank that has its pod counts once."""
        taken: Counter[str] = Counter()
        standing = set()
        for pod in self.engine_pods():
            node = pod["spec"].get("nodeName")
            if node and pod["status"].get("phase") not in {"Succeeded", "Failed"}:
                standing.add(pod["metadata"]["name"])
                taken[node] += int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        for key in self.deployment_keys():
            for placement in self.status(key.name).get("placement") or ():
                for rank in placement["ranks"]:
                    name = pod_name(key.name, placement["revision"], placement["replica"], rank["rank"])
                    if name not in standing:
                        taken[rank["node"]] += placement["gpusPerNode"]
        over = {node: gpus for node, gpus in taken.items() if gpus > GPUS}
        assert not over, f"promised or held at once: {over}"


def annotations(obj: Obj) -> Obj:
    return dict(obj["metadata"].get("annotations") or {})


def is_scrubber(job: Obj) -> bool:
    return bool(job["metadata"]["labels"]["app.kubernetes.io/component"] == "scrubber")


def is_over(job: Obj) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c["type"] in {"Complete", "Failed"} for c in conditions)


def shape(name: str, image: str) -> Obj:
    count, gpus = SHAPES[name]
    return moe_deployment(
        name,
        model={"source": SOURCES[image]},
        weights={"maxConcurrentNodes": 1},
        engine={"type": "vLLM", "image": image},
        accelerators={"product": "NVIDIA-H20", "nodes": count, "gpusPerNode": gpus},
        restart={"maxGroupRestarts": 1000, "backoffSeconds": 0},
    )


Happening = Callable[[Busy, random.Random], Awaitable[None]]


async def create_or_edit(world: Busy, rng: random.Random) -> None:
    await world.apply(shape(rng.choice("abc"), rng.choice(("vllm:blue", "vllm:green", "vllm:red"))))


async def delete(world: Busy, rng: random.Random) -> None:
    if keys := world.deployment_keys():
        await world.delete(rng.choice(keys).name)


async def more_gpus(world: Busy, rng: random.Random) -> None:
    if world.exists("c"):
        gpus = rng.choice((4, 8))
        await world.edit("c", lambda s: s["accelerators"].update(gpusPerNode=gpus))


async def kill_a_rank(world: Busy, rng: random.Random) -> None:
    if pods := world.engine_pods():
        world.kubelet.kill(rng.choice(pods), rng.choice((0, 1, 137)))


async def delete_a_pod(world: Busy, rng: random.Random) -> None:
    if pods := world.engine_pods():
        await world.user.delete(POD, "default", rng.choice(pods)["metadata"]["name"])


async def kill_the_operator(world: Busy, rng: random.Random) -> None:
    at = world.kube.writes + rng.randrange(6)
    world.kube.kill_before, world.kube.kill_after = rng.choice(((at, None), (None, at)))


async def cordon_or_not(world: Busy, rng: random.Random) -> None:
    await world.cordon(f"h20-{rng.randrange(4)}", rng.random() < 0.5)


async def fill_or_empty_a_disk(world: Busy, rng: random.Random) -> None:
    node = f"h20-{rng.randrange(4)}"
    if rng.random() < 0.5:
        world.kubelet.stores.capacity[node] = rng.choice((0, SIZE, 2 * SIZE))
    else:
        world.kubelet.stores.capacity.pop(node, None)


async def lose_a_disk(world: Busy, rng: random.Random) -> None:
    node = f"h20-{rng.randrange(4)}"
    (world.kubelet.stores.unmounted.add if rng.random() < 0.5 else world.kubelet.stores.unmounted.discard)(
        node
    )


async def delete_a_job(world: Busy, rng: random.Random) -> None:
    if jobs := world.api.list(JOB).items:
        await world.user.delete(JOB, "default", rng.choice(jobs)["metadata"]["name"])


async def time_passes(world: Busy, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 6)):
        await world.step()


async def a_disk_alters_a_file(world: Busy, rng: random.Random) -> None:
    """And it is time to read the disks again."""
    disk = world.kubelet.stores.disk(f"h20-{rng.randrange(4)}")
    disk.rotten |= set(disk.blobs)
    world.now += 7 * 24 * 3600.0


HAPPENINGS: tuple[Happening, ...] = (
    create_or_edit, create_or_edit, delete, more_gpus, kill_a_rank, delete_a_pod, kill_the_operator,
    cordon_or_not, fill_or_empty_a_disk, lose_a_disk, delete_a_job, time_passes, time_passes,
    a_disk_alters_a_file,
)  # fmt: skip


def manifest(source: str) -> Manifest:
    files = [ManifestFile(path="model.safetensors", size=SIZE, sha256=digest(source, 64))]
    return facts(source, "qwen3-235b-a22b-fp8", SIZE).model_copy(update={"files": files})


async def run(happenings: list[int], seed: int) -> None:
    rng = random.Random(seed)
    world = Busy("h20-4x8", admission=EverythingGoes())
    await world.build()
    for source in SOURCES.values():
        world.kubelet.manifests[source] = manifest(source)
    world.start_operator(rng)
    for number in happenings:
        await HAPPENINGS[number](world, rng)
        await world.step()
    await quiet(world)


async def quiet(world: Busy) -> None:
    """Nothing is broken any more, and there is room for every rollout: then all of it comes to rest."""
    world.kube.kill_before = world.kube.kill_after = None
    world.kubelet.stores.capacity.clear()
    world.kubelet.stores.unmounted.clear()
    for node in nodes.build_nodes("h20-8x8"):
        await world.user.apply(node, manager="kubelet")
    await nodes.heartbeat(world.user, world.now, lambda name: "10.1.0.1")
    for number in range(4):
        await world.cordon(f"h20-{number}", False)
    await world.until(
        lambda: all(world.stable(k.name) and staged(world, k.name) for k in world.deployment_keys())
    )
    await world.settle()
    owners = {p["metadata"]["labels"]["moe-operator.io/deployment"] for p in world.engine_pods()}
    assert owners == {key.name for key in world.deployment_keys()}
    for key in world.deployment_keys():
        assert len(world.engine_pods(key.name)) == SHAPES[key.name][0]


def staged(world: Busy, name: str) -> bool:
    return bool(world.condition(name, "WeightsStaged")["status"] == "True")


@given(
    happenings=st.lists(st.integers(0, len(HAPPENINGS) - 1), min_size=5, max_size=25),
    seed=st.integers(0, 2**32 - 1),
)
@example([1, 0, 4, 11, 6, 9, 9, 12, 9, 8, 5, 6, 3, 12, 8, 8, 5, 10, 9, 3], 3312438521)  # a disk comes back
@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a run takes seconds: what fails is told as it is
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_whatever_happens_no_gpu_is_given_twice_and_all_comes_to_rest(
    happenings: list[int], seed: int
) -> None:
    asyncio.run(run(happenings, seed))
