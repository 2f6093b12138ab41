"""``prepare``, ``up``, ``load``, ``down`` and ``status``: observe, let the pure rooms decide, do it, say it.

Invariants: one of these runs at a time per cache folder. The record of a cluster is written only when the
cluster is whole, so a creation that was cut off is known by its absence. ``down`` removes what ``up`` made
and never the cache, unless asked to purge.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from e2e.cluster import (
    containers,
    disk,
    dockerd,
    host,
    kind_config,
    node_image,
    nodes,
    prerequisites,
    programs,
    recovery,
    rootfs,
    source,
)
from e2e.cluster.command import CommandFailed, attempt, run, run_logged
from e2e.cluster.go_binaries import BINARIES, NODE_BINARIES, kubernetes_version
from e2e.cluster.host import CannotContinue
from e2e.cluster.nodes import NotInTime
from e2e.cluster.progress import Progress
from e2e.cluster.record import Record
from e2e.cluster.recovery import Course, Verdict
from e2e.cluster.settings import CLUSTER, ClusterSpec, Folders
from e2e.cluster.source import Choice, Source

READY_SECONDS = 180.0
REVIVE_SECONDS = 120.0
REGISTRY_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A spec together with the node image that it will run."""

    spec: ClusterSpec
    choice: Choice
    image: str
    kind_config: str

    @property
    def digest(self) -> str:
        audit = kind_config.AUDIT_POLICY.read_text()
        return self.spec.digest(image=self.image, kind=self.kind_config, audit=audit)

    @property
    def kubernetes(self) -> str:
        """The nodes' version."""
        return kubernetes_version() if self.choice.source is Source.BUILD else source.PINNED_KUBERNETES


def prepare(
    spec: ClusterSpec, asked: Source | None, folders: Folders, progress: Progress, *, bootstrap: bool
) -> Source:
    """Leave with all that ``up`` needs (daemon, node image, programs) and say where the image is from.

    Raises as ``up`` does.
    """
    with _alone(folders, progress):
        _ensure_docker(folders, progress, bootstrap=bootstrap)
        wanted = _resolve(spec, asked, folders, progress)
        _obtain(wanted, folders, progress, bootstrap=bootstrap)
        programs.clients(wanted.kubernetes, folders, progress)
        return wanted.choice.source


def up(
    spec: ClusterSpec, asked: Source | None, folders: Folders, progress: Progress, *, bootstrap: bool
) -> Record:
    """Leave with a healthy cluster of this spec: reused, revived or made.

    Raises CannotContinue when the machine lacks something, CommandFailed when a program fails.
    """
    with _alone(folders, progress):
        _ensure_docker(folders, progress, bootstrap=bootstrap)
        wanted = _resolve(spec, asked, folders, progress)
        progress.say(
            f"node image: {wanted.image}, from {wanted.choice.source} because {wanted.choice.because}"
        )
        record = Record.read(folders)
        verdict = recovery.judge(wanted.digest, wanted.spec.size, _look(record))
        progress.say(f"cluster: {verdict.course}, because {verdict.because}")
        if verdict.course in {Course.REUSE, Course.REVIVE} and record:
            try:
                return _bring_back(wanted, record, verdict, folders, progress)
            except (NotInTime, CommandFailed) as failure:
                progress.say(f"cluster: recreate, because it did not come back: {failure}")
        return _make(wanted, folders, progress, bootstrap=bootstrap)


def load(images: tuple[str, ...], only: tuple[str, ...], folders: Folders, progress: Progress) -> None:
    """Copy images from Docker into the nodes (all, or ``only`` those named)."""
    record = Record.read(folders)
    if not record:
        raise CannotContinue("there is no cluster: run `up` first")
    if absent := [image for image in images if not containers.has_image(image)]:
        raise CannotContinue(f"Docker has no image {', '.join(absent)}: build it first")
    chosen = ("--nodes", ",".join(only)) if only else ()
    with progress.step(f"loading {', '.join(images)}"):
        run(record.kind, "load", "docker-image", *images, "--name", CLUSTER, *chosen)


def start_again(spec: ClusterSpec, names: tuple[str, ...], folders: Folders, progress: Progress) -> None:
    """Start nodes that were stopped and give the cluster its network and its devices back.

    Raises NotInTime or CommandFailed; unlike ``up`` it never makes another cluster instead.
    """
    record = Record.read(folders)
    if not record:
        raise CannotContinue("there is no cluster: run `up` first")
    with _alone(folders, progress):
        since = nodes.now()
        containers.set_going(names, ())
        _settle(spec, record, REVIVE_SECONDS, progress, since)


