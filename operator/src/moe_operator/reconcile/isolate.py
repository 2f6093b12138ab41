"""Step 3: who may connect to the deployment's pods, before the pods are made.

The policies of single groups are made and removed with the groups (step 7); these are about all of them.
"""

from __future__ import annotations

from moe_operator.api.spec import MoESpec
from moe_operator.reconcile.actions import Delete, Obj, ref_of
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.drift import differs, stamped
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.resources.network_policy import deployment_policies
from moe_operator.resources.ownership import Owner

KIND = "NetworkPolicy"


def isolate(snapshot: Snapshot, draft: Draft) -> Draft:
    """Apply the policies that the admin's configuration wants, and remove all when it wants none."""
    spec = gateway_spec(draft)
    if spec is None or snapshot.namespace_terminating:
        return draft
    rules = snapshot.policy.network_policies
    if not rules.enabled:
        there = snapshot.children.get(KIND, ())
        why = "the operator's configuration wants no network policies"
        return draft.delete(Delete(tuple(map(ref_of, there)), why)) if there else draft
    external = spec.gateway.external is not None
    owner = Owner(snapshot.name, snapshot.namespace, snapshot.uid)
    wanted: list[Obj] = [stamped(o) for o in deployment_policies(owner, rules, external_gateway=external)]
    return draft.apply(*(o for o in wanted if differs(snapshot.child(KIND, o["metadata"]["name"]), o)))


def gateway_spec(draft: Draft) -> MoESpec | None:
    """The accepted spec, or that of what serves while the newest one is refused; its gateway applies."""
    if draft.wish:
        return draft.wish
    serving = draft.records.get(draft.status.active_revision)
    return serving.spec if serving else None
