"""The images that kubeadm expects on every node, made of the programs built here.

Their names come from kubeadm itself (``kubeadm config images list``), so they are right for the pinned
version and are spelled nowhere in this repository.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

COMPONENTS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "coredns",
    "pause",
    "etcd",
)


def by_component(listed: Iterable[str]) -> dict[str, str]:
    """Component → image reference, from the lines kubeadm prints.

    Raises LookupError when kubeadm asks for an image that we do not build, or does not name one that we do:
    the pinned Kubernetes then needs another set.
    """
    images = {reference.rpartition("/")[2].partition(":")[0]: reference for reference in listed}
    if set(images) != set(COMPONENTS):
        raise LookupError(f"kubeadm asks for {sorted(images)}, built are {sorted(COMPONENTS)}")
    return images


def entrypoint(component: str) -> str:
    """Where a component's program lies in its image; kubeadm's manifests call it by name on PATH."""
    return "/pause" if component == "pause" else f"/usr/local/bin/{component}"


def single_program(programs: Mapping[str, Path]) -> dict[str, Path]:
    """The components whose image is nothing but one static program."""
    return {name: path for name, path in programs.items() if name in COMPONENTS and name != "kube-proxy"}
