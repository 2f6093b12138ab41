"""Which node a pod is bound to: filters, then the emptiest node, then the name.

The rule is kube-scheduler's for what the operator and its children use: cordons, taints, nodeSelector,
required nodeAffinity (labels and ``metadata.name``), claims and resource requests. Preferences, pod
affinity and preemption do not exist here.

Invariant: the requests of all unfinished pods bound to a node never exceed what it allocates; a pod
that fits nowhere keeps ``PodScheduled=False`` with kube-scheduler's count of reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal

from moe_operator.hardware.nodes import Taint, tolerated
from moe_operator.runtime.kube import NODE, PERSISTENT_VOLUME_CLAIM, POD, ApiError, Kube, Obj
from moe_operator.sandbox.objects import (
    Key,
    condition,
    deleting,
    finished,
    is_true,
    key_of,
    matches,
    moved_on,
    status_patch,
    with_transitions,
)
from moe_operator.sandbox.quantity import Amounts, amounts, pod_requests, total

MANAGER = "kube-scheduler"
DEFAULT_SCHEDULER = "default-scheduler"

Bindings = Callable[[str, str, str], object]
"""The pods/binding subresource: (namespace, pod, node), ApiError 409 when the pod is bound already."""


@dataclass(frozen=True, slots=True)
class Bind:
    """The pod goes to ``node``."""

    pod: Obj
    node: str


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """The pod waits; ``message`` counts the reasons over all nodes."""

    pod: Obj
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node and what is left of it."""

    node: Obj
    free: Amounts
    pods: int

    @property
    def name(self) -> str:
        """The node's name."""
        return str(self.node["metadata"]["name"])

    def less(self, request: Amounts) -> Candidate:
        """The node after one more pod."""
        left = {k: v - request.get(k, Decimal(0)) for k, v in self.free.items()}
        return Candidate(self.node, left, self.pods + 1)


def schedule(
    pods: Sequence[Obj], nodes: Sequence[Obj], claims: Collection[Key] = ()
) -> list[Bind | Unschedulable]:
    """Decide for every pod that waits for a node, oldest first.

    ``pods`` are all pods of the cluster; ``claims`` the PersistentVolumeClaims that exist.
    """
    candidates = {c.name: c for c in (_candidate(node, pods) for node in nodes)}
    verdicts: list[Bind | Unschedulable] = []
    for pod in sorted(filter(_waits, pods), key=_queue_order):
        verdict = _place(pod, candidates, claims)
        verdicts.append(verdict)
        if isinstance(verdict, Bind):
            candidates[verdict.node] = candidates[verdict.node].less(pod_requests(pod))
    return verdicts


def _waits(pod: Obj) -> bool:
    spec = pod["spec"]
    ours = spec.get("schedulerName", DEFAULT_SCHEDULER) == DEFAULT_SCHEDULER
    return ours and not spec.get("nodeName") and not deleting(pod) and not finished(pod)


def _queue_order(pod: Obj) -> tuple[int, str, Key]:
    meta = pod["metadata"]
    return -int(pod["spec"].get("priority") or 0), meta.get("creationTimestamp", ""), key_of(pod)


def _candidate(node: Obj, pods: Sequence[Obj]) -> Candidate:
    name = node["metadata"]["name"]
    bound = [p for p in pods if p["spec"].get("nodeName") == name and not finished(p)]
    used = total(map(pod_requests, bound))
    allocatable = amounts((node.get("status") or {}).get("allocatable"))
    return Candidate(node, {k: v - used.get(k, Decimal(0)) for k, v in allocatable.items()}, pods=len(bound))


def _place(pod: Obj, candidates: dict[str, Candidate], claims: Collection[Key]) -> Bind | Unschedulable:
    if gates := pod["spec"].get("schedulingGates"):
        names = ", ".join(gate["name"] for gate in gates)
        return Unschedulable(
            pod, "SchedulingGated", f"Scheduling is blocked due to non-empty scheduling gates: {names}"
        )
    if missing := [name for name in _claim_names(pod) if Key(key_of(pod).namespace, name) not in claims]:
        return Unschedulable(
            pod,
            "Unschedulable",
            f'0/{len(candidates)} nodes are available: persistentvolumeclaim "{missing[0]}" not found.',
        )
    why_not = {c.name: _why_not(pod, c) for c in candidates.values()}
    fitting = [c for c in candidates.values() if not why_not[c.name]]
    if fitting:
        return Bind(pod, min(fitting, key=lambda c: (c.pods, c.name)).name)
    counts = Counter(reason for reasons in why_not.values() for reason in reasons)
    listed = ", ".join(sorted(f"{n} {reason}" for reason, n in counts.items())) or "no nodes"
    return Unschedulable(pod, "Unschedulable", f"0/{len(candidates)} nodes are available: {listed}.")


