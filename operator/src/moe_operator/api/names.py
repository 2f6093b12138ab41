"""Every name that more than one room must agree on: labels, annotations, children, ports, paths.

Child names are a pure function of (deployment, revision hash, replica, rank), so applying twice is
applying once and no expectation has to be remembered. Names longer than a DNS label allows are cut
and end in a hash of the whole, so they stay unique and stable.
"""

from __future__ import annotations

import hashlib

GROUP = "moe-operator.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "MoEDeployment"
PLURAL = "moedeployments"
FIELD_MANAGER = "moe-operator"
STATUS_FIELD_MANAGER = "moe-operator-status"
MARK_FIELD_MANAGER = "moe-operator-marks"  # of labels and annotations on pods that live already
FINALIZER = f"{GROUP}/teardown"

LABEL_NAME = "app.kubernetes.io/name"
LABEL_INSTANCE = "app.kubernetes.io/instance"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_DEPLOYMENT = f"{GROUP}/deployment"
LABEL_REVISION = f"{GROUP}/revision"
LABEL_REPLICA = f"{GROUP}/replica"
LABEL_RANK = f"{GROUP}/rank"
LABEL_ROLE = f"{GROUP}/role"
LABEL_SERVING = f"{GROUP}/serving"  # a leader that a gateway of others may send to
MANAGED_BY = "moe-operator"

COMPONENT_ENGINE = "engine"
COMPONENT_GATEWAY = "gateway"
COMPONENT_RESOLVER = "resolver"
COMPONENT_STAGER = "stager"  # Jobs that bring files to a node
COMPONENT_SEEDER = "seeder"  # pods that hand a node's files on to other nodes
COMPONENT_COLLECTOR = "collector"  # Jobs that free what a node needs no more
COMPONENT_SCRUBBER = "scrubber"  # Jobs that read a node's files again
ROLE_LEADER = "leader"
ROLE_WORKER = "worker"

ANNOTATION_INCARNATION = f"{GROUP}/incarnation"  # which life of its group a pod belongs to
ANNOTATION_APPLIED = f"{GROUP}/applied"  # digest of what the operator applied last
ANNOTATION_RETRY = f"{GROUP}/retry"
ANNOTATION_NODE = f"{GROUP}/node"  # of a stager, seeder, collector or scrubber: whose store it works on
ANNOTATION_SOURCE_HOST = f"{GROUP}/source-host"  # of a stager: whom it pulls from
ANNOTATION_FROM_PEERS = f"{GROUP}/from-peers"  # of a stager that finds every byte on other nodes
ANNOTATION_KEPT = f"{GROUP}/kept-views"  # of a collector: what it was told to keep
ANNOTATION_ROUTE_GENERATION = f"{GROUP}/generation"  # of the intent that an HTTPRoute or pool stands for
ANNOTATION_ROUTE_SINCE = f"{GROUP}/weights-since"  # when an HTTPRoute or pool got its present weights
ANNOTATION_POOL_STANDBY = f"{GROUP}/standby"  # revisions with leaders that an InferencePool does not select
ANNOTATION_OTLP = f"{GROUP}/otlp"  # on gateway pods: where their traces go
ANNOTATION_REFRESH_KEYS = f"{GROUP}/refresh-keys"  # on the deployment; repeated on its gateway pods
ANNOTATION_REFRESHED = f"{GROUP}/refreshed"  # when it was repeated there
COMMANDS = ("promote", "abort", "pause", "rollback-to", "retry")

PORT_ENGINE_HTTP = 8000
PORT_VLLM_MASTER = 29501
PORT_VLLM_DP_RPC = 29550
PORT_SGLANG_DIST = 20000
PORT_STAGE_PROGRESS = 9108
PORT_PEERS = 9109
PORT_GATEWAY_HTTP = 8080
PORT_GATEWAY_AGENT = 9902
PORT_GATEWAY_OWN_POD = 9904  # the agent, on the pod's loopback only
PORT_GATEWAY_ROOM = 9903  # the waiting room, on the pod's loopback only
PORT_ENVOY_ADMIN = 9901

