"""From a machine to a cluster that serves MoEDeployments; what is there already is kept.

Every step is named by its inputs, so a second run does nothing but look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from e2e.cluster import lifecycle, topology
from e2e.cluster.progress import Progress
from e2e.cluster.record import Record
from e2e.cluster.settings import ClusterSpec, Folders
from e2e.cluster.source import Source
from e2e.kind import shared_folder, supplies
from e2e.kind.images import Images, build_all, build_stub_of, load_missing
from e2e.kind.release import Release, values

PULLED_BASE = "python:3.13-slim-trixie"
STUB_VERSIONS = ("0.33.0", "0.33.1")


@dataclass(frozen=True, slots=True)
class Site:
    """The cluster, the images in its nodes, and the operator's release."""

    record: Record
    images: Images
    release: Release


def prepare(folders: Folders, progress: Progress, *, bootstrap: bool) -> None:
    """All that takes long, without a cluster: the nodes' image, the programs, the product's images."""
    source = lifecycle.prepare(cluster_spec(folders), None, folders, progress, bootstrap=bootstrap)
    _images(source, folders, progress, bootstrap=bootstrap)


def bring_up(folders: Folders, progress: Progress, *, bootstrap: bool) -> Site:
    """Cluster, images, chart and the checkpoints' claim of namespace ``default``.

    Raises CannotContinue when the machine lacks something, CommandFailed when a program fails.
    """
    site = cluster_with_images(folders, progress, bootstrap=bootstrap)
    with progress.step("helm install moe-operator"):
        site.release.install(values(site.images))
    provide(site.record, ("default",))
    return site


def cluster_spec(folders: Folders) -> ClusterSpec:
    """Four nodes of eight H20 that see the shared folder."""
    return ClusterSpec(topology.load("h20"), (shared_folder.mount(folders),))


def cluster_with_images(folders: Folders, progress: Progress, *, bootstrap: bool) -> Site:
    """The cluster with every image in its nodes, and no operator yet."""
    record = lifecycle.up(cluster_spec(folders), None, folders, progress, bootstrap=bootstrap)
    images = _images(record.source, folders, progress, bootstrap=bootstrap)
    stubs = [build_stub_of(images, version) for version in STUB_VERSIONS]
    load_missing((images.operator, images.envoy, *stubs), folders, progress)
    return Site(record, images, Release(record))


def _images(source: Source, folders: Folders, progress: Progress, *, bootstrap: bool) -> Images:
    """Built on a base from the same place as the nodes' image."""
    base = PULLED_BASE
    if source is Source.BUILD:
        base = lifecycle.python_base(folders, progress, bootstrap=bootstrap)
    return build_all(base, folders, progress)


def provide(record: Record, namespaces: Sequence[str]) -> None:
    """Let deployments of these namespaces read the checkpoints."""
    record.client.apply(*(obj for namespace in namespaces for obj in supplies.claim(namespace)))
