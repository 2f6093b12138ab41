"""What children carry: their place in the tree, their labels, who owns them, and what pulls their images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def pull_secrets(names: Iterable[str]) -> Obj:
    """`imagePullSecrets` of a pod's spec, each once; nothing when there are none."""
    secrets = [{"name": name} for name in dict.fromkeys(names)]
    return {"imagePullSecrets": secrets} if secrets else {}


def pod_mark(pod: Obj, **marks: Mapping[str, str]) -> Obj:
    """``labels`` or ``annotations`` for a pod that lives already, to be applied by a manager of their own."""
    meta = pod["metadata"]
    identity = {name: meta[name] for name in ("name", "namespace", "uid")}
    given = {kind: dict(values) for kind, values in marks.items()}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**identity, **given}}
