"""Snapshot → Decision: accept → plan → isolate → place → stage → roll → serve → collect → scrub → route
→ report.

Each step is a pure function of the snapshot and of what the steps before it concluded. Deciding twice on
the same world gives the same answer, and deciding on a world in which the answer came true gives none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from moe_operator.api.names import FINALIZER
from moe_operator.api.status import Status
from moe_operator.reconcile.accept import accept
from moe_operator.reconcile.actions import Action, AddFinalizer, Apply, Decision, Obj
from moe_operator.reconcile.collect import collect
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.gateway_acks import observed_intent
from moe_operator.reconcile.isolate import isolate
from moe_operator.reconcile.observed_groups import with_groups
from moe_operator.reconcile.place import place
from moe_operator.reconcile.plan import plan_step
from moe_operator.reconcile.report import report
from moe_operator.reconcile.roll import roll
from moe_operator.reconcile.route import route
from moe_operator.reconcile.scrub import scrub
from moe_operator.reconcile.serve import serve
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.reconcile.stage import stage
from moe_operator.reconcile.teardown import teardown
from moe_operator.rollout.revision import recorded

Step = Callable[[Snapshot, Draft], Draft]
CHAIN: tuple[Step, ...] = (
    accept,
    plan_step,
    isolate,
    place,
    stage,
    roll,
    serve,
    collect,
    scrub,
    route,
    report,
)


def decide(snapshot: Snapshot) -> Decision:
    """What is to be written and done next."""
    if snapshot.deleting:
        return teardown(snapshot)
    return _decision(
        snapshot, reduce(lambda draft, step: step(snapshot, draft), CHAIN, first_draft(snapshot))
    )


def first_draft(snapshot: Snapshot) -> Draft:
    """What is known before anything is decided: status, records, groups, the gateways' intent."""
    draft = Draft(
        status=Status.model_validate(snapshot.object.get("status") or {}),
        records=recorded(snapshot.children.get("ControllerRevision", ())),
        intent=observed_intent(snapshot),
    )
    return with_groups(snapshot, draft)


def _decision(snapshot: Snapshot, draft: Draft) -> Decision:
    status = draft.status.to_dict()
    applies: tuple[Action, ...] = tuple(Apply(obj) for obj in draft.applies)
    marked = FINALIZER in (snapshot.object["metadata"].get("finalizers") or ())
    first = () if marked else (AddFinalizer(),)
    return Decision(
        status=None if _unchanged(snapshot.object, status) else status,
        actions=(*first, *applies, *draft.marks, *draft.deletions),
        events=draft.events,
        wake_after=draft.wake_after,
        claims=draft.claims,
    )


def _unchanged(obj: Obj, status: Obj) -> bool:
    return bool(obj.get("status") == status)
