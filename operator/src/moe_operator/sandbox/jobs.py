"""Job → pods: run until enough of them succeeded, or say once and for all why not.

A failed pod is judged by ``podFailurePolicy`` first (its exit codes and conditions), then counted
against ``backoffLimit``; a new pod waits 10 s · 2ⁿ⁻¹ (at most 6 min) after the n-th failure.
Invariant: a Job that is Complete or Failed never makes another pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moe_operator.api.moments import elapsed, epoch, moment
from moe_operator.runtime.kube import JOB, POD, ApiError, Kube, Obj
from moe_operator.sandbox.objects import (
    controlled_by,
    deleting,
    finished,
    is_true,
    key_of,
    moved_on,
    phase_of,
    status_patch,
    with_transitions,
)
from moe_operator.sandbox.replica_sets import build_pod, fresh_name

MANAGER = "job-controller"
DEFAULT_BACKOFF_LIMIT = 6
BACKOFF_SECONDS = 10.0
BACKOFF_MAX_SECONDS = 360.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a Job ended."""

    type: str  # Complete | Failed
    reason: str
    message: str


def failure_action(policy: Obj | None, pod: Obj) -> tuple[str, str]:
    """What the first matching rule of ``podFailurePolicy`` says of a failed pod, and why.

    ``Count`` (the default), ``Ignore``, ``FailJob``.
    """
    for index, rule in enumerate((policy or {}).get("rules") or ()):
        if why := _rule_matches(rule, pod):
            return rule["action"], f"{why} matching {rule['action']} rule at index {index}"
    return "Count", ""


def _rule_matches(rule: Obj, pod: Obj) -> str:
    """The matching fact in words; "" when the rule does not match."""
    wanted = rule.get("onExitCodes")
    if wanted is None:
        patterns = rule.get("onPodConditions") or ()
        hit = next((p for p in patterns if _has_condition(pod, p)), None)
        return f"Pod {key_of(pod)} has condition {hit['type']}" if hit else ""
    for name, code in _exit_codes(pod):
        if wanted.get("containerName") in {None, name} and _code_matches(wanted, code):
            return f"Container {name} for pod {key_of(pod)} failed with exit code {code}"
    return ""


def _has_condition(pod: Obj, pattern: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        c["type"] == pattern["type"] and c["status"] == pattern.get("status", "True") for c in conditions
    )


def _code_matches(wanted: Obj, code: int) -> bool:
    listed = code in wanted["values"]
    return bool(listed if wanted["operator"] == "In" else code != 0 and not listed)


def _exit_codes(pod: Obj) -> Iterable[tuple[str, int]]:
    status = pod.get("status") or {}
    for entry in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        ended = (entry.get("state") or {}).get("terminated")
        if ended and ended["exitCode"] != 0:
            yield entry["name"], ended["exitCode"]


