"""What a revision is: the pod-affecting part of a spec, planned, under a hash that never drifts.

The hash covers what ends up in engine pods, after planning, and leaves defaults out, so neither a new
field with a default nor a planner that has learned better changes the hash of a spec that nobody edited:
an unchanged spec finds its own record again and keeps the layout written there. Records are
ControllerRevisions; a group of an old revision restarts from its record, not from today's spec.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moe_operator.api.names import LABEL_REVISION, digest
from moe_operator.api.spec import MoESpec
from moe_operator.planning.plan import Layout

Obj = dict[str, Any]

# class "revision" in docs/api.md; weights.cacheClass is in it because pods mount that path
POD_AFFECTING: Mapping[str, Any] = {
    "model": True,
    "engine": True,
    "parallelism": True,
    "accelerators": True,
    "placement": True,
    "weights": {"selection", "cache_class"},
    "resources": True,
    "network": True,
    "pod": True,
    "startup": True,
}
HASH_LENGTH = 8
RECORDS_KEPT = 10


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The files one node needs: their digest, and the patterns that select them (none = all)."""

    view: str
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Revision:
    """One planned spec. ``view`` is the digest of the model's files, "" when nothing is staged."""

    hash: str
    spec: MoESpec
    layout: Layout
    view: str = ""
    manifest: str = ""  # name of the manifest ConfigMap
    number: int = 0  # order of appearance; 0 = not on record yet
    model_len: int | None = None  # planned --max-model-len where the spec is silent; None = the engine's own
    rank_files: tuple[NodeFiles, ...] = ()  # by rank; empty = every rank needs all of ``view``

    def files_of(self, rank: int) -> NodeFiles:
        """What the node of ``rank`` needs; its view is "" when nothing is staged."""
        return self.rank_files[rank] if self.rank_files else NodeFiles(self.view)

    @property
    def views(self) -> frozenset[str]:
        """Digests of all sets of files that its nodes hold."""
        found = {files.view for files in self.rank_files} or {self.view}
        return frozenset(found - {""})


def spec_digest(spec: MoESpec, view: str) -> str:
    """Digest of what the user asked for, before planning, with the model's files pinned."""
    return digest(json.dumps([_canonical(spec), view], sort_keys=True), 16)


def revision_of(
    spec: MoESpec,
    layout: Layout,
    view: str,
    manifest: str,
    model_len: int | None = None,
    rank_files: Sequence[NodeFiles] = (),
) -> Revision:
    """A revision nobody has recorded yet."""
    content = [_canonical(spec), asdict(layout), view, *([model_len] if model_len else [])]
    content += [files.view for files in rank_files]
    hashed = digest(json.dumps(content, sort_keys=True), HASH_LENGTH)
    return Revision(hashed, spec, layout, view, manifest, model_len=model_len, rank_files=tuple(rank_files))


def record(revision: Revision) -> Obj:
    """``data`` of the ControllerRevision."""
    return {
        "specDigest": spec_digest(revision.spec, revision.view),
        "spec": revision.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "layout": asdict(revision.layout),
        "view": revision.view,
        "manifest": revision.manifest,
        **({"modelLen": revision.model_len} if revision.model_len else {}),
        **({"rankFiles": [asdict(files) for files in revision.rank_files]} if revision.rank_files else {}),
    }


def recorded(objects: Iterable[Obj]) -> dict[str, Revision]:
    """hash → revision, from the ControllerRevisions of one MoEDeployment."""
    found = (_from_record(o) for o in objects)
    return {r.hash: r for r in sorted(found, key=lambda r: r.number)}


def same_spec(records: Iterable[Revision], spec: MoESpec, view: str) -> Revision | None:
    """The newest recorded revision that was planned from the same wish."""
    wanted = spec_digest(spec, view)
    matching = [r for r in records if spec_digest(r.spec, r.view) == wanted]
    return max(matching, key=lambda r: r.number, default=None)


def superfluous(records: Iterable[Revision], needed: Iterable[str]) -> list[Revision]:
    """Records beyond the newest ``RECORDS_KEPT`` that nothing needs."""
    keep = set(needed)
    newest_first = sorted(records, key=lambda r: -r.number)
    return [r for r in newest_first[RECORDS_KEPT:] if r.hash not in keep]


def _canonical(spec: MoESpec) -> Obj:
    dump = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=dict(POD_AFFECTING))
    return {section: said for section, said in dump.items() if said}  # {}: nothing in it reaches a pod


def _from_record(obj: Obj) -> Revision:
    data = obj["data"]
    return Revision(
        hash=obj["metadata"]["labels"][LABEL_REVISION],
        spec=MoESpec.model_validate(data["spec"]),
        layout=Layout(**data["layout"]),
        view=data["view"],
        manifest=data["manifest"],
        number=int(obj["revision"]),
        model_len=data.get("modelLen"),
        rank_files=tuple(NodeFiles(f["view"], tuple(f["only"])) for f in data.get("rankFiles") or ()),
    )