def _claim_names(pod: Obj) -> list[str]:
    volumes = pod["spec"].get("volumes") or ()
    return [v["persistentVolumeClaim"]["claimName"] for v in volumes if v.get("persistentVolumeClaim")]


Filter = Callable[[Obj, Candidate], tuple[str, ...]]


def _cordoned(pod: Obj, candidate: Candidate) -> tuple[str, ...]:
    spec = candidate.node.get("spec") or {}
    return ("node(s) were unschedulable",) if spec.get("unschedulable") else ()


def _tainted(pod: Obj, candidate: Candidate) -> tuple[str, ...]:
    taints = [
        Taint(t["key"], t.get("value") or "", t["effect"])
        for t in (candidate.node.get("spec") or {}).get("taints") or ()
    ]
    if not is_true(candidate.node, "Ready"):
        # The node lifecycle controller says this with a taint a moment after the condition.
        taints.append(Taint("node.kubernetes.io/not-ready", "", "NoSchedule"))
    for taint in taints:
        if not tolerated(taint, pod["spec"].get("tolerations") or ()):
            return (f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}",)
    return ()


def _other_node(pod: Obj, candidate: Candidate) -> tuple[str, ...]:
    return () if node_matches(pod, candidate.node) else ("node(s) didn't match Pod's node affinity/selector",)


def _insufficient(pod: Obj, candidate: Candidate) -> tuple[str, ...]:
    wanted = pod_requests(pod)
    short = [k for k, v in wanted.items() if v > candidate.free.get(k, Decimal(0)) and v > 0]
    return tuple("Too many pods" if k == "pods" else f"Insufficient {k}" for k in sorted(short))


# kube-scheduler's order: a node is counted under the first filter that turns it down.
FILTERS: tuple[Filter, ...] = (_cordoned, _tainted, _other_node, _insufficient)


def _why_not(pod: Obj, candidate: Candidate) -> tuple[str, ...]:
    return next((reasons for f in FILTERS if (reasons := f(pod, candidate))), ())


def node_matches(pod: Obj, node: Obj) -> bool:
    """Whether nodeSelector and the required nodeAffinity of ``pod`` allow ``node``."""
    labels = node["metadata"].get("labels") or {}
    selector = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(k) != v for k, v in selector.items()):
        return False
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return affinity is None or any(_term_matches(t, node) for t in affinity["nodeSelectorTerms"])


def _term_matches(term: Obj, node: Obj) -> bool:
    expressions, by_field = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not by_field:
        return False  # an empty term selects nothing
    labels, fields = node["metadata"].get("labels") or {}, {"metadata.name": node["metadata"]["name"]}
    return all(matches(labels, e) for e in expressions) and all(matches(fields, e) for e in by_field)


async def step(kube: Kube, bind: Bindings, now: float) -> None:
    """Bind what fits and say of the rest why it waits."""
    pods = (await kube.list(POD)).items
    if not any(map(_waits, pods)):
        return
    nodes = (await kube.list(NODE)).items
    claims = {key_of(c) for c in (await kube.list(PERSISTENT_VOLUME_CLAIM)).items}
    for verdict in schedule(pods, nodes, claims):
        try:
            if isinstance(verdict, Bind):
                bind(*key_of(verdict.pod), verdict.node)
            else:
                await _say_why(kube, verdict, now)
        except ApiError as error:
            if not moved_on(error):
                raise


async def _say_why(kube: Kube, verdict: Unschedulable, now: float) -> None:
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": verdict.reason,
        "message": verdict.message,
    }
    before = condition(verdict.pod, "PodScheduled")
    if before is None or any(before.get(field) != value for field, value in said.items()):
        conditions = with_transitions([said], [before] if before else [], now)
        await kube.apply_status(status_patch(verdict.pod, {"conditions": conditions}), manager=MANAGER)
