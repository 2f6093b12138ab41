"""Step 8: the gateway's own objects, and the intent that its pods follow."""

from __future__ import annotations

from moe_operator.api.names import ANNOTATION_REFRESH_KEYS
from moe_operator.reconcile.actions import Mark
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.drift import differs, stamped
from moe_operator.reconcile.gateway_acks import gateway_pods
from moe_operator.reconcile.gateway_intent import wanted_intent
from moe_operator.reconcile.isolate import gateway_spec
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.resources.gateway import gateway_objects, intent_config_map
from moe_operator.resources.ownership import Owner, pod_mark


def route(snapshot: Snapshot, draft: Draft) -> Draft:
    """Apply what the gateway needs and does not have."""
    draft = _refresh_keys(snapshot, draft)
    spec = gateway_spec(draft)
    if spec is None or snapshot.namespace_terminating:
        return draft
    owner = Owner(snapshot.name, snapshot.namespace, snapshot.uid)
    intent = wanted_intent(snapshot, draft, spec)
    objects = [intent_config_map(owner, intent), *gateway_objects(owner, spec, snapshot.policy)]
    changed = [
        o for o in map(stamped, objects) if differs(snapshot.child(o["kind"], o["metadata"]["name"]), o)
    ]
    gateway = draft.status.gateway.model_copy(update={"generation": intent.generation})
    return draft.apply(*changed).with_status(gateway=gateway)


def _refresh_keys(snapshot: Snapshot, draft: Draft) -> Draft:
    """Repeat the deployment's annotation on each gateway pod.

    A kubelet that sees a pod change syncs its volumes, and with them the Secret of the keys, at once.
    """
    wish = (snapshot.object["metadata"].get("annotations") or {}).get(ANNOTATION_REFRESH_KEYS)
    if not wish:
        return draft
    marks = {ANNOTATION_REFRESH_KEYS: wish}
    behind = [
        pod
        for pod in gateway_pods(snapshot)
        if (pod["metadata"].get("annotations") or {}).get(ANNOTATION_REFRESH_KEYS) != wish
    ]
    return draft.mark(*(Mark(pod_mark(pod, annotations=marks)) for pod in behind))
