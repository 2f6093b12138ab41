"""Step 2: the facts of the model, and the revision that the accepted spec asks for.

Facts come from the source through the resolver Job and are kept in an immutable ConfigMap named after the
source, so they are read once. A spec that was planned before finds its record and keeps its layout; a new
one is planned, and refused with all its numbers before any pod exists.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.manifest import Manifest, view_digest
from moe_operator.api.moments import epoch
from moe_operator.api.names import (
    ANNOTATION_RETRY,
    COMPONENT_RESOLVER,
    LABEL_REVISION,
    digest,
    manifest_name,
    resolver_name,
)
from moe_operator.api.quantity import human_bytes
from moe_operator.api.spec import MoESpec
from moe_operator.api.status import LayoutStatus, ManifestStatus, PlanStatus, RankRow, RefusalStatus
from moe_operator.checkpoint.model import Checkpoint
from moe_operator.checkpoint.model_facts import checkpoint_from_config
from moe_operator.checkpoint.unreadable import UnreadableConfig
from moe_operator.engines.known import ENGINES, args_refusal
from moe_operator.planning.assumed import GIB
from moe_operator.planning.plan import Layout, Pinned, Plan, Refusal, Request
from moe_operator.planning.planner import plan
from moe_operator.planning.question import request_for
from moe_operator.reconcile.actions import Delete, Event, Obj, ref_of
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.reconcile.store_jobs import component, refs
from moe_operator.resources.manifest_config_map import manifest_config_map, manifest_of
from moe_operator.resources.model_source import scheme
from moe_operator.resources.ownership import Owner
from moe_operator.resources.resolver_job import resolver_job
from moe_operator.resources.revision_record import revision_record
from moe_operator.rollout.rank_pod import Trouble, pod_trouble
from moe_operator.rollout.revision import NodeFiles, Revision, revision_of, same_spec, superfluous
from moe_operator.rollout.selection import rank_files

ASSUMPTIONS_SHOWN = 32  # the API's bound
RETRY_SECONDS = 60.0  # between two tries at a source that did not answer
COLLECT_SECONDS = 2.0


def plan_step(snapshot: Snapshot, draft: Draft) -> Draft:
    """Resolve the model, then find or make the revision.

    Until there is a plan nothing of the spec is acted on, its replicas and gateway as little as its layout.
    """
    if draft.wish is None:
        return draft
    draft = _plan(snapshot, _without_old_resolvers(snapshot, draft, draft.wish), draft.wish)
    return draft if draft.target else replace(draft, wish=None)


def _without_old_resolvers(snapshot: Snapshot, draft: Draft, wish: MoESpec) -> Draft:
    """Without those of sources that were asked for before the present one; nobody would collect them."""
    present = resolver_name(snapshot.name, source_digest(wish))
    jobs = (j for j in snapshot.children.get("Job", ()) if component(j) == COMPONENT_RESOLVER)
    old = refs(j for j in jobs if j["metadata"]["name"] != present)
    return draft.delete(Delete(old, "another source is asked for now")) if old else draft


def _plan(snapshot: Snapshot, draft: Draft, wish: MoESpec) -> Draft:
    if scheme(wish.model.source) == "none":
        return _planned(snapshot, draft, wish, None, "")
    name = manifest_name(snapshot.name, source_digest(wish))
    config_map = snapshot.child("ConfigMap", name)
    if config_map is None:
        return _resolve(snapshot, draft, wish, name)
    try:
        manifest = manifest_of(config_map)
    except ValueError as error:
        return _refuse(draft, [Refusal("MANIFEST_INVALID", str(error), f"delete ConfigMap {name}")])
    job = snapshot.child("Job", resolver_name(snapshot.name, source_digest(wish)))
    if job:
        draft = draft.delete(Delete((ref_of(job),), "the model's facts are collected"))
    return _planned(snapshot, draft, wish, manifest, name)


def source_digest(spec: MoESpec) -> str:
    """What tells two sources apart: the address, the credentials' name, and whether code is wanted."""
    credentials = spec.model.credentials_ref.name if spec.model.credentials_ref else ""
    return digest(f"{spec.model.source}|{credentials}|{spec.model.trust_remote_code}")


