"""Gateway API and its inference extension in a simulated cluster, and who answers there for Gateways."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moe_operator.runtime.kube import CRD as CRD_KIND
from moe_operator.runtime.kube import HTTP_ROUTE, INFERENCE_POOL, POD, SERVICE, Kind
from moe_operator.sandbox.api import MemoryApi
from moe_operator.sandbox.objects import is_true

Obj = dict[str, Any]
PARENT: Obj = {"group": HTTP_ROUTE.group, "kind": "Gateway", "name": "edge", "namespace": "infra"}


def _crd(kind: Kind) -> Obj:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural},
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                    },
                }
            ],
        },
    }


CRD, POOL_CRD = _crd(HTTP_ROUTE), _crd(INFERENCE_POOL)


@dataclass
class Controller:
    """Takes every route and pool, or refuses all with the words it is given.

    ``routed``: whether an HTTPRoute of the user's leads to pools; without one no Gateway knows them.
    """

    api: MemoryApi
    refuses: str = ""
    routed: bool = True

    def step(self) -> None:
        for route in self._all(HTTP_ROUTE):
            self._answer(HTTP_ROUTE, route, route["spec"]["parentRefs"])
        for pool in self._all(INFERENCE_POOL):
            self._answer(INFERENCE_POOL, pool, [PARENT] if self.routed else [])

    def shares(self) -> dict[str, tuple[int, set[str]]]:
        """Revision → its weight and the pods that its Service leads to now; empty without a route."""
        found = {}
        for route in self._all(HTTP_ROUTE):
            namespace = route["metadata"]["namespace"]
            for backend in route["spec"]["rules"][0]["backendRefs"]:
                service = self.api.get(SERVICE, namespace, backend["name"])
                revision = service["metadata"]["labels"]["moe-operator.io/revision"]
                found[revision] = (backend["weight"], self._behind(namespace, service["spec"]["selector"]))
        return found

    def pools(self) -> dict[str, tuple[str, set[str]]]:
        """Pool → the revision that it selects, and the pods that an endpoint picker may choose from now."""
        found = {}
        for pool in self._all(INFERENCE_POOL):
            labels = pool["spec"]["selector"]["matchLabels"]
            behind = self._behind(pool["metadata"]["namespace"], labels)
            found[pool["metadata"]["name"]] = (labels["moe-operator.io/revision"], behind)
        return found

    def _all(self, kind: Kind) -> tuple[Obj, ...]:
        served = {crd["metadata"]["name"] for crd in self.api.list(CRD_KIND).items}
        return self.api.list(kind).items if f"{kind.plural}.{kind.group}" in served else ()

    def _answer(self, kind: Kind, obj: Obj, parents: Iterable[Obj]) -> None:
        truth, reason = ("False", "NotAllowedByListeners") if self.refuses else ("True", "Accepted")
        conditions = [
            {
                "type": condition,
                "status": truth,
                "reason": reason,
                "message": self.refuses,
                "observedGeneration": obj["metadata"]["generation"],
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for condition in ("Accepted", "ResolvedRefs")
        ]
        answers = [
            {"parentRef": parent, "controllerName": "example.com/gateway", "conditions": conditions}
            for parent in parents
        ]
        if (obj.get("status") or {}).get("parents", []) != answers:
            meta = {name: obj["metadata"][name] for name in ("name", "namespace", "uid")}
            answer = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}
            self.api.apply(
                {**answer, "status": {"parents": answers}}, manager="gateway", subresource="status"
            )

    def _behind(self, namespace: str, labels: Obj) -> set[str]:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        pods = self.api.list(POD, namespace, labels=selector).items
        return {p["metadata"]["name"] for p in pods if is_true(p, "Ready")}
