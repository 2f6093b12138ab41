"""Every condition and every reason the operator may report.

A reason is a compile-time constant with a one-line meaning and a next step; conditions, events, the docs
table and ``kubectl moe explain`` all read this one registry. Messages add the numbers and names.
"""

from __future__ import annotations

from enum import StrEnum


class ConditionType(StrEnum):
    """One aspect of a deployment; ``meaning`` says what True means."""

    meaning: str
    only_when_true: bool  # kstatus: present only while it holds

    def __new__(cls, value: str, meaning: str, only_when_true: bool = False) -> ConditionType:
        """One type with what it means."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        member.only_when_true = only_when_true
        return member

    READY = "Ready", "Clients are served by the wanted number of groups; stays True in a healthy rollout."
    AVAILABLE = "Available", "At least one group serves."
    PROGRESSING = "Progressing", "The operator is moving the deployment towards its spec."
    DEGRADED = "Degraded", "Something that was asked for is not met although clients may be served."
    PLAN_ACCEPTED = "PlanAccepted", "The model fits the GPUs in the layout of status.plan."
    PLACED = "Placed", "Every replica has its nodes."
    WEIGHTS_STAGED = "WeightsStaged", "The files are verified on every node that needs them."
    GATEWAY_READY = "GatewayReady", "Every gateway pod runs the newest configuration."
    ROLLOUT_PAUSED = "RolloutPaused", "A change of revision waits for a human."
    CAPACITY_FOR_ROLLOUT = "CapacityForRollout", "A change of revision has the GPUs it needs."
    RECONCILING = "Reconciling", "The operator has not finished with this generation of the spec.", True
    STALLED = "Stalled", "Nothing will change until somebody acts on the message.", True


class Reason(StrEnum):
    """Why a condition has its status."""

    meaning: str
    next_step: str

    def __new__(cls, value: str, meaning: str, next_step: str) -> Reason:
        """One reason with what it means and what to do about it."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        member.next_step = next_step
        return member

    # Nothing is known yet, or nothing is to be done.
    PENDING = (
        "Pending",
        "The operator has not looked at this yet.",
        "Wait a few seconds.",
    )
    NOT_APPLICABLE = "NotApplicable", "The spec does not ask for this.", "None."

    # Accepting the object.
    INVALID_SPEC = (
        "InvalidSpec",
        "The spec contradicts the schema or itself.",
        "Correct the fields that the message names; what served keeps serving.",
    )
    NOT_YET_SUPPORTED = (
        "NotYetSupported",
        "The spec sets a field whose behaviour this version of the operator does not have.",
        "Remove the field that the message names, or upgrade the operator.",
    )
    DENIED_BY_POLICY = (
        "DeniedByPolicy",
        "The spec asks for something that the operator's configuration does not allow.",
        "Change the field that the message names, or ask the admin to allow it.",
    )
    EDIT_REFUSED = (
        "EditRefused",
        "The newest spec cannot work, so the one before it keeps serving.",
        "Correct or revert the spec; nothing that serves was touched.",
    )
    NAMESPACE_TERMINATING = (
        "NamespaceTerminating",
        "The namespace is being deleted, so nothing new can be created in it.",
        "Recreate the object in another namespace.",
    )
    API_ERROR = (
        "ApiError",
        "The API server refused a write; the message has its words.",
        "Correct what it names (quota, admission, permissions); the operator tries again.",
    )

    # Facts of the model.
    RESOLVING_MODEL = (
        "ResolvingModel",
        "The facts of the model are being read from its source.",
        "Wait; see the log of the resolve Job when it takes long.",
    )
    MODEL_RESOLVED = "ModelResolved", "The facts of the model are known.", "None."
    RESOLVE_FAILED = (
        "ResolveFailed",
        "The source was read, but it is no model that can be served.",
        "See the message; check that the source holds config.json and safetensors files.",
    )
    SOURCE_UNREACHABLE = (
        "SourceUnreachable",
        "The source did not answer.",
        "Check spec.model.source, DNS, proxies and network policies; the operator tries again.",
    )
    SOURCE_NOT_FOUND = (
        "SourceNotFound",
        "The source does not hold what it should.",
        "Check the path, repository and revision of spec.model.source.",
    )
    SOURCE_AUTH = (
        "SourceAuth",
        "The source wants other credentials.",
        "Check the Secret of spec.model.credentialsRef and its rights at the source.",
    )
    SOURCE_SCHEME_NOT_SUPPORTED = (
        "SourceSchemeNotSupported",
        "This version of the stager cannot read that kind of source.",
        "Use https://, hf://, s3://, gs://, az://, oci://, pvc:// or node://, or upgrade the operator.",
    )

    # The plan.
    PLAN_FITS = "PlanFits", "The model fits with room to spare.", "None."
    PLAN_REFUSED = (
        "PlanRefused",
        "The model cannot run as asked; the message has the numbers and the fix.",
        "Apply the fix that the message names.",
    )

    # Placement.
    PLACED = "Placed", "Every replica has its nodes.", "None."
    INSUFFICIENT_GPUS = (
        "InsufficientGPUs",
        "No NVLink domain has enough free GPUs; the message says how many are missing in each.",
        "Free or add GPUs; the operator places the replica as soon as it fits.",
    )
    UNKNOWN_PRODUCT = (
        "UnknownProduct",
        "No node has that GPU product and the operator's configuration does not know it.",
        "Correct spec.accelerators.product; the message lists the products that exist.",
    )
    NO_USABLE_NODES = (
        "NoUsableNodes",
        "Nodes of that product exist, but none may be used now; the message says why for each.",
        "Uncordon or repair nodes, or add tolerations.",
    )

    # Weights.
    STAGING = (
        "Staging",
        "Nodes are pulling and verifying the files.",
        "Wait; see status.staging.",
    )
    STAGED = "Staged", "The files are verified on every node.", "None."
    WAITING_FOR_SOURCE = (
        "WaitingForSource",
        "Other nodes pull from the same source and no more may do so at the same time.",
        "Wait; raise spec.weights.maxConcurrentNodes if the source can take more.",
    )
    CHECKSUM_MISMATCH = (
        "ChecksumMismatch",
        "A file's bytes are not what the manifest says, also after a second download.",
        "Check the source for damage or tampering; annotate retry when it is repaired.",
    )
    INSUFFICIENT_DISK = (
        "InsufficientDisk",
        "A node's store has too little room for the files.",
        "Free or add disk on the node that the message names: staging goes on by itself.",
    )
    STORE_UNUSABLE = (
        "StoreUnusable",
        "A node's store cannot be written or has an unknown layout.",
        "Check mount, owner and health of the cache class's root on that node: staging goes on by itself.",
    )
    MANIFEST_INVALID = (
        "ManifestInvalid",
        "The list of files and checksums cannot be used.",
        "Correct the ConfigMap of spec.model.manifestRef, or the source's list.",
    )
    SOURCE_CHANGED = (
        "SourceChanged",
        "The source changed while it was being read.",
        "Pin spec.model.source to an immutable revision.",
    )
    CORRUPTION_FOUND = (
        "CorruptionFound",
        "A scrub found files on a node's disk that are not what was verified; they are fetched again.",
        "Look at the disk of the node that the message names (smartctl, dmesg); what serves goes on.",
    )
    STAGING_FAILED = (
        "StagingFailed",
        "The stager stopped for a reason of its own.",
        "See the message and the log of the staging Job's pod.",
    )

    # Serving groups.
    GROUP_STARTING = "GroupStarting", "Engines are starting.", "Wait; status.groups has the timeline."
    GROUP_RESTARTING = (
        "GroupRestarting",
        "A rank was lost, so its whole group is being recreated.",
        "Wait; see the message for what ended it.",
    )
    RANK_LOST = (
        "RankLost",
        "A rank of the group is gone: its pod was deleted, evicted, or vanished with its node.",
        "Wait; the group is recreated. See events of the pod for who removed it.",
    )
    RESTARTS_EXHAUSTED = (
        "RestartsExhausted",
        "A group was recreated as often as spec.restart allows and still ends.",
        "See the engine's first error in the message; correct the spec, or annotate retry.",
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        "The kubelet cannot pull the image.",
        "Check spec.engine.image and spec.engine.imagePullSecrets.",
    )
    CONTAINER_CONFIG_ERROR = (
        "ContainerConfigError",
        "A Secret or ConfigMap that a container needs is missing, or the container cannot be created.",
        "Create the object that the message names in the deployment's namespace.",
    )
    ENGINE_FAILED = (
        "EngineFailed",
        "The engine ended; the message has its first error.",
        "Correct what the engine complains about.",
    )
    POD_REJECTED = (
        "PodRejected",
        "The API server or a node refused a pod.",
        "See the message: quota, pod security, admission policy or a node short of resources.",
    )
    POD_UNSCHEDULABLE = (
        "PodUnschedulable",
        "The scheduler cannot put a pod onto the node that was chosen for it.",
        "See the message; the node lost room since the placement was made.",
    )

    # Gateway.
    GATEWAY_STARTING = "GatewayStarting", "Gateway pods are starting.", "Wait."
    GATEWAY_READY = "GatewayReady", "Every gateway pod runs the newest configuration.", "None."
    GATEWAY_API_ABSENT = (
        "GatewayApiAbsent",
        "spec.gateway.external asks for an HTTPRoute or an InferencePool, which the cluster does not know.",
        "Install the CRDs of Gateway API v1 (InferencePool: of its inference extension, v1), or remove "
        "spec.gateway.external.",
    )
    ROUTE_NOT_ACCEPTED = (
        "RouteNotAccepted",
        "A Gateway has not taken the HTTPRoute or InferencePool; the message has its words.",
        "Check the Gateway's name, listener, allowed routes and hostnames; for an InferencePool, that an "
        "HTTPRoute of yours leads to it and that its endpoint picker exists.",
    )
    NAME_TAKEN = (
        "NameTaken",
        "The object that spec.gateway.external names exists already and belongs to somebody else.",
        "Choose another name, or delete that object.",
    )
    GATEWAY_CONFIG_REJECTED = (
        "GatewayConfigRejected",
        "Envoy refused a configuration and keeps the one before; the message has its words.",
        "Correct the gateway field that the message names; report a bug when there is none.",
    )

    # Change of revision.
    REVISION_STARTING = "RevisionStarting", "The new revision is starting beside the old one.", "Wait."
    VERIFYING = "Verifying", "The new revision is asked for a completion before it gets traffic.", "Wait."
    SWITCHING = "Switching", "Traffic is moving to the new revision.", "Wait."
    DRAINING_OLD = "DrainingOld", "Requests on the old revision are running to their end.", "Wait."
    REVISION_READY = "RevisionReady", "The wanted revision serves.", "None."
    REVISION_FAILED = (
        "RevisionFailed",
        "The new revision did not come up; the old one serves.",
        "See the message; correct or revert the spec, or annotate retry.",
    )
    VERIFICATION_FAILED = (
        "VerificationFailed",
        "The new revision came up but did not answer as it should; the old one serves.",
        "See what it answered in the message; correct or revert the spec.",
    )
    SUPERSEDED = (
        "Superseded",
        "Another spec came before the new revision had taken over.",
        "None.",
    )
    CAPACITY_AVAILABLE = "CapacityAvailable", "A new revision has the GPUs it needs.", "None."
    INSUFFICIENT_CAPACITY_FOR_ROLLOUT = (
        "InsufficientCapacityForRollout",
        "The new revision does not fit beside the old one; the message says how many GPUs are missing.",
        "Free or add GPUs, or allow a strategy that needs fewer.",
    )

    # The whole.
    SERVING = "Serving", "Clients are served.", "None."
    NOT_SERVING = (
        "NotServing",
        "No group serves.",
        "See the other conditions, beginning with the first that is not True.",
    )
    SCALED_TO_ZERO = "ScaledToZero", "spec.replicas is 0, so nothing serves.", "Raise spec.replicas."
