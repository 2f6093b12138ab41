"""What is served now: the built-in kinds, and a custom one as long as its CRD exists."""

from __future__ import annotations

from collections.abc import Iterator

from moe_operator.runtime.kube import Kind, Obj
from moe_operator.sandbox.api_errors import no_such_resource
from moe_operator.sandbox.api_resources import BUILTIN, Resource, resource_of_crd


class Catalogue:
    """Resources by their place in a URL and by the type of their objects."""

    def __init__(self) -> None:
        self._by_url: dict[tuple[str, str], Resource] = {}
        self._by_type: dict[tuple[str, str], Resource] = {}
        for resource in BUILTIN:
            self._add(resource)

    def __iter__(self) -> Iterator[Resource]:
        return iter(tuple(self._by_url.values()))

    def serve(self, crd: Obj) -> None:
        """Serve what a CRD defines, in its present form."""
        self._add(resource_of_crd(crd))

    def retire(self, crd: Obj) -> None:
        """Serve it no more."""
        kind = resource_of_crd(crd).kind
        self._by_url.pop((kind.group, kind.plural), None)
        self._by_type.pop((kind.api_version, kind.kind), None)

    def _add(self, resource: Resource) -> None:
        kind = resource.kind
        self._by_url[kind.group, kind.plural] = resource
        self._by_type[kind.api_version, kind.kind] = resource

    def of_kind(self, kind: Kind) -> Resource:
        """How a kind is served; ApiError 404 when it is not."""
        found = self._by_url.get((kind.group, kind.plural))
        if found is None or found.kind.version != kind.version:
            raise no_such_resource()
        return found

    def of_object(self, obj: Obj) -> Resource:
        """How an object's type is served; ApiError 404 when it is not."""
        found = self._by_type.get((str(obj.get("apiVersion")), str(obj.get("kind"))))
        if found is None:
            raise no_such_resource()
        return found
