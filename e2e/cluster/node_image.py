"""The nodes' image, built from Go modules and Debian packages where none can be pulled.

A container of the node root file system receives kind's own files (from inside kind's module, never copied
into this repository) and our programs, is set up as kind's Dockerfile does, is filled with the control
plane's images, and is committed. The tag is the hash of everything that went in.
"""

from __future__ import annotations

import shutil
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import control_images, go_binaries, programs, rootfs
from e2e.cluster.command import CommandFailed, attempt, pipe, run
from e2e.cluster.go_binaries import BINARIES, KIND, NODE_BINARIES
from e2e.cluster.inputs import key
from e2e.cluster.programs import Go
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders

IMAGE = "moe-node"
BUILDER = "moe-node-builder"
ASSETS = Path(__file__).parent / "assets"
# Programs that lie in the node itself; the rest of the control plane runs from images.
_ON_THE_NODE: Mapping[str, str] = {
    "kubeadm": "usr/bin",
    "kubelet": "usr/bin",
    "kubectl": "usr/bin",
    "containerd": "usr/local/bin",
    "containerd-shim-runc-v2": "usr/local/bin",
    "ctr": "usr/local/bin",
}
_CONTAINERD_START_SECONDS = 30.0


def reference(go: Go) -> str:
    """Name and tag of the image that these inputs give."""
    inputs: dict[str, str | bytes] = {
        name: go_binaries.binary_key(BINARIES[name], go.version, go.architecture)
        for name in (*NODE_BINARIES, "kind")
    }
    inputs |= {path.name: path.read_bytes() for path in ASSETS.iterdir()}
    inputs["rootfs"] = rootfs.NODE.reference(go.architecture)
    inputs["layout"] = repr(sorted(_ON_THE_NODE.items()))
    return f"{IMAGE}:{key(inputs)}"


def build(go: Go, folders: Folders, progress: Progress) -> str:
    """Build what the cache lacks and return the image's reference. Needs root; the first time takes long."""
    image = reference(go)
    built = {name: programs.build(BINARIES[name], go, folders, progress) for name in NODE_BINARIES}
    base = rootfs.ensure(rootfs.NODE, go.architecture, folders, progress)
    with progress.step(f"assembling {image}"):
        version = go_binaries.kubernetes_version()
        listed = run(built["kubeadm"], "config", "images", "list", "--kubernetes-version", version)
        images = control_images.by_component(listed.split())
        _import_control_images(built, images, base, folders)
        kind_files = programs.module_folder("kind", KIND, go) / "images/base/files"
        files = _lay_out(kind_files, built, folders)
        with _builder(base):
            run("docker", "cp", f"{files}/.", f"{BUILDER}:/")
            facts = ("-e", f"PAUSE_IMAGE={images['pause']}", "-e", f"KUBERNETES_VERSION={version}")
            run("docker", "exec", "-i", *facts, BUILDER, "sh", "-s", stdin=_asset("node-setup.sh"))
            _fill(images.values())
            run(
                "docker", "commit", "--change", 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]',
                "--change", "CMD []", BUILDER, image,
            )  # fmt: skip
        shutil.rmtree(files)
        run("docker", "image", "rm", *images.values())
    return image


def _import_control_images(
    built: Mapping[str, Path], images: Mapping[str, str], base: str, folders: Folders
) -> None:
    folders.work.mkdir(parents=True, exist_ok=True)
    archive = folders.work / "component.tar"
    for component, program in control_images.single_program(built).items():
        inside = control_images.entrypoint(component)
        with tarfile.open(archive, "w") as tar:
            tar.add(program, inside)
        entrypoint = ("--change", f'ENTRYPOINT ["{inside}"]', "--change", "ENV PATH=/usr/local/bin")
        run("docker", "import", *entrypoint, archive, images[component])
    archive.unlink()
    script = (
        "docker", "run", "--rm", "--mount", f"type=bind,src={built['kube-proxy'].parent},dst=/built,readonly",
        base, "sh", "-c", _asset("kube-proxy-files.sh"),
    )  # fmt: skip
    path = ("--change", "ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin")
    pipe(script, ("docker", "import", *path, "-", images["kube-proxy"]))


def _lay_out(kind_files: Path, built: Mapping[str, Path], folders: Folders) -> Path:
    """Collect the files of a node below one folder, with the modes they need (Go keeps sources read-only)."""
    tree = folders.work / "node-files"
    shutil.rmtree(tree, ignore_errors=True)
    for source in kind_files.rglob("*"):
        if source.is_file():
            _place(source, tree / source.relative_to(kind_files))
    for name, folder in _ON_THE_NODE.items():
        _place(built[name], tree / folder / name)
    return tree


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if "bin" in target.parts else 0o644)


@contextmanager
def _builder(base: str) -> Iterator[None]:
    """A container of the root file system that waits to be filled; gone afterwards."""
    attempt("docker", "rm", "-f", "-v", BUILDER)  # left by a build that was cut off
    run(
        "docker", "run", "-d", "--name", BUILDER, "--privileged", "--stop-signal", "SIGRTMIN+3",
        "--env", "container=docker", "--entrypoint", "sleep", base, "infinity",
    )  # fmt: skip
    try:
        yield
    finally:
        attempt("docker", "rm", "-f", "-v", BUILDER)


def _fill(references: Iterable[str]) -> None:
    """Put the control plane's images where the node's containerd finds them; it unpacks them at start."""
    run("docker", "exec", "-d", BUILDER, "containerd")
    deadline = time.monotonic() + _CONTAINERD_START_SECONDS
    while not (answer := attempt("docker", "exec", BUILDER, "ctr", "version")).ok:
        if time.monotonic() > deadline:
            raise CommandFailed(f"containerd does not start in the node: {answer.err}")
        time.sleep(0.3)
    importing = (
        "ctr",
        "-n",
        "k8s.io",
        "images",
        "import",
        "--all-platforms",
        "--digests",
        "--no-unpack",
        "-",
    )
    pipe(("docker", "save", *references), ("docker", "exec", "-i", BUILDER, *importing))
    run(
        "docker",
        "exec",
        BUILDER,
        "sh",
        "-c",
        "pkill containerd; while pgrep containerd >/dev/null; do sleep 0.1; done",
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text()