def _resolve(snapshot: Snapshot, draft: Draft, spec: MoESpec, name: str) -> Draft:
    owner = Owner(snapshot.name, snapshot.namespace, snapshot.uid)
    found = snapshot.resolver.manifest if snapshot.resolver else None
    if found:
        draft = draft.apply(manifest_config_map(owner, name, found)).wake(0.0)
        draft = draft.event(Event("Normal", Reason.MODEL_RESOLVED, _facts(found)))
        return _resolving(draft, f"collecting {_facts(found)}")
    job_name = resolver_name(snapshot.name, source_digest(spec))
    job = snapshot.child("Job", job_name)
    if job is None:
        cache = snapshot.policy.cache_classes[spec.weights.cache_class]
        draft = remember_retry(snapshot, draft) if retry_asked(snapshot, draft) else draft
        draft = draft.apply(resolver_job(owner, job_name, spec.model, cache, snapshot.policy))
        return _resolving(draft, f"reading {spec.model.source}").wake(COLLECT_SECONDS)
    trouble = _resolver_trouble(snapshot, spec)
    if _failed(job):
        return _resolve_failed(snapshot, draft, job, trouble)
    if trouble:
        draft = draft.say(ConditionType.PLAN_ACCEPTED, "Unknown", trouble.reason, trouble.message)
        return draft.wake(COLLECT_SECONDS)
    return _resolving(draft, _progress(snapshot, spec)).wake(COLLECT_SECONDS)


def _resolving(draft: Draft, message: str) -> Draft:
    return draft.say(ConditionType.PLAN_ACCEPTED, "Unknown", Reason.RESOLVING_MODEL, message)


def _progress(snapshot: Snapshot, spec: MoESpec) -> str:
    progress = snapshot.resolver.progress if snapshot.resolver else None
    if not progress or not progress.bytes_total:
        return f"reading {spec.model.source}"
    done = 100 * progress.bytes_done // progress.bytes_total
    return f"reading {spec.model.source}: {done} % of {human_bytes(progress.bytes_total)} hashed"


def resolver_pods(snapshot: Snapshot, spec: MoESpec) -> list[Obj]:
    """The pods that read the source of ``spec``; those of an earlier source tell of another model."""
    job_name = resolver_name(snapshot.name, source_digest(spec))
    return [pod for pod in snapshot.pods if _belongs_to_job(pod, job_name)]


def _resolver_trouble(snapshot: Snapshot, spec: MoESpec) -> Trouble | None:
    pods = resolver_pods(snapshot, spec)
    oldest_first = sorted(pods, key=lambda p: p["metadata"]["creationTimestamp"])
    troubles = (pod_trouble(p, snapshot.complaints.get(p["metadata"]["uid"], "")) for p in oldest_first)
    return next((t for t in reversed([t for t in troubles if t])), None)


def _belongs_to_job(pod: Obj, job_name: str) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(o["kind"] == "Job" and o["name"] == job_name for o in owners)


def _failed(job: Obj) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Failed" and c.get("status") == "True" for c in conditions)


def _resolve_failed(snapshot: Snapshot, draft: Draft, job: Obj, trouble: Trouble | None) -> Draft:
    said = trouble or Trouble(Reason.RESOLVE_FAILED, "the resolve Job failed and left no message")
    draft = draft.say(ConditionType.PLAN_ACCEPTED, "Unknown", said.reason, said.message)
    again = Delete((ref_of(job),), "another try at the model's source")
    if said.permanent:
        asked = retry_asked(snapshot, draft)
        return draft.delete(again) if asked else draft.stalled(said.reason, said.message)
    waited = snapshot.now - _failed_at(job, snapshot.now)
    return draft.delete(again) if waited >= RETRY_SECONDS else draft.wake(RETRY_SECONDS - waited)


