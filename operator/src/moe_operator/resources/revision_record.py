"""The ControllerRevision that remembers what a revision was planned from."""

from __future__ import annotations

from typing import Any

from moe_operator.api.names import COMPONENT_ENGINE, LABEL_REVISION, bounded
from moe_operator.resources.ownership import Owner
from moe_operator.rollout.revision import Revision, record

Obj = dict[str, Any]


def revision_record(owner: Owner, revision: Revision, number: int) -> Obj:
    """Build the record; ``number`` only grows from one new revision to the next."""
    name = bounded(owner.name, revision.hash)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": owner.metadata(name, COMPONENT_ENGINE, {LABEL_REVISION: revision.hash}),
        "data": record(revision),
        "revision": number,
    }
