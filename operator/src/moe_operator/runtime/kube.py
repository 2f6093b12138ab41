"""The operator's whole view of a Kubernetes API, small enough to have an in-memory twin.

Objects are plain dicts as they travel on the wire. Every implementation raises :class:`ApiError` with
the server's status and reason; callers decide by ``reason``. ``aio_kube`` talks to a real server,
``sandbox.api`` keeps everything in memory; the same contract tests run on both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Obj = dict[str, Any]
JsonPatch = list[Obj]


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource of the API: what a URL needs to be built."""

    group: str  # "" = core
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``group/version``, or the bare version for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version


MOE_DEPLOYMENT = Kind("moe-operator.io", "v1alpha1", "MoEDeployment", "moedeployments")
POD = Kind("", "v1", "Pod", "pods")
NODE = Kind("", "v1", "Node", "nodes", namespaced=False)
NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
SERVICE = Kind("", "v1", "Service", "services")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
SECRET = Kind("", "v1", "Secret", "secrets")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
PERSISTENT_VOLUME_CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENT = Kind("", "v1", "Event", "events")
JOB = Kind("batch", "v1", "Job", "jobs")
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
REPLICA_SET = Kind("apps", "v1", "ReplicaSet", "replicasets")
CONTROLLER_REVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
HTTP_ROUTE = Kind("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes")
INFERENCE_POOL = Kind("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools")
CRD = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)

KINDS: tuple[Kind, ...] = (
    MOE_DEPLOYMENT, POD, NODE, NAMESPACE, SERVICE, CONFIG_MAP, SECRET, SERVICE_ACCOUNT,
    PERSISTENT_VOLUME_CLAIM, EVENT, JOB, DEPLOYMENT, REPLICA_SET, CONTROLLER_REVISION,
    POD_DISRUPTION_BUDGET, NETWORK_POLICY, ROLE, ROLE_BINDING, LEASE, HTTP_ROUTE, INFERENCE_POOL, CRD,
)  # fmt: skip
_BY_TYPE = {(k.api_version, k.kind): k for k in KINDS}


def kind_of(obj: Obj) -> Kind:
    """The :class:`Kind` of an object; KeyError for a type the operator has no business with."""
    return _BY_TYPE[obj["apiVersion"], obj["kind"]]


class ApiError(Exception):
    """An answer of the API server other than success.

    ``status`` is the HTTP code (0 = the server could not be reached), ``reason`` the machine-readable
    word of the Status object (NotFound, Conflict, AlreadyExists, Invalid, Forbidden, Expired, …).
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        """Whether the object (or its namespace) is absent."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Whether a precondition (resourceVersion, uid, field owner) did not hold."""
        return self.status == 409


@dataclass(frozen=True, slots=True)
class Listing:
    """An authoritative LIST: only here does absence mean absence."""

    items: tuple[Obj, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change; BOOKMARK carries only a newer resourceVersion."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Obj


class Kube(Protocol):
    """What the operator asks of an API server."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj:
        """Read one object; ApiError 404 when absent."""
        ...

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        """Read all objects of a kind; ``namespace=None`` = all namespaces."""
        ...

    async def apply(self, obj: Obj, *, manager: str, force: bool = True) -> Obj:
        """Server-side apply; a no-op apply does not change resourceVersion."""
        ...

    async def apply_status(self, obj: Obj, *, manager: str, force: bool = True) -> Obj:
        """Server-side apply of the status; ``metadata.resourceVersion``, when given, is a precondition."""
        ...

    async def create(self, obj: Obj) -> Obj:
        """POST; ApiError 409 AlreadyExists."""
        ...

    async def replace(self, obj: Obj) -> Obj:
        """PUT with the object's resourceVersion as precondition."""
        ...

    async def patch_json(self, kind: Kind, namespace: str | None, name: str, operations: JsonPatch) -> Obj:
        """JSON patch (RFC 6902); a failed ``test`` is ApiError 422."""
        ...

    async def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
    ) -> None:
        """DELETE with preconditions; 404 is an error like any other, 409 when a precondition fails."""
        ...

    def watch(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", resource_version: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """Changes after ``resource_version``; ApiError 410 Expired when that is too old."""
        ...