def _failed_at(job: Obj, now: float) -> float:
    conditions = (job.get("status") or {}).get("conditions") or ()
    times = [
        c["lastTransitionTime"]
        for c in conditions
        if c.get("type") == "Failed" and c.get("lastTransitionTime")
    ]
    return epoch(times[0]) if times else now


def retry_asked(snapshot: Snapshot, draft: Draft) -> bool:
    """Whether the retry annotation says something that was not acted on yet."""
    value = (snapshot.object["metadata"].get("annotations") or {}).get(ANNOTATION_RETRY, "")
    return bool(value) and draft.status.rollout.last_command != f"retry={value}"


def remember_retry(snapshot: Snapshot, draft: Draft) -> Draft:
    """Record the annotation as handled, before the act."""
    value = snapshot.object["metadata"]["annotations"][ANNOTATION_RETRY]
    rollout = draft.status.rollout.model_copy(update={"last_command": f"retry={value}"})
    return draft.with_status(rollout=rollout)


def _planned(snapshot: Snapshot, draft: Draft, spec: MoESpec, manifest: Manifest | None, name: str) -> Draft:
    view = view_digest(manifest.files) if manifest else ""
    if manifest:
        draft = draft.with_status(
            manifest=ManifestStatus(
                name=name,
                source=manifest.source,
                resolved=manifest.resolved,
                view_digest=view,
                total_bytes=manifest.total_bytes,
            )
        )
    known = same_spec(draft.records.values(), spec, view)
    if known and _is_planned(draft, known):
        return _accepted(draft, known, draft.status.plan)
    try:
        request = request_for(spec, checkpoint_of(manifest), snapshot.policy)
    except UnreadableConfig as error:
        return _refuse(draft, [Refusal("CONFIG_UNREADABLE", str(error), "check the model's config.json")])
    answer = _answer(_as_recorded(request, known) if known else request)
    layout = known.layout if known else answer.layout
    conflict = args_refusal(spec, layout) if layout else None
    refusals = [*answer.refusals, *([conflict] if conflict else [])]
    if known is None and (refusals or layout is None):
        return _refuse(draft, refusals)
    assert layout is not None
    chosen = () if known else _selected(spec, layout, request.checkpoint, manifest)
    if isinstance(chosen, Refusal):
        return _refuse(draft, [chosen])
    length = _planned_length(request, answer)
    revision = known or revision_of(spec, layout, view, name, length, chosen)
    draft = _accepted(draft, revision, _plan_status(answer, revision))
    return draft if known else _recorded(snapshot, draft, revision)


def _selected(
    spec: MoESpec, layout: Layout, checkpoint: Checkpoint | None, manifest: Manifest | None
) -> tuple[NodeFiles, ...] | Refusal:
    """The files of each rank where not every node gets all of them."""
    if spec.weights.selection != "PerRank" or manifest is None or checkpoint is None:
        return ()
    return rank_files(spec, layout, checkpoint, manifest)


def _is_planned(draft: Draft, revision: Revision) -> bool:
    """Whether the status already tells the plan of ``revision``: planning again would say the same."""
    return draft.status.target_revision == revision.hash and draft.status.plan.verdict in {"Fits", "Tight"}


def _as_recorded(request: Request, known: Revision) -> Request:
    """The question whose only answer is the layout that was recorded."""
    layout = known.layout
    pinned = Pinned(layout.tensor, layout.pipeline, layout.data, layout.expert, layout.decode_context)
    return replace(request, pinned=pinned, nodes=layout.nodes)


def _planned_length(request: Request, answer: Plan) -> int | None:
    """What must be told to an engine that would otherwise take the model's own length and refuse to start."""
    own = request.checkpoint.max_positions if request.checkpoint else 0
    shortened = answer.max_model_len is not None and answer.max_model_len < own
    return answer.max_model_len if shortened and request.max_model_len is None else None


