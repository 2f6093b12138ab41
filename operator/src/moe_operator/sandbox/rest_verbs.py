"""What each verb of the REST API does with a :class:`MemoryApi`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from moe_operator.runtime import kube
from moe_operator.runtime.kube import ApiError, Obj
from moe_operator.sandbox import api_errors as errors
from moe_operator.sandbox import printing
from moe_operator.sandbox.api_scale import read_scale, write_scale
from moe_operator.sandbox.api_server import MemoryApi, PatchType
from moe_operator.sandbox.list_pages import Page, Pages
from moe_operator.sandbox.patches import json_patch, merge_patch
from moe_operator.sandbox.rest_request import Target, addressed, body_of, delete_options
from moe_operator.sandbox.rest_streams import Streams

_APPLY = "application/apply-patch+yaml"
_PATCH_TYPES: Mapping[str, PatchType] = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
}


@dataclass(frozen=True, slots=True)
class LogRequest:
    """What somebody wants of a container's log; ``container`` "" = the pod's only one."""

    container: str = ""
    follow: bool = False
    previous: bool = False
    tail_lines: int | None = None


LogReader = Callable[[Obj, LogRequest], AsyncGenerator[bytes, None]]


@dataclass(slots=True)
class Verbs:
    """One method per verb; each reads the request and answers it, or raises ApiError."""

    _api: MemoryApi
    _streams: Streams
    _logs: LogReader | None
    _clock: Callable[[], float]
    _pages: Pages = field(default_factory=Pages)

    async def list(self, request: web.Request, target: Target) -> web.StreamResponse:
        """GET of a collection."""
        query = request.query
        limit = int(query.get("limit") or 0)
        if token := query.get("continue"):
            page = self._pages.next(token, limit)
        else:
            found = self._api.select(
                target.resource.kind,
                target.namespace,
                labels=query.get("labelSelector", ""),
                fields=query.get("fieldSelector", ""),
            )
            page = self._pages.first(found, self._api.store.revision, limit)
        meta = _list_meta(page)
        objects = [stored.obj for stored in page.items]
        if _wants_table(request):
            return as_json(self._table(request, target, objects, meta))
        kind = target.resource.kind
        items = objects if target.resource.custom else [_untyped(obj) for obj in objects]
        return as_json(
            {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta, "items": items}
        )

    async def watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        """GET of a collection as it changes."""
        query = request.query
        fields = query.get("fieldSelector", "")
        if target.name:
            fields = f"metadata.name={target.name}"
        initial = query.get("sendInitialEvents") == "true"
        watch = self._api.watch(
            target.resource.kind,
            target.namespace,
            labels=query.get("labelSelector", ""),
            fields=fields,
            resource_version="" if initial else query.get("resourceVersion", ""),
            initial_end=initial,
        )

        def shown(obj: Obj) -> Obj:
            meta = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            return self._table(request, target, [obj], meta) if _wants_table(request) else obj

        seconds = float(query["timeoutSeconds"]) if query.get("timeoutSeconds") else None
        bookmarks = initial or query.get("allowWatchBookmarks") in ("1", "true")
        return await self._streams.send_watch(request, watch, shown, seconds=seconds, bookmarks=bookmarks)

    async def read(self, request: web.Request, target: Target) -> web.StreamResponse:
        """GET of an object."""
        obj = self._api.get(target.resource.kind, target.namespace, target.name)
        if _wants_table(request):
            return as_json(self._table(request, target, [obj], {}))
        return as_json(obj)

    def _table(self, request: web.Request, target: Target, objects: Iterable[Obj], meta: Obj) -> Obj:
        include = request.query.get("includeObject", "Metadata")
        return printing.table(target.resource, objects, self._clock(), meta, include)

    async def create(self, request: web.Request, target: Target) -> web.StreamResponse:
        """POST."""
        obj = addressed(target, await _body(request))
        warnings = self._field_warnings(request, target, obj)
        return as_json(self._api.create(obj, manager=_manager(request)), status=201, headers=warnings)

    async def replace(self, request: web.Request, target: Target) -> web.StreamResponse:
        """PUT."""
        obj = addressed(target, await _body(request))
        warnings = self._field_warnings(request, target, obj)
        new = self._api.replace(obj, manager=_manager(request), subresource=target.subresource)
        return as_json(new, headers=warnings)

    async def patch(self, request: web.Request, target: Target) -> web.StreamResponse:
        """PATCH of all four kinds."""
        body = await _body(request)
        kind, namespace, name = target.resource.kind, target.namespace, target.name
        if request.content_type == _APPLY:
            return self._applied(request, target, addressed(target, body))
        if request.content_type not in _PATCH_TYPES:
            raise ApiError(415, "UnsupportedMediaType", f"no patch has the type {request.content_type}")
        warnings: Mapping[str, str] = {}
        if isinstance(body, dict):
            warnings = self._field_warnings(request, target, {"metadata": {}, **body})
        new = self._api.patch(
            kind,
            namespace,
            name,
            body,
            patch_type=_PATCH_TYPES[request.content_type],
            manager=_manager(request),
            subresource=target.subresource,
        )
        return as_json(new, headers=warnings)

    def _applied(self, request: web.Request, target: Target, obj: Obj) -> web.StreamResponse:
        there = self._exists(target)
        new = self._api.apply(
            obj,
            manager=request.query.get("fieldManager", ""),
            force=request.query.get("force") == "true",
            subresource=target.subresource,
        )
        return as_json(new, status=200 if there else 201)

    def _exists(self, target: Target) -> bool:
        table = self._api.store.table(target.resource.kind)
        return table.find((target.namespace or "", target.name)) is not None

    def _field_warnings(self, request: web.Request, target: Target, obj: Obj) -> Mapping[str, str]:
        """Unknown fields as the ``fieldValidation`` of the request wants them: ApiError 400, or a header."""
        mode = request.query.get("fieldValidation") or "Warn"
        unknown = [] if mode == "Ignore" else self._api.gate.unknown_fields(target.resource, obj)
        texts = [f'unknown field "{field}"' for field in unknown]
        if texts and mode == "Strict":
            raise errors.bad_request(f"strict decoding error: {', '.join(texts)}")
        return {"Warning": f"299 - {json.dumps(', '.join(texts))}"} if texts else {}

    async def delete(self, request: web.Request, target: Target) -> web.StreamResponse:
        """DELETE of an object."""
        options = delete_options(await _body(request, empty={}), request.query)
        kind = target.resource.kind
        last = self._api.delete(
            kind,
            target.namespace,
            target.name,
            uid=options.uid,
            resource_version=options.resource_version,
            grace_seconds=options.grace_seconds,
            propagation=options.propagation,
        )
        if self._exists(target) or kind == kube.POD:
            return as_json(last)
        details = {
            "name": target.name,
            "group": kind.group,
            "kind": kind.plural,
            "uid": last["metadata"]["uid"],
        }
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return as_json({**done, "details": details})

    async def delete_collection(self, request: web.Request, target: Target) -> web.StreamResponse:
        """DELETE of a collection."""
        options = delete_options(await _body(request, empty={}), request.query)
        kind = target.resource.kind
        found = self._api.select(
            kind,
            target.namespace,
            labels=request.query.get("labelSelector", ""),
            fields=request.query.get("fieldSelector", ""),
        )
        for stored in found:
            if self._api.store.table(kind).find(stored.key):  # not gone with an earlier one
                self._api.delete(
                    kind, *stored.key, grace_seconds=options.grace_seconds, propagation=options.propagation
                )
        return as_json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    async def read_scale(self, request: web.Request, target: Target) -> web.StreamResponse:
        """GET of a scale."""
        return as_json(read_scale(self._api, target.resource.kind, target.namespace or "", target.name))

    async def replace_scale(self, request: web.Request, target: Target) -> web.StreamResponse:
        """PUT of a scale."""
        return self._scaled(request, target, await _body(request))

    async def patch_scale(self, request: web.Request, target: Target) -> web.StreamResponse:
        """PATCH of a scale."""
        now = read_scale(self._api, target.resource.kind, target.namespace or "", target.name)
        body = await _body(request)
        del now["metadata"]["resourceVersion"]  # only a precondition when the patch brings it
        patched = json_patch(now, body) if isinstance(body, list) else merge_patch(now, body)
        return self._scaled(request, target, patched)

    def _scaled(self, request: web.Request, target: Target, scale: Obj) -> web.StreamResponse:
        kind, namespace, name = target.resource.kind, target.namespace or "", target.name
        return as_json(write_scale(self._api, kind, namespace, name, scale, manager=_manager(request)))

    async def bind(self, request: web.Request, target: Target) -> web.StreamResponse:
        """POST of a pod's binding."""
        body = await _body(request)
        self._api.bind(target.namespace or "", target.name, body["target"]["name"])
        return as_json(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}, status=201
        )

    async def log_of_pod(self, request: web.Request, target: Target) -> web.StreamResponse:
        """GET of a pod's log."""
        pod = self._api.get(target.resource.kind, target.namespace, target.name)
        if self._logs is None:
            raise errors.bad_request("this server has no pod logs")
        query = request.query
        wanted = LogRequest(
            container=query.get("container", ""),
            follow=query.get("follow") == "true",
            previous=query.get("previous") == "true",
            tail_lines=int(query["tailLines"]) if query.get("tailLines") else None,
        )
        return await self._streams.send_log(request, self._logs(pod, wanted))


def as_json(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer."""
    text = json.dumps(value, separators=(",", ":"))
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


async def _body(request: web.Request, empty: Any = None) -> Any:
    text = await request.read()
    return empty if not text and empty is not None else body_of(text, request.content_type)


def _manager(request: web.Request) -> str:
    """Who owns what a write sets: the client's word, else the name of its program."""
    agent = request.headers.get("User-Agent", "").partition("/")[0]
    return request.query.get("fieldManager") or agent or "unknown"


def _wants_table(request: web.Request) -> bool:
    return "as=Table" in request.headers.get("Accept", "")


def _untyped(obj: Obj) -> Obj:
    return {name: value for name, value in obj.items() if name not in ("apiVersion", "kind")}


def _list_meta(page: Page) -> Obj:
    meta: Obj = {"resourceVersion": str(page.revision)}
    return {**meta, "continue": page.more, "remainingItemCount": page.left} if page.more else meta