def verdict_of(job: Obj, pods: Sequence[Obj], now: float) -> Verdict | None:
    """Whether the Job is over."""
    spec = job["spec"]
    failed = [p for p in pods if phase_of(p) == "Failed"]
    actions = [failure_action(spec.get("podFailurePolicy"), p) for p in failed]
    if fatal := [why for action, why in actions if action == "FailJob"]:
        return Verdict("Failed", "PodFailurePolicy", fatal[0])
    if _succeeded(pods) >= int(spec.get("completions") or 1):
        return Verdict("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
    limit = spec.get("backoffLimit")
    counted = sum(action == "Count" for action, _ in actions) + sum(map(_restarts, pods))
    if counted > (DEFAULT_BACKOFF_LIMIT if limit is None else int(limit)):
        return Verdict("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    started, seconds = (job.get("status") or {}).get("startTime"), spec.get("activeDeadlineSeconds")
    if started and seconds is not None and elapsed(started, now) >= seconds:
        return Verdict("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    return None


def _restarts(pod: Obj) -> int:
    """Restarts inside a pod count as failures when its containers may restart."""
    if pod["spec"].get("restartPolicy") != "OnFailure" or finished(pod):
        return 0
    return sum(
        int(c.get("restartCount") or 0) for c in (pod.get("status") or {}).get("containerStatuses") or ()
    )


def _succeeded(pods: Sequence[Obj]) -> int:
    return sum(phase_of(p) == "Succeeded" for p in pods)


def may_create(pods: Sequence[Obj], now: float) -> bool:
    """Whether the back-off after the last failure is over."""
    failed = [p for p in pods if phase_of(p) == "Failed"]
    if not failed:
        return True
    delay: float = min(BACKOFF_SECONDS * 2 ** (len(failed) - 1), BACKOFF_MAX_SECONDS)
    return now - max(map(_finished_at, failed)) >= delay


def _finished_at(pod: Obj) -> float:
    """When the last container ended; a pod that never ran ended when it was made."""
    status = pod.get("status") or {}
    ends = [
        entry["state"]["terminated"]["finishedAt"]
        for entry in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        if (entry.get("state") or {}).get("terminated")
    ]
    return max(map(epoch, ends or [pod["metadata"]["creationTimestamp"]]))


def status_of(job: Obj, pods: Sequence[Obj], verdict: Verdict | None, now: float) -> Obj:
    """What the Job says of itself."""
    before = job.get("status") or {}
    active = [p for p in pods if not finished(p) and not deleting(p)]
    status: Obj = {
        "startTime": before.get("startTime") or moment(now),
        "active": 0 if verdict else len(active),
        "ready": 0 if verdict else sum(is_true(p, "Ready") for p in active),
        "succeeded": _succeeded(pods),
        "failed": sum(phase_of(p) == "Failed" for p in pods),
    }
    if verdict is None:
        return status
    criterion = "SuccessCriteriaMet" if verdict.type == "Complete" else "FailureTarget"
    conditions = [
        {"type": kind, "status": "True", "reason": verdict.reason, "message": verdict.message}
        for kind in (criterion, verdict.type)
    ]
    status["conditions"] = with_transitions(conditions, before.get("conditions") or (), now)
    if verdict.type == "Complete":
        status["completionTime"] = before.get("completionTime") or moment(now)
    return status


def over(job: Obj) -> bool:
    """Whether a verdict stands."""
    return is_true(job, "Complete") or is_true(job, "Failed")


async def step(kube: Kube, now: float) -> None:
    """One look at every Job that is not over."""
    jobs = (await kube.list(JOB)).items
    open_jobs = [j for j in jobs if not over(j) and not deleting(j)]
    if not open_jobs:
        return
    pods = (await kube.list(POD)).items
    for job in open_jobs:
        owned = [p for p in pods if controlled_by(p, job["metadata"]["uid"])]
        try:
            await _converge(kube, job, owned, now)
        except ApiError as error:
            if not moved_on(error):
                raise


async def _converge(kube: Kube, job: Obj, owned: Sequence[Obj], now: float) -> None:
    verdict = verdict_of(job, owned, now)
    active = [p for p in owned if not finished(p) and not deleting(p)]
    if verdict:
        for pod in active:
            namespace, name = key_of(pod)
            await kube.delete(POD, namespace, name, uid=pod["metadata"]["uid"])
    elif may_create(owned, now):
        missing = int(job["spec"].get("completions") or 1) - _succeeded(owned)
        wanted = min(int(job["spec"].get("parallelism", 1)), missing)
        for ordinal in range(wanted - len(active)):
            await kube.create(_pod(job, fresh_name(job, now, len(owned) + ordinal)))
    status = status_of(job, owned, verdict, now)
    if status != job.get("status"):
        await kube.apply_status(status_patch(job, status), manager=MANAGER)


def _pod(job: Obj, name: str) -> Obj:
    labels = {
        "batch.kubernetes.io/job-name": job["metadata"]["name"],
        "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
        "job-name": job["metadata"]["name"],
    }
    return build_pod(job, name, job["spec"]["template"], labels)
