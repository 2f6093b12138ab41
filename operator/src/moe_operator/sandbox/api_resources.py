"""What the server serves: the built-in kinds the operator meets, and custom ones from their CRDs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moe_operator.runtime import kube
from moe_operator.runtime.kube import Kind, Obj
from moe_operator.sandbox.merge_shapes import Shape, builtin_shape, custom_shape

CRD_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where the scale subresource reads and writes."""

    spec_replicas: tuple[str, ...] = ("spec", "replicas")
    status_replicas: tuple[str, ...] = ("status", "replicas")
    selector: tuple[str, ...] = ("spec", "selector")  # a LabelSelector object, or a string in custom kinds


@dataclass(frozen=True, slots=True)
class Resource:
    """One served resource."""

    kind: Kind
    shape: Shape
    has_status: bool = False
    counts_generation: bool = False
    created_with_status: bool = False  # kubelets register nodes with their capacity
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    scale: ScalePaths | None = None
    schema: Mapping[str, Any] | None = None  # custom resources only
    columns: tuple[Obj, ...] = ()  # additionalPrinterColumns

    @property
    def custom(self) -> bool:
        """Whether a CRD defines it."""
        return self.schema is not None

    @property
    def singular(self) -> str:
        """Lower-case name that kubectl accepts."""
        return self.kind.kind.lower()


def _builtin(kind: Kind, *short_names: str, **traits: Any) -> Resource:
    categories = ("all",) if kind in _IN_CATEGORY_ALL else ()
    shape = builtin_shape(kind.group, kind.plural)
    return Resource(kind, shape, short_names=short_names, categories=categories, **traits)


_IN_CATEGORY_ALL = (kube.POD, kube.SERVICE, kube.DEPLOYMENT, kube.REPLICA_SET, kube.JOB)

BUILTIN: tuple[Resource, ...] = (
    _builtin(kube.POD, "po", has_status=True, counts_generation=True),
    _builtin(kube.NODE, "no", has_status=True, created_with_status=True),
    _builtin(kube.NAMESPACE, "ns", has_status=True),
    _builtin(kube.SERVICE, "svc", has_status=True),
    _builtin(kube.CONFIG_MAP, "cm"),
    _builtin(kube.SECRET),
    _builtin(kube.SERVICE_ACCOUNT, "sa"),
    _builtin(kube.PERSISTENT_VOLUME_CLAIM, "pvc", has_status=True),
    _builtin(kube.EVENT, "ev"),
    _builtin(kube.JOB, has_status=True, counts_generation=True),
    _builtin(kube.DEPLOYMENT, "deploy", has_status=True, counts_generation=True, scale=ScalePaths()),
    _builtin(kube.REPLICA_SET, "rs", has_status=True, counts_generation=True, scale=ScalePaths()),
    _builtin(kube.CONTROLLER_REVISION),
    _builtin(kube.POD_DISRUPTION_BUDGET, "pdb", has_status=True, counts_generation=True),
    _builtin(kube.NETWORK_POLICY, "netpol", counts_generation=True),
    _builtin(kube.ROLE),
    _builtin(kube.ROLE_BINDING),
    _builtin(kube.LEASE),
    _builtin(kube.CRD, "crd", "crds", has_status=True, counts_generation=True),
)


def resource_of_crd(crd: Obj) -> Resource:
    """The resource that a CustomResourceDefinition defines, at its storage version."""
    spec = crd["spec"]
    version = next(v for v in spec["versions"] if v.get("storage"))
    names, subresources = spec["names"], version.get("subresources", {})
    schema = version.get("schema", {}).get("openAPIV3Schema", {})
    scale = subresources.get("scale")
    return Resource(
        kind=Kind(
            spec["group"], version["name"], names["kind"], names["plural"], spec["scope"] == "Namespaced"
        ),
        shape=custom_shape(schema),
        has_status="status" in subresources,
        counts_generation=True,
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        scale=_scale_paths(scale) if scale else None,
        schema=schema,
        columns=tuple(version.get("additionalPrinterColumns", ())),
    )


def _scale_paths(scale: Obj) -> ScalePaths:
    def path(name: str) -> tuple[str, ...]:
        return tuple(part for part in scale.get(name, "").split(".") if part)

    return ScalePaths(path("specReplicasPath"), path("statusReplicasPath"), path("labelSelectorPath"))


def established(crd: Obj, now: str) -> Obj:
    """Status of a CRD whose resource is served."""
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [version["name"] for version in crd["spec"]["versions"] if version.get("storage")]
    return {"acceptedNames": crd["spec"]["names"], "conditions": conditions, "storedVersions": stored}
