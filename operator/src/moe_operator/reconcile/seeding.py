"""Who hands files on to whom while nodes of this deployment are being staged.

Every node that takes part runs a seeder: those that hold the files, those of the serving revision when it
shares files with the new one, and those that are still pulling, whose finished files are of use to the others
already. Seeders exist only while somebody pulls. Peers are a help, never a condition: a seeder that does not
come up in time is done without.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from moe_operator.api.manifest import Manifest
from moe_operator.api.moments import elapsed
from moe_operator.api.names import COMPONENT_SEEDER, LABEL_COMPONENT, PORT_PEERS, peers_name, seeder_name
from moe_operator.reconcile.actions import Delete, Obj, Ref
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.sites import Site
from moe_operator.reconcile.snapshot import Snapshot
from moe_operator.resources.manifest_config_map import manifest_of
from moe_operator.resources.ownership import Owner
from moe_operator.resources.peers import peers_config, seeder_pod

PATIENCE_SECONDS = 30.0
MOST_SEEDERS = 64
PEERS_NAMED = 16  # servers that one pull is told of
WORTH_SHARING_BYTES = 1 << 20  # a tokenizer in common is no reason


@dataclass(frozen=True, slots=True)
class Seeding:
    """Seeders by node. ``urls`` of those that answer; ``settled``: nobody is waited for any more."""

    urls: Mapping[str, str]
    settled: bool = True

    def for_node(self, node: str) -> tuple[str, ...]:
        """The servers that a pull on ``node`` may ask; every node begins its list elsewhere."""
        others = [name for name in sorted(self.urls) if name != node]
        first = sum(name < node for name in others)
        return tuple(self.urls[n] for n in [*others[first:], *others[:first]][:PEERS_NAMED])


NOBODY = Seeding({})


def taking_part(
    snapshot: Snapshot, model_bytes: int, open_sites: Sequence[Site], every: Sequence[Site]
) -> dict[str, Site]:
    """Seeder's name → a site of its node, for all nodes that can help; empty when it is not worth while."""
    rules = snapshot.policy.staging
    if not rules.peers or model_bytes < rules.peers_from_bytes or not open_sites:
        return {}
    wanted = {s.revision.manifest for s in open_sites}
    sharing = {s.revision.manifest: _share(snapshot, s.revision.manifest, wanted) for s in every}
    found = {s.node: s for s in every if sharing[s.revision.manifest]} | {s.node: s for s in open_sites}
    if len(found) < 2:
        return {}
    return {seeder_name(snapshot.name, s.store): s for s in list(found.values())[:MOST_SEEDERS]}


def _share(snapshot: Snapshot, one: str, others: Collection[str]) -> bool:
    """Whether two sets of files have large ones in common."""
    if one in others:
        return True
    digests = _large_files(snapshot, one)
    return any(digests & _large_files(snapshot, other) for other in others)


def _large_files(snapshot: Snapshot, manifest: str) -> frozenset[str]:
    config_map = snapshot.child("ConfigMap", manifest)
    try:
        facts: Manifest | None = manifest_of(config_map) if config_map else None
    except ValueError:
        return frozenset()
    return frozenset(f.sha256 for f in facts.files if f.size >= WORTH_SHARING_BYTES) if facts else frozenset()


def with_seeders(snapshot: Snapshot, draft: Draft, wanted: Mapping[str, Site]) -> tuple[Draft, Seeding]:
    """With exactly the wanted seeders, and what there is of them now."""
    pods = {p["metadata"]["name"]: p for p in snapshot.pods if _is_seeder(p)}
    unwanted = [p for name, p in pods.items() if name not in wanted or _is_spent(p)]
    draft = _removed(draft, unwanted)
    if not wanted:
        return draft, NOBODY
    owner = Owner(snapshot.name, snapshot.namespace, snapshot.uid)
    if snapshot.child("ConfigMap", peers_name(snapshot.name)) is None:
        draft = draft.apply(peers_config(owner, snapshot.entropy))
    draft = draft.apply(
        *(
            seeder_pod(owner, site.revision.spec, snapshot.policy, name, site.node)
            for name, site in wanted.items()
            if name not in pods
        )
    )
    urls = {site.node: url for name, site in wanted.items() if (url := _url(pods.get(name)))}
    young = [name for name in wanted if name not in pods or _may_still_come(pods[name], snapshot.now)]
    return draft, Seeding(urls, settled=not young)


def _removed(draft: Draft, pods: Sequence[Obj]) -> Draft:
    refs = tuple(
        Ref("Pod", p["metadata"]["namespace"], p["metadata"]["name"], p["metadata"]["uid"])
        for p in pods
        if not p["metadata"].get("deletionTimestamp")
    )
    return draft.delete(Delete(refs, "nobody pulls from it")) if refs else draft


def _is_seeder(pod: Obj) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(LABEL_COMPONENT) == COMPONENT_SEEDER)


def _is_spent(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Failed", "Succeeded"}


def _url(pod: Obj | None) -> str:
    status = (pod or {}).get("status") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    leaving = pod and pod["metadata"].get("deletionTimestamp")
    ip = str(status.get("podIP") or "")
    host = f"[{ip}]" if ":" in ip else ip
    return f"http://{host}:{PORT_PEERS}" if ready and ip and not leaving else ""


def _may_still_come(pod: Obj, now: float) -> bool:
    return not _url(pod) and elapsed(pod["metadata"]["creationTimestamp"], now) < PATIENCE_SECONDS
