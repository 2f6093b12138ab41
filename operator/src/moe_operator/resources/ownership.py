"""What every child carries: its place in the tree, its labels, and who owns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moe_operator.api.names import API_VERSION, KIND, common_labels

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """The MoEDeployment that children belong to and vanish with."""

    name: str
    namespace: str
    uid: str

    def metadata(
        self,
        name: str,
        component: str,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Obj:
        """Metadata of a child: a controller ownerReference makes `kubectl drain` and the GC do right."""
        meta: Obj = {
            "name": name,
            "namespace": self.namespace,
            "labels": {**(labels or {}), **common_labels(self.name, component)},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        }
        if annotations:
            meta["annotations"] = dict(annotations)
        return meta
