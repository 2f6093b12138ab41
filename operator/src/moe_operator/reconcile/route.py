"""Step 8: the gateway's own objects, and the intent that its pods follow.

Only the leader of a whole group that has answered a completion is an endpoint. The intent's generation grows
by one whenever its content changes and never otherwise; it survives the loss of the ConfigMap through status.
"""

from __future__ import annotations

from collections.abc import Iterable

from moe_operator.api.intent import INTENT_KEY, Colour, Intent, Timeouts
from moe_operator.api.names import gateway_name
from moe_operator.api.spec import MoESpec
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.drift import differs, stamped
from moe_operator.reconcile.serve import served_name
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.resources.gateway import gateway_objects, intent_config_map
from moe_operator.resources.ownership import Owner
from moe_operator.rollout.groups import Group
from moe_operator.rollout.retire import Leave


def observed_intent(snapshot: Snapshot) -> Intent | None:
    """What the gateways were told last; None when nothing, or nothing readable, is there."""
    config_map = snapshot.child("ConfigMap", gateway_name(snapshot.name))
    text = ((config_map or {}).get("data") or {}).get(INTENT_KEY)
    if not text:
        return None
    try:
        return Intent.model_validate_json(text)
    except ValueError:
        return None  # somebody broke it: it is written anew


def route(snapshot: Snapshot, draft: Draft) -> Draft:
    """Apply what the gateway needs and does not have."""
    spec = _gateway_spec(draft)
    if spec is None or snapshot.namespace_terminating:
        return draft
    owner = Owner(snapshot.name, snapshot.namespace, snapshot.uid)
    intent = _numbered(draft, _intent(snapshot, draft, spec))
    objects = [intent_config_map(owner, intent), *gateway_objects(owner, spec, snapshot.policy)]
    changed = [
        o for o in map(stamped, objects) if differs(snapshot.child(o["kind"], o["metadata"]["name"]), o)
    ]
    gateway = draft.status.gateway.model_copy(update={"generation": intent.generation})
    return draft.apply(*changed).with_status(gateway=gateway)


def _gateway_spec(draft: Draft) -> MoESpec | None:
    """The accepted spec's gateway, or that of what serves while the newest spec is refused."""
    if draft.wish:
        return draft.wish
    serving = draft.records.get(draft.status.active_revision)
    return serving.spec if serving else None


def _intent(snapshot: Snapshot, draft: Draft, spec: MoESpec) -> Intent:
    gateway, serving = spec.gateway, draft.records.get(draft.status.active_revision)
    return Intent(
        generation=0,
        model=served_name(snapshot, serving.spec if serving else spec),
        colours=list(_colours(draft)),
        allowed_paths=list(gateway.allowed_paths),
        timeouts=Timeouts(
            first_byte_seconds=gateway.timeouts.first_byte_seconds, idle_seconds=gateway.timeouts.idle_seconds
        ),
        drain_seconds=spec.rollout.drain_seconds,
    )


def _colours(draft: Draft) -> Iterable[Colour]:
    """One colour for each revision, under one name for its whole life.

    Envoy makes a new host, on which nothing runs, of an endpoint that changes its colour, and forgets what
    still runs on the old one. So a group on its way out stays where it is: with its colour's weight at 0, or
    marked as leaving beside groups that stay.
    """
    for revision in sorted({g.revision for g in draft.groups}):
        staying = [g.endpoint for g in draft.groups_of(revision) if g.endpoint and _serves(draft, g)]
        standby = [g.endpoint for g in draft.groups_of(revision) if g.endpoint and _stands_by(draft, g)]
        if revision in draft.weights and staying:
            marked = [endpoint.model_copy(update={"leaving": True}) for endpoint in standby]
            yield Colour(revision=revision, weight=draft.weights[revision], endpoints=[*staying, *marked])
        elif standby:
            yield Colour(revision=revision, weight=0, endpoints=standby)


def _serves(draft: Draft, group: Group) -> bool:
    return group.serving and (group.revision, group.replica) not in draft.leaving


def _stands_by(draft: Draft, group: Group) -> bool:
    return draft.leaving.get((group.revision, group.replica)) is Leave.STANDBY


def _numbered(draft: Draft, wanted: Intent) -> Intent:
    before = draft.intent
    if before and before.model_copy(update={"generation": 0}) == wanted:
        return before
    newest = max(before.generation if before else 0, draft.status.gateway.generation)
    return wanted.model_copy(update={"generation": newest + 1})