def down(folders: Folders, progress: Progress, *, purge: bool) -> None:
    """Remove the cluster, and the daemon with all its traces if ``up`` started it."""
    with _alone(folders, progress):
        ours = dockerd.started_by_us(folders)
        if (ours or Record.read(folders)) and not dockerd.answers():
            progress.say("Docker must run to remove what it holds")
            dockerd.ensure(folders, progress)
        if dockerd.answers():
            _remove(folders, progress)
            if purge:
                _remove_images(progress)
        _forget(folders)
        if ours and (others := containers.strangers()):
            progress.say(f"the Docker daemon stays: it also runs {', '.join(others)}")
        else:
            if ours:
                dockerd.stop(folders, progress)
            shutil.rmtree(folders.state, ignore_errors=True)
        if purge:
            for recipe in (rootfs.NODE, rootfs.PYTHON):
                rootfs.discard_tree(folders.work / recipe.image)
            shutil.rmtree(folders.root)
            progress.say(f"removed {folders.root}; Go's own caches are left to `go clean -cache -modcache`")


def status(folders: Folders, progress: Progress) -> bool:
    """Say what there is; True when the cluster is healthy."""
    record = Record.read(folders)
    if not dockerd.answers():
        progress.say("docker: no daemon answers")
        return False
    if not record:
        progress.say("cluster: none")
        return False
    listed = record.client.items("nodes")
    ready = nodes.readiness(listed) or {}
    progress.say(f"node image: {record.node_image} ({record.source})")
    for name, state in sorted(containers.states().items()):
        progress.say(
            f"  {name}: {state}, {'Ready' if ready.get(name) else 'not Ready'}{_devices(listed, name)}"
        )
    _say_how_to_use(record, folders, progress)
    return bool(ready) and all(ready.values())


def python_base(folders: Folders, progress: Progress, *, bootstrap: bool) -> str:
    """Reference of a Debian image with Python, built here; for machines without an image registry."""
    with _alone(folders, progress):
        _ensure_docker(folders, progress, bootstrap=bootstrap)
        needed = prerequisites.BUILD_PROGRAMS
        host.ensure_programs(needed, bootstrap=bootstrap, folders=folders, progress=progress)
        go = programs.ensure_go(folders, progress)
        return rootfs.ensure(rootfs.PYTHON, go.architecture, folders, progress)


def _ensure_docker(folders: Folders, progress: Progress, *, bootstrap: bool) -> None:
    if not dockerd.answers():
        needed = prerequisites.DAEMON_PROGRAMS
        host.ensure_programs(needed, bootstrap=bootstrap, folders=folders, progress=progress)
    dockerd.ensure(folders, progress)


def _resolve(spec: ClusterSpec, asked: Source | None, folders: Folders, progress: Progress) -> Wanted:
    """Choose the node image; asks a registry only if nothing on this machine decides."""
    go = programs.find_go(folders)

    def registry_answers() -> bool:
        with progress.step("asking for an image registry"):
            tag = source.PINNED_IMAGE.partition("@")[0]
            return attempt("docker", "manifest", "inspect", tag, timeout=REGISTRY_SECONDS).ok

    choice = source.choose(
        asked,
        pinned_is_here=containers.has_image(source.PINNED_IMAGE),
        built_is_here=go is not None and containers.has_image(node_image.reference(go)),
        registry_answers=registry_answers,
    )
    cgroup_v1 = host.has_cgroup_v1()
    config = kind_config.render(spec, choice.source, folders.audit_policy, cgroup_v1=cgroup_v1)
    if choice.source is Source.REGISTRY:
        return Wanted(spec, choice, source.PINNED_IMAGE, config)
    go = go or programs.ensure_go(folders, progress)
    return Wanted(spec, choice, node_image.reference(go), config)


def _look(record: Record | None) -> recovery.Seen:
    states = containers.states()
    running = bool(states) and set(states.values()) == {recovery.RUNNING}
    ready = nodes.readiness(record.client.items("nodes")) if record and running else None
    return recovery.Seen(states, record.digest if record else None, ready)


def _bring_back(
    wanted: Wanted, record: Record, verdict: Verdict, folders: Folders, progress: Progress
) -> Record:
    since = nodes.now() if verdict.course is Course.REVIVE else None
    containers.set_going(verdict.start, verdict.unpause)
    with progress.step("looking after the nodes"):
        _settle(wanted.spec, record, REVIVE_SECONDS, progress, since)
    _say_how_to_use(record, folders, progress)
    return record


def _make(wanted: Wanted, folders: Folders, progress: Progress, *, bootstrap: bool) -> Record:
    _remove(folders, progress)
    _forget(folders)
    _obtain(wanted, folders, progress, bootstrap=bootstrap)
    clients = programs.clients(wanted.kubernetes, folders, progress)
    config = folders.state / "kind.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(wanted.kind_config)
    shutil.copyfile(kind_config.AUDIT_POLICY, folders.audit_policy)
    with progress.step(f"creating {wanted.spec.size} nodes"):
        run_logged(
            clients.kind, "create", "cluster", "--config", config, "--image", wanted.image,
            "--kubeconfig", folders.kubeconfig, log=folders.logs / "kind-create.log",
        )  # fmt: skip
    record = Record(
        digest=wanted.digest,
        node_image=wanted.image,
        source=wanted.choice.source,
        kubeconfig=str(folders.kubeconfig),
        kind=str(clients.kind),
        kubectl=str(clients.kubectl),
        helm=str(clients.helm),
    )
    with progress.step("wiring, waiting for Ready, labelling"):
        _settle(wanted.spec, record, READY_SECONDS, progress, None)
    programs.link(clients, folders.bin)
    record.write(folders)
    _say_how_to_use(record, folders, progress)
    return record