def checkpoint_of(manifest: Manifest | None) -> Checkpoint | None:
    """The model's facts; None when its source gives none. Raises UnreadableConfig."""
    if manifest is None:
        return None
    config = json.dumps(manifest.config, sort_keys=True)
    return _checkpoint(config, manifest.weights.total_bytes or manifest.total_bytes)


# A spec that is refused or waits is looked at again and again, and each pass asks twice: for what to read,
# and for what to do.


@lru_cache(maxsize=64)
def _checkpoint(config: str, weight_bytes: int) -> Checkpoint:
    return checkpoint_from_config(json.loads(config), weight_bytes)


@lru_cache(maxsize=64)
def _answer(request: Request) -> Plan:
    return plan(request, ENGINES[request.engine].judges)


def _plan_status(answer: Plan, revision: Revision) -> PlanStatus:
    cautions = [f"{c.code}: {c.message}" for c in answer.cautions]
    return PlanStatus(
        verdict="Tight" if answer.verdict == "Tight" else "Fits",
        layout=_layout_status(revision.layout),
        per_rank=[RankRow(name=row.name, gibibytes=f"{row.size / GIB:.1f}") for row in answer.rows],
        max_model_len=revision.model_len or answer.max_model_len,
        concurrency=answer.concurrency,
        assumptions=[*answer.assumptions, *cautions][:ASSUMPTIONS_SHOWN],
    )


def _accepted(draft: Draft, revision: Revision, status: PlanStatus) -> Draft:
    draft = replace(draft, target=revision).with_status(plan=status, target_revision=revision.hash)
    return draft.say(
        ConditionType.PLAN_ACCEPTED,
        "True",
        Reason.PLAN_FITS,
        f"revision {revision.hash}: {revision.layout}",
    )


def _recorded(snapshot: Snapshot, draft: Draft, revision: Revision) -> Draft:
    owner = Owner(snapshot.name, snapshot.namespace, snapshot.uid)
    number = 1 + max((r.number for r in draft.records.values()), default=0)
    draft = draft.apply(revision_record(owner, revision, number))
    draft = replace(draft, records={**draft.records, revision.hash: replace(revision, number=number)})
    old = superfluous(draft.records.values(), [*draft.wanted, *(g.revision for g in draft.groups)])
    objects = [
        o for o in snapshot.children.get("ControllerRevision", ()) if _hash(o) in {r.hash for r in old}
    ]
    superseded = Delete(tuple(map(ref_of, objects)), "more revisions than are kept")
    return draft.delete(superseded) if objects else draft


def _hash(record: Obj) -> str:
    return str((record["metadata"].get("labels") or {}).get(LABEL_REVISION, ""))


def _layout_status(layout: Layout) -> LayoutStatus:
    return LayoutStatus(
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        data=layout.data,
        expert=layout.expert,
        decode_context=layout.decode_context,
        nodes=layout.nodes,
        gpus_per_node=layout.gpus_per_node,
        summary=str(layout),
    )


def _refuse(draft: Draft, refusals: list[Refusal]) -> Draft:
    said = "; ".join(f"[{r.code}] {r.message} → {r.fix}" for r in refusals)
    serving = bool(draft.status.active_revision)
    status = PlanStatus(
        verdict="Refused",
        refusals=[RefusalStatus(code=r.code, message=r.message, fix=r.fix) for r in refusals],
    )
    draft = draft.with_status(plan=status).say(
        ConditionType.PLAN_ACCEPTED, "False", Reason.PLAN_REFUSED, said
    )
    if serving:
        said = f"{said}; revision {draft.status.active_revision} keeps serving"
    return draft.stalled(Reason.EDIT_REFUSED if serving else Reason.PLAN_REFUSED, said)


def _facts(manifest: Manifest) -> str:
    return f"{len(manifest.files)} files, {human_bytes(manifest.total_bytes)} from {manifest.source}"
