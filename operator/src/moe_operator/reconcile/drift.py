"""Whether a child has to be applied again: nothing is written while everything is as it should be.

A child is stamped with a digest of what was applied, so a field that we stop applying is noticed, and it is
compared field by field, so a hand that changed one of ours is noticed too. Fields that others added (the
API server's defaults, injected annotations) are theirs.
"""

from __future__ import annotations

import json
from typing import Any

from moe_operator.api.names import ANNOTATION_APPLIED, digest
from moe_operator.reconcile.actions import Obj


def stamped(desired: Obj) -> Obj:
    """``desired`` with the digest of itself."""
    meta = desired["metadata"]
    stamp = digest(json.dumps(desired, sort_keys=True), 16)
    annotations = {**meta.get("annotations", {}), ANNOTATION_APPLIED: stamp}
    return {**desired, "metadata": {**meta, "annotations": annotations}}


def differs(observed: Obj | None, desired: Obj) -> bool:
    """Whether applying ``desired`` (stamped) would change ``observed``."""
    return observed is None or not _holds(observed, desired)


def _holds(observed: Any, desired: Any) -> bool:
    if observed == desired or (observed is None and not desired):
        return True  # the API server leaves empty values out
    if isinstance(desired, dict):
        return isinstance(observed, dict) and all(
            _holds(observed.get(key), value) for key, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(observed, list)
            and len(observed) == len(desired)
            and all(_holds(o, d) for o, d in zip(observed, desired, strict=True))
        )
    return bool(observed == desired)