PATH_STORE = "/weights"  # the node's store, mounted read-only into engines
PATH_MANIFEST = "/manifest"  # the manifest ConfigMap
PATH_SOURCE = "/source"  # a pvc:// source
PATH_XDS = "/xds"  # emptyDir shared by Envoy and its agent
PATH_INTENT = "/intent"  # the intent ConfigMap, boot fallback
PATH_PEERS = "/peers"  # the token that nodes of one deployment show each other
PATH_KEYS = "/keys"  # the Secret with API keys, in gateway pods
PATH_TLS = "/tls"  # certificate and key, in gateway pods
PATH_CLIENT_CA = "/client-ca"  # who signs client certificates, in gateway pods
PATH_CREDENTIALS = "/credentials"  # the tenant's Secret, mounted by the kubelet
PATH_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
PATH_TERMINATION_LOG = "/dev/termination-log"

DNS_LABEL_MAX = 63


def digest(text: str, length: int = 8) -> str:
    """Hex digest of ``text``, short enough for names; not for security."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def bounded(*parts: str, limit: int = DNS_LABEL_MAX) -> str:
    """Join ``parts`` with dashes; cut and hash deterministically when longer than ``limit``."""
    whole = "-".join(part for part in parts if part)
    if len(whole) <= limit:
        return whole
    tail = digest(whole)
    return f"{whole[: limit - len(tail) - 1].rstrip('-.')}-{tail}"


def group_name(deployment: str, revision: str, replica: int) -> str:
    """Headless Service (and subdomain) of one serving group.

    Bounded so that the pods of the group still fit into a DNS label with their rank appended.
    """
    return bounded(deployment, revision, str(replica), limit=DNS_LABEL_MAX - 5)


def pod_name(deployment: str, revision: str, replica: int, rank: int) -> str:
    """Engine pod of one rank (one node of a group)."""
    return f"{group_name(deployment, revision, replica)}-{rank}"


def gateway_name(deployment: str) -> str:
    """Deployment, Service, ConfigMap, ServiceAccount and Role of the gateway."""
    return bounded(
        deployment, "gateway", limit=DNS_LABEL_MAX - 18
    )  # room for the ReplicaSet's and pod's suffixes


def resolver_name(deployment: str, source_digest: str) -> str:
    """Job that reads a model's facts from its source."""
    return bounded(deployment, "resolve", source_digest, limit=DNS_LABEL_MAX - 6)


def manifest_name(deployment: str, source_digest: str) -> str:
    """Immutable ConfigMap with the facts of one source."""
    return bounded(deployment, "manifest", source_digest)


def store_key(cache_class: str, node: str, node_uid: str) -> str:
    """Short name of one node's store: a new node of the same name, or another disk, is another store."""
    return digest(f"{cache_class}/{node}/{node_uid}")


def stager_name(deployment: str, view: str, store: str) -> str:
    """Job that brings one view to one store (see :func:`store_key`)."""
    return bounded(deployment, "stage", view[:8], store, limit=DNS_LABEL_MAX - 6)


def seeder_name(deployment: str, store: str) -> str:
    """Pod that hands the files of one store on to other nodes."""
    return bounded(deployment, "seed", store)


def collector_name(deployment: str, store: str, *, last: bool = False) -> str:
    """Job that frees what one store needs no more; ``last`` = for a deployment that is going."""
    return bounded(deployment, "gc-last" if last else "gc", store, limit=DNS_LABEL_MAX - 6)


def scrubber_name(deployment: str, store: str) -> str:
    """Job that reads one store's files again."""
    return bounded(deployment, "scrub", store, limit=DNS_LABEL_MAX - 6)


def peers_name(deployment: str) -> str:
    """ConfigMap with the token that nodes show each other, and NetworkPolicy around their servers."""
    return bounded(deployment, "peers")


def leader_address(deployment: str, revision: str, replica: int, namespace: str) -> str:
    """DNS name under which every rank of a group finds rank 0."""
    subdomain = group_name(deployment, revision, replica)
    return f"{subdomain}-0.{subdomain}.{namespace}.svc"


def common_labels(deployment: str, component: str) -> dict[str, str]:
    """Labels that every child carries."""
    return {
        LABEL_NAME: "moe-operator",
        LABEL_INSTANCE: label_value(deployment),
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_COMPONENT: component,
        LABEL_DEPLOYMENT: label_value(deployment),
    }


def label_value(text: str) -> str:
    """``text`` as a label value: at most 63 characters, cut and hashed when longer."""
    return bounded(text)