def _settle(
    spec: ClusterSpec, record: Record, seconds: float, progress: Progress, since: datetime | None
) -> None:
    """Bring running containers to a cluster that can be used; doing it again changes nothing."""
    kubectl = record.client
    if record.source is Source.BUILD:
        nodes.wire(kubectl, spec.size, seconds)
    listed = nodes.wait_until_ready(kubectl, spec.size, seconds, since)
    if patched := nodes.pretend_gpus(kubectl, spec.topology, listed):
        progress.say(f"  gave {patched} workers their GPUs ({spec.topology.name})")
    nodes.wait_until_useful(kubectl, f"{CLUSTER}-worker", seconds)


def _obtain(wanted: Wanted, folders: Folders, progress: Progress, *, bootstrap: bool) -> None:
    """Pull or build the node image, after looking whether there is room for it."""
    here = containers.has_image(wanted.image)
    _ensure_room((dockerd.data_folder(), disk.NODES_ONLY_BYTES if here else disk.DOCKER_BYTES))
    if here:
        return
    if wanted.choice.source is Source.BUILD:
        _build(wanted, folders, progress, bootstrap=bootstrap)
        return
    with progress.step(f"pulling {wanted.image}"):
        run_logged("docker", "pull", wanted.image, log=folders.logs / "pull.log")


def _build(wanted: Wanted, folders: Folders, progress: Progress, *, bootstrap: bool) -> None:
    if not host.is_root():
        raise CannotContinue(
            "building a node image needs root (debootstrap): run the same command with sudo -E"
        )
    go = programs.ensure_go(folders, progress)
    uncompiled = [name for name in NODE_BINARIES if not programs.cached(BINARIES[name], go, folders).exists()]
    build_bytes = disk.BUILD_CACHE_BYTES if uncompiled else disk.ASSEMBLY_BYTES
    _ensure_room((folders.root, build_bytes), (dockerd.data_folder(), disk.DOCKER_BYTES))
    host.ensure_programs(
        prerequisites.BUILD_PROGRAMS, bootstrap=bootstrap, folders=folders, progress=progress
    )
    if uncompiled:
        progress.say(
            f"compiling {len(uncompiled)} programs; all of them take 20 to 40 minutes (logs: {folders.logs})"
        )
    node_image.build(go, folders, progress)


def _ensure_room(*needs: tuple[Path, int]) -> None:
    if short := disk.shortfall([host.disk_need(folder, wanted) for folder, wanted in needs]):
        raise CannotContinue(f"not enough disk. {short}")


def _remove(folders: Folders, progress: Progress) -> None:
    """Remove the cluster's containers; what a living daemon cannot let go of, a new one can."""
    if not containers.states():
        return
    with progress.step("removing the cluster"):
        try:
            containers.remove()
        except CommandFailed as failure:
            if not dockerd.started_by_us(folders) or containers.strangers():
                raise
            progress.say(f"{failure}; restarting it")
            dockerd.stop(folders, progress)
            dockerd.ensure(folders, progress)
            containers.remove()


def _remove_images(progress: Progress) -> None:
    ours = (node_image.IMAGE, rootfs.NODE.image, rootfs.PYTHON.image)
    filters = [part for name in ours for part in ("--filter", f"reference={name}")]
    images = run("docker", "images", *filters, "--format", "{{.Repository}}:{{.Tag}}").split()
    if images:
        run("docker", "image", "rm", *images)
        progress.say(f"removed {', '.join(images)}")


def _devices(listed: list[nodes.Obj] | None, name: str) -> str:
    node = next((each for each in listed or () if each["metadata"]["name"] == name), None)
    labels = node["metadata"].get("labels", {}) if node else {}
    if not node or "nvidia.com/gpu.product" not in labels:
        return ""
    count = node["status"]["allocatable"].get("nvidia.com/gpu", "0")
    return f", {count} × {labels['nvidia.com/gpu.product']}"


def _say_how_to_use(record: Record, folders: Folders, progress: Progress) -> None:
    progress.say(f"kubeconfig: {record.kubeconfig}")
    progress.say(f"  export KUBECONFIG={record.kubeconfig} PATH={folders.bin}:$PATH")


def _forget(folders: Folders) -> None:
    for path in (folders.record, folders.kubeconfig, folders.state / "kind.yaml"):
        path.unlink(missing_ok=True)


@contextmanager
def _alone(folders: Folders, progress: Progress) -> Iterator[None]:
    """Hold the tool's lock; a second one waits."""
    folders.root.mkdir(parents=True, exist_ok=True)
    with (folders.root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another run of this tool is at work; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
