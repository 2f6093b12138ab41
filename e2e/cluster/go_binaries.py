"""Which programs are built from Go modules, and exactly how.

Each module folder under ``modules/`` pins its own dependency tree (go.mod and go.sum), so versions that
clash never meet. Versions are read from go.mod: it is the only place that says them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.inputs import key

MODULES = Path(__file__).parent / "modules"
KUBERNETES = "k8s.io/kubernetes"
KIND = "sigs.k8s.io/kind"


@dataclass(frozen=True, slots=True)
class Binary:
    """One program: the folder that pins it, its main package, and what is said to the compiler."""

    name: str
    module: str
    package: str
    tags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  # string variables set to the Kubernetes version

    @property
    def sources(self) -> Path | None:
        """The folder of a main package that lies in this repository."""
        return MODULES / self.module / self.package if self.package.startswith("./") else None


_VERSION = "k8s.io/component-base/version"
_NODE_COMMANDS = (
    "kubeadm",
    "kubelet",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubectl",
)
_NO_SNAPSHOTTERS = ("no_btrfs", "no_devmapper", "no_zfs", "no_aufs")
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"

# Order of building: kubeadm first compiles what the others share.
BINARIES: Mapping[str, Binary] = {
    binary.name: binary
    for binary in (
        *(
            Binary(name, "kubernetes", f"{KUBERNETES}/cmd/{name}", variables=(_VERSION,))
            for name in _NODE_COMMANDS
        ),
        Binary("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
        Binary("coredns", "kubernetes", "./coredns"),
        Binary("pause", "kubernetes", "./pause"),
        Binary("containerd", "containerd", f"{_CONTAINERD}/containerd", _NO_SNAPSHOTTERS),
        Binary("containerd-shim-runc-v2", "containerd", f"{_CONTAINERD}/containerd-shim-runc-v2"),
        Binary("ctr", "containerd", f"{_CONTAINERD}/ctr", _NO_SNAPSHOTTERS),
        Binary("kind", "kind", KIND),
        Binary("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
    )
}
NODE_BINARIES = tuple(
    name for name, binary in BINARIES.items() if binary.module in {"kubernetes", "containerd"}
)


def go_mod(module: str) -> str:
    """The text of one module folder's go.mod."""
    return (MODULES / module / "go.mod").read_text()


def required(go_mod_text: str, path: str) -> str:
    """The version a go.mod requires of a module, "v1.2.3"; raises LookupError when it requires none."""
    found = re.search(rf"^(?:require)?\s*{re.escape(path)} (v\S+)", go_mod_text, re.MULTILINE)
    if not found:
        raise LookupError(f"go.mod requires no {path}")
    return found[1]


def language_version(go_mod_text: str) -> tuple[int, ...]:
    """The oldest Go that may compile a go.mod."""
    found = re.search(r"^go ([\d.]+)$", go_mod_text, re.MULTILINE)
    if not found:
        raise LookupError("go.mod says no Go version")
    return tuple(int(part) for part in found[1].split("."))


def kubernetes_version() -> str:
    """The pinned Kubernetes, "v1.36.3"."""
    return required(go_mod("kubernetes"), KUBERNETES)


def build_flags(binary: Binary, kubernetes: str) -> list[str]:
    """Flags of ``go build``; the same flags and sources always give the same bytes."""
    major, minor, _ = kubernetes.lstrip("v").split(".", 2)
    stamps = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor}
    linker = ["-s", "-w"]
    for package in binary.variables:
        linker += [f"-X {package}.{variable}={value}" for variable, value in stamps.items()]
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", " ".join(linker)]
    return [*flags, "-tags", ",".join(binary.tags)] if binary.tags else flags


def binary_key(binary: Binary, go_version: str, architecture: str) -> str:
    """Identity of a built program; the compiler counts as an input."""
    folder = MODULES / binary.module
    inputs: dict[str, str | bytes] = {
        "go.mod": (folder / "go.mod").read_bytes(),
        "go.sum": (folder / "go.sum").read_bytes(),
        "package": binary.package,
        "flags": "\0".join(build_flags(binary, kubernetes_version())),
        "go": go_version,
        "architecture": architecture,
    }
    if binary.sources:
        inputs |= {path.name: path.read_bytes() for path in binary.sources.glob("*.go")}
    return key(inputs)
