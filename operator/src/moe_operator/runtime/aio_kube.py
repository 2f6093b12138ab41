"""``Kube`` on a real API server, through the transport of the official client (``kubernetes.aio``).

A :class:`~moe_operator.runtime.kube.Kind` already holds what discovery would say, so URLs are built
directly and bodies stay plain dicts: no discovery requests, no discovery cache on disk, no typed models.
One connection pool serves all calls. Every failure is an :class:`ApiError`; status 0 means that the
server was not reached or did not finish its answer.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast
from urllib.request import getproxies_environment

import aiohttp

from moe_operator import __version__
from moe_operator.api.names import FIELD_MANAGER
from moe_operator.runtime.kube import ApiError, JsonPatch, Kind, Listing, Obj, WatchEvent, kind_of

if TYPE_CHECKING:
    from kubernetes.aio.client.api_client import ApiClient

PAGE = 500  # objects per LIST answer
REQUEST_SECONDS = 30.0
WATCH_SECONDS = 290  # after which the server ends a watch; ours goes on where it ended
WATCH_SILENCE_SECONDS = WATCH_SECONDS + 30.0
UNREACHABLE = "Unreachable"

_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_JSON_PATCH = "application/json-patch+json"
_JSON = "application/json"


class AioKube:
    """``manager`` owns the fields of writes other than apply. Use as an async context manager, or close."""

    def __init__(self, client: ApiClient, *, manager: str = FIELD_MANAGER) -> None:
        self._client = client
        self._client.user_agent = f"moe-operator/{__version__}"
        self._manager = manager

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, *, manager: str = FIELD_MANAGER) -> Self:
        """A client from ``kubeconfig``, else from the pod's service account, else from ``$KUBECONFIG``.

        Does not talk to the server yet.
        """
        # Imported here: the client's modules cost more start-up time than the whole command line.
        from kubernetes.aio.client.api_client import ApiClient
        from kubernetes.aio.client.configuration import Configuration
        from kubernetes.aio.config import load_incluster_config, load_kube_config

        # A client that trusts the environment reads ~/.netrc, in a thread, before each request.
        configuration = Configuration(client_session_kwargs={"trust_env": bool(getproxies_environment())})
        if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await load_kube_config(  # type: ignore[no-untyped-call]
                config_file=kubeconfig, client_configuration=configuration, persist_config=False
            )
        return cls(ApiClient(configuration), manager=manager)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj:
        """Read one object; ApiError 404 when absent."""
        return await self._call("GET", path_of(kind, namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        """Read all objects of a kind, page by page."""
        query = _given(labelSelector=labels, fieldSelector=fields)
        try:
            return await self._pages(kind, namespace, {**query, "limit": str(PAGE)})
        except ApiError as error:
            if error.status != 410:  # the first page grew too old while the others were read
                raise
            return await self._pages(kind, namespace, query)

    async def _pages(self, kind: Kind, namespace: str | None, query: Mapping[str, str]) -> Listing:
        path, items, more = path_of(kind, namespace), [], ""
        while True:
            page = await self._call("GET", path, {**query, **_given(**{"continue": more})})
            # Lists of built-in kinds name the type once, not in every item.
            items += [
                {"apiVersion": kind.api_version, "kind": kind.kind, **item}
                for item in page.get("items") or ()
            ]
            more = page["metadata"].get("continue", "")
            if not more:
                return Listing(tuple(items), page["metadata"]["resourceVersion"])

    async def apply(self, obj: Obj, *, manager: str, force: bool = True) -> Obj:
        """Server-side apply."""
        return await self._apply(obj, "", manager, force)

    async def apply_status(self, obj: Obj, *, manager: str, force: bool = True) -> Obj:
        """Server-side apply through the status subresource."""
        return await self._apply(obj, "/status", manager, force)

    async def _apply(self, obj: Obj, subresource: str, manager: str, force: bool) -> Obj:
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        path = _path_of_object(obj) + subresource
        return await self._call("PATCH", path, query, body=obj, content_type=_APPLY)

    async def create(self, obj: Obj) -> Obj:
        """POST."""
        path = path_of(kind_of(obj), obj["metadata"].get("namespace"))
        return await self._call("POST", path, self._managed(), body=obj)

    async def replace(self, obj: Obj) -> Obj:
        """PUT with the object's resourceVersion as precondition."""
        return await self._call("PUT", _path_of_object(obj), self._managed(), body=obj)

    async def patch_json(self, kind: Kind, namespace: str | None, name: str, operations: JsonPatch) -> Obj:
        """JSON patch."""
        path = path_of(kind, namespace, name)
        return await self._call("PATCH", path, self._managed(), body=operations, content_type=_JSON_PATCH)

    async def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
    ) -> None:
        """DELETE with preconditions."""
        preconditions = _present(uid=uid, resourceVersion=resource_version)
        body = _present(
            apiVersion="v1",
            kind="DeleteOptions",
            propagationPolicy=propagation,
            gracePeriodSeconds=grace_seconds,
            preconditions=preconditions or None,
        )
        await self._call("DELETE", path_of(kind, namespace, name), body=body)

    async def watch(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", resource_version: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """Changes after ``resource_version``; "" = first everything there is, as ADDED.

        Goes on when the server ends a watch in good order. ApiError 410 when the version is too old, 0 when
        the connection breaks.
        """
        position = resource_version
        if not position:
            listing = await self.list(kind, namespace, labels=labels)
            for item in listing.items:
                yield WatchEvent("ADDED", item)
            position = listing.resource_version
        while True:
            async with aclosing(self._watch_once(kind, namespace, labels, position)) as events:
                async for event in events:
                    position = event.object["metadata"]["resourceVersion"]
                    yield event

    async def _watch_once(
        self, kind: Kind, namespace: str | None, labels: str, position: str
    ) -> AsyncGenerator[WatchEvent, None]:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            "resourceVersion": position,
            **_given(labelSelector=labels),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=REQUEST_SECONDS, sock_read=WATCH_SILENCE_SECONDS
        )
        try:
            response = await self._open("GET", path_of(kind, namespace), query, timeout=timeout)
            async with response:
                if response.status >= 400:
                    raise _refusal(response.status, await response.text())
                async for line in _lines(response.content):
                    yield _event(json.loads(line))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, UNREACHABLE, _said(error)) from error

    def _managed(self) -> Mapping[str, str]:
        return {"fieldManager": self._manager}

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Any = None,
        content_type: str = _JSON,
    ) -> Obj:
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        try:
            response = await self._open(method, path, query or {}, body, content_type, timeout)
            async with response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, UNREACHABLE, _said(error)) from error
        if response.status >= 400:
            raise _refusal(response.status, text)
        return cast("Obj", json.loads(text))

    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Any = None,
        content_type: str = _JSON,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": _JSON, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(*request, _request_timeout=timeout)
        return cast("aiohttp.ClientResponse", answer.response)


def path_of(kind: Kind, namespace: str | None = None, name: str = "") -> str:
    """URL path of a collection or of one object."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    scope = f"/namespaces/{namespace}" if kind.namespaced and namespace else ""
    return f"{root}{scope}/{kind.plural}" + (f"/{name}" if name else "")


def _path_of_object(obj: Obj) -> str:
    meta = obj["metadata"]
    return path_of(kind_of(obj), meta.get("namespace"), meta["name"])


def _given(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


async def _lines(stream: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Lines of any length; a last one without its newline was cut off and is not an event."""
    rest = b""
    async for chunk in stream.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line


def _event(frame: Obj) -> WatchEvent:
    if frame["type"] == "ERROR":
        status = frame["object"]
        raise ApiError(status.get("code", 500), status.get("reason", "Unknown"), status.get("message", ""))
    return WatchEvent(frame["type"], frame["object"])


def _refusal(code: int, text: str) -> ApiError:
    """The Status object of an answer; proxies in between answer with plain text."""
    try:
        status = json.loads(text)
        return ApiError(code, status.get("reason") or "Unknown", status["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ApiError(code, "Unknown", text.strip()[:500])


def _said(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer in time ({type(error).__name__})"
    return f"{type(error).__name__}: {error}"
