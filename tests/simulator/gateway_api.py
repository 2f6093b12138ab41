"""Gateway API in a simulated cluster: its HTTPRoutes, and a controller that answers for one Gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moe_operator.runtime.kube import HTTP_ROUTE, POD, SERVICE
from moe_operator.sandbox.api import MemoryApi
from moe_operator.sandbox.objects import is_true

Obj = dict[str, Any]
CRD: Obj = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "httproutes.gateway.networking.k8s.io"},
    "spec": {
        "group": HTTP_ROUTE.group,
        "scope": "Namespaced",
        "names": {"kind": HTTP_ROUTE.kind, "plural": HTTP_ROUTE.plural},
        "versions": [
            {
                "name": HTTP_ROUTE.version,
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


@dataclass
class Controller:
    """Takes every route, or refuses all with the words it is given."""

    api: MemoryApi
    refuses: str = ""

    def step(self) -> None:
        for route in self.api.list(HTTP_ROUTE).items:
            truth, reason = ("False", "NotAllowedByListeners") if self.refuses else ("True", "Accepted")
            conditions = [
                {
                    "type": kind,
                    "status": truth,
                    "reason": reason,
                    "message": self.refuses,
                    "observedGeneration": route["metadata"]["generation"],
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
                for kind in ("Accepted", "ResolvedRefs")
            ]
            parents = [
                {"parentRef": parent, "controllerName": "example.com/gateway", "conditions": conditions}
                for parent in route["spec"]["parentRefs"]
            ]
            if (route.get("status") or {}).get("parents") != parents:
                meta = {name: route["metadata"][name] for name in ("name", "namespace", "uid")}
                answer = {"apiVersion": HTTP_ROUTE.api_version, "kind": HTTP_ROUTE.kind, "metadata": meta}
                self.api.apply(
                    {**answer, "status": {"parents": parents}}, manager="gateway", subresource="status"
                )

    def shares(self) -> dict[str, tuple[int, set[str]]]:
        """Revision → its weight and the pods that its Service leads to now; empty without a route."""
        found = {}
        for route in self.api.list(HTTP_ROUTE).items:
            for backend in route["spec"]["rules"][0]["backendRefs"]:
                service = self.api.get(SERVICE, route["metadata"]["namespace"], backend["name"])
                revision = service["metadata"]["labels"]["moe-operator.io/revision"]
                found[revision] = (backend["weight"], self._behind(service))
        return found

    def _behind(self, service: Obj) -> set[str]:
        selector = ",".join(f"{key}={value}" for key, value in service["spec"]["selector"].items())
        pods = self.api.list(POD, service["metadata"]["namespace"], labels=selector).items
        return {p["metadata"]["name"] for p in pods if is_true(p, "Ready")}
