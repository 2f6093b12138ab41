"""Which files stay on whose disk.

A deployment keeps the views of the revisions that serve or shall serve, of groups that still have pods, and
of the ``retainRevisions`` revisions that served last: going back to one of those copies nothing. A node keeps
what any deployment has on record there, and what any engine pod on it mounts, whoever owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from moe_operator.api.names import PATH_STORE
from moe_operator.api.status import Status
from moe_operator.reconcile.actions import Obj
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.sites import StoreId, id_of
from moe_operator.reconcile.snapshot import Fleet
from moe_operator.reconcile.waves import key_of

TERMINAL = frozenset({"Succeeded", "Failed"})
VIEWS = f"{PATH_STORE}/views/"


def own_views(draft: Draft, retain: int) -> frozenset[str]:
    """The views that this deployment keeps."""
    with_pods = [g.revision for g in draft.groups if g.pods]
    kept = {*draft.wanted, *with_pods, *retained(draft, retain)}
    return frozenset(view for h in kept if h in draft.records for view in draft.records[h].views)


def retained(draft: Draft, retain: int) -> list[str]:
    """The revisions that served before the present one, newest first."""
    served = [e.from_ for e in draft.status.history if e.result == "Succeeded"]
    older = dict.fromkeys(h for h in served if h in draft.records and h not in set(draft.wanted))
    return list(older)[:retain]


def views_on(store: StoreId, fleet: Fleet, without: str = "") -> frozenset[str]:
    """The views that stay in one node's store; ``without`` the records of one deployment (namespace/name)."""
    recorded = {
        view
        for deployment in fleet.deployments
        if key_of(deployment) != without
        for known in Status.model_validate(deployment.get("status") or {}).stores
        if id_of(known) == store
        for view in known.views
    }
    return frozenset(recorded | set(mounted_on(store[1], fleet.engine_pods)))


def mounted_on(node: str, pods: Iterable[Obj]) -> Iterator[str]:
    """The views that engine pods on a node read."""
    for pod in pods:
        alive = (pod.get("status") or {}).get("phase") not in TERMINAL
        if alive and pod["spec"].get("nodeName") == node:
            words = (word for c in pod["spec"]["containers"] for word in c.get("args") or ())
            yield from (w.removeprefix(VIEWS).split("/")[0] for w in words if w.startswith(VIEWS))
