"""Where a model's files are, as the stager sees them: a URL, and the volumes that make it readable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from moe_operator.api.names import PATH_CREDENTIALS, PATH_SOURCE, PATH_STORE
from moe_operator.api.policy import CacheClass
from moe_operator.api.spec import ModelSpec

Obj = dict[str, Any]
HUB = "huggingface.co"


@dataclass(frozen=True, slots=True)
class StagerSource:
    """Arguments, volumes and mounts that let ``moestage`` read a source."""

    args: tuple[str, ...]
    volumes: tuple[Obj, ...]
    mounts: tuple[Obj, ...]


def scheme(source: str) -> str:
    """``hf`` of ``hf://org/repo``, ``none`` of ``none``."""
    return source.split("://", 1)[0]


def source_host(source: str, namespace: str) -> str:
    """Whom every node that pulls ``source`` loads; "" for a node's own disk, which nobody shares."""
    kind, _, rest = source.partition("://")
    match kind:
        case "https" | "oci":
            return urlsplit(source).netloc.rpartition("@")[2].lower()
        case "hf":
            return HUB
        case "pvc":
            return f"pvc://{namespace}/{rest.split('/', 1)[0]}"
        case "node" | "none":
            return ""
        case _:
            return f"{kind}://{rest.split('/', 1)[0]}"


def stager_source(model: ModelSpec, cache: CacheClass, *, store_mounted: bool) -> StagerSource:
    """How ``moestage`` reads ``model``; ``store_mounted`` = the pod has the node's store already."""
    volumes, mounts, args = [], [], ["--source", _url(model.source)]
    if scheme(model.source) == "pvc":
        claim = model.source.removeprefix("pvc://").split("/", 1)[0]
        volumes.append({"name": "source", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        mounts.append({"name": "source", "mountPath": PATH_SOURCE, "readOnly": True})
    if scheme(model.source) == "node" and not store_mounted:
        volumes.append(store_volume(cache))
        mounts.append({"name": "store", "mountPath": PATH_STORE, "readOnly": True})
    if model.credentials_ref:
        args += ["--credentials-dir", PATH_CREDENTIALS]
        volumes.append({"name": "credentials", "secret": {"secretName": model.credentials_ref.name}})
        mounts.append({"name": "credentials", "mountPath": PATH_CREDENTIALS, "readOnly": True})
    return StagerSource(tuple(args), tuple(volumes), tuple(mounts))


def store_volume(cache: CacheClass) -> Obj:
    """The node's store: the admin's directory, never a path of the tenant's."""
    return {"name": "store", "hostPath": {"path": cache.root, "type": "Directory"}}


def _url(source: str) -> str:
    kind, _, rest = source.partition("://")
    if kind == "pvc":
        _, _, path = rest.partition("/")
        return f"file://{PATH_SOURCE}/{path}".rstrip("/")
    if kind == "node":
        return f"file://{PATH_STORE}/{rest}".rstrip("/")
    return source
