"""The chart's release on the cluster, as `helm` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.command import run
from e2e.cluster.record import Record
from e2e.images.recipes import REPOSITORY
from e2e.kind.images import Images

CHART = REPOSITORY / "charts" / "moe-operator"
NAME = "moe-operator"
NAMESPACE = "moe-system"
STORE_NAMESPACE = "moe-node-store"
WAIT = "180s"


def values(images: Images) -> dict[str, Any]:
    """The chart's values here: images as they were loaded, stores prepared on every GPU node."""
    return {
        "image": _image(images.operator),
        "envoyImage": _image(images.envoy),
        "nodeStore": {"enabled": True, "namespace": STORE_NAMESPACE},
        "policy": {"cacheClasses": {"nvme": {"root": "/var/lib/moe-operator/store", "reserveBytes": 0}}},
    }


@dataclass(frozen=True, slots=True)
class Release:
    """`helm` for this cluster's one release."""

    record: Record

    def install(self, wanted: Mapping[str, Any], *options: str) -> None:
        """Install or upgrade, and wait until its pods are ready. Raises CommandFailed."""
        self._namespaces()
        self._clear()
        self._helm(
            "upgrade", "--install", NAME, CHART, "--namespace", NAMESPACE, "--values", "-",
            "--take-ownership", "--wait", "--timeout", WAIT, *options, stdin=yaml.safe_dump(dict(wanted)),
        )  # fmt: skip

    def uninstall(self) -> None:
        """Remove the release and wait until its pods are gone. Raises CommandFailed."""
        self._helm("uninstall", NAME, "--namespace", NAMESPACE, "--wait", "--timeout", WAIT)

    def _clear(self) -> None:
        """Remove what a run that was cut off has left: helm touches no release that it finds pending."""
        listed = self._helm("list", "--namespace", NAMESPACE, "--pending", "--short")
        if NAME in listed.split():
            self.uninstall()

    def _namespaces(self) -> None:
        """The operator's own namespace allows restricted pods only; a store needs a host path and a chown."""
        documents = [_namespace(NAMESPACE, "restricted"), _namespace(STORE_NAMESPACE, "privileged")]
        self.record.client.apply(*documents)

    def _helm(self, *arguments: str | Path, stdin: str | None = None) -> str:
        environment = {"KUBECONFIG": self.record.kubeconfig}
        return run(self.record.helm, *arguments, stdin=stdin, env=environment)


def _image(reference: str) -> dict[str, str]:
    repository, _, tag = reference.rpartition(":")
    return {"repository": repository, "tag": tag}


def _namespace(name: str, level: str) -> dict[str, Any]:
    labels = {"pod-security.kubernetes.io/enforce": level}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
