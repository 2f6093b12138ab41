"""A :class:`MemoryApi` over loopback HTTP, as far as its clients go: the operator (kopf and
``kubernetes.aio``), the gateway's agents, kubectl.

Served: discovery, get, list (in pages, as tables), watch (bookmarks, initial events), create, apply,
patch, put, delete, the status and scale subresources, pod logs and bindings. Not served, and refused in so
many words: dry runs, exec, port-forward, eviction, protobuf.

With an ``admin_token`` everybody needs a token. A service account's, as a bearer token, may do what its
Roles grant; the administrator's may do everything, as a bearer token or as the first part of the path,
because kubectl sends no bearer token over plain HTTP. Without one, everybody is the administrator.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from moe_operator.runtime import kube
from moe_operator.runtime.kube import ApiError, Obj
from moe_operator.sandbox import api_errors as errors
from moe_operator.sandbox import discovery
from moe_operator.sandbox.access import Attempt, ServiceAccount, allowed
from moe_operator.sandbox.api_server import MemoryApi
from moe_operator.sandbox.kubeconfig import write_kubeconfig
from moe_operator.sandbox.rest_request import Target, target_of
from moe_operator.sandbox.rest_streams import Streams, status_of
from moe_operator.sandbox.rest_verbs import LogReader, LogRequest, Verbs, as_json
from moe_operator.sandbox.taken_port import PortTaken, holder_of

__all__ = ["Authenticate", "LogReader", "LogRequest", "PortTaken", "RestServer", "ServiceAccount"]

BOOKMARK_SECONDS = 30.0
_MAX_BODY = 3 * 1024 * 1024  # bytes, as the real server
_PROBES = ("/healthz", "/readyz", "/livez")
_log = logging.getLogger(__name__)

Authenticate = Callable[[str], ServiceAccount | None]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RestServer:
    """``authenticate`` knows the tokens of service accounts, ``logs`` reads a container's log."""

    def __init__(
        self,
        api: MemoryApi,
        *,
        admin_token: str = "",
        authenticate: Authenticate = lambda token: None,
        logs: LogReader | None = None,
        clock: Callable[[], float] = time.time,
        bookmark_seconds: float = BOOKMARK_SECONDS,
    ) -> None:
        self._api = api
        self._admin_token = admin_token
        self._authenticate = authenticate
        self._bookmark_seconds = bookmark_seconds
        self._streams = Streams()
        self._verbs = Verbs(api, self._streams, logs, clock)
        self._runner: web.AppRunner | None = None
        self._ticker: asyncio.Task[None] | None = None
        self.url = ""  # for service accounts; known once started

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 = any free one. PortTaken says who holds the address."""
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[_refusals, self._identified])
        # The prefix comes first: what follows it would also match the routes that end in anything.
        for prefix in (f"/{self._admin_token}", "") if self._admin_token else ("",):
            self._add_routes(app.router, prefix)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=5.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortTaken(host, port, holder_of(host, port)) from error
        self._runner = runner
        self._ticker = asyncio.create_task(self._send_bookmarks())
        self.url = f"http://{host}:{runner.addresses[0][1]}"

    def _add_routes(self, router: web.UrlDispatcher, prefix: str) -> None:
        documents = {
            "/version": lambda: discovery.VERSION,
            "/api": discovery.core_versions,
            "/apis": lambda: discovery.group_list(self._api.catalogue),
            "/openapi/v3": lambda: discovery.openapi_index(self._api.catalogue),
        }
        for path, document in documents.items():
            router.add_get(prefix + path, _static(document))
        router.add_get(prefix + "/{page:healthz|readyz|livez}", _healthy)
        router.add_get(prefix + "/{page:(?:apis?|openapi/v3)/.*}", self._get)
        router.add_route("*", prefix + "/{page:apis?/.*}", self._resource)
        router.add_route("*", prefix + "/{page:.*}", _nothing_here)

    async def close(self) -> None:
        """End all streams, then stop listening."""
        if self._runner is None or self._ticker is None:
            return
        self._ticker.cancel()
        with suppress(asyncio.CancelledError):
            await self._ticker
        self._streams.close()
        await self._runner.cleanup()
        self._runner = self._ticker = None

    async def __aenter__(self) -> RestServer:
        if self._runner is None:
            await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def write_kubeconfig(self, path: Path) -> None:
        """The administrator's kubeconfig, readable by its owner only."""
        write_kubeconfig(path, self.admin_url)

    @property
    def admin_url(self) -> str:
        """The URL under which one is the administrator; a secret like the token in it."""
        return f"{self.url}/{self._admin_token}".rstrip("/")

    async def _send_bookmarks(self) -> None:
        while True:
            await asyncio.sleep(self._bookmark_seconds)
            self._streams.bookmark()

    # Who asks

    @web.middleware
    async def _identified(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        self._account(request)
        return await handler(request)

    def _account(self, request: web.Request) -> ServiceAccount | None:
        """The service account that asks; None for the administrator, ApiError 401 for nobody."""
        token = request.headers.get("Authorization", "").partition(" ")[2]
        first = request.path.split("/")[1]
        if not self._admin_token or self._admin_token in (token, first) or request.path in _PROBES:
            return None
        account = self._authenticate(token) if token else None
        if account is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return account

    def _authorize(self, request: web.Request, target: Target, *, watching: bool) -> None:
        account = self._account(request)
        if account is None:
            return
        name = target.name or _named_field(request.query.get("fieldSelector", ""))
        kind, verb = target.resource.kind, target.verb(request.method, watching=watching)
        attempt = Attempt(verb, kind.group, target.path, target.namespace or "", name)
        if not allowed(self._api, account, attempt):
            why = (
                f'User "{account}" cannot {verb} resource "{target.path}" in API group "{kind.group}" in the '
                f'namespace "{attempt.namespace}"'
            )
            raise errors.forbidden(kind, name, why)

    # What is asked

    async def _get(self, request: web.Request) -> web.StreamResponse:
        """Documents of discovery, else a resource."""
        parts = request.match_info["page"].strip("/").split("/")
        resources = self._api.catalogue
        found: Obj | None = None
        match parts:
            case ["openapi", "v3", *rest]:
                found = discovery.openapi_document(resources, "/".join(rest))
            case ["apis", group]:
                found = discovery.group(resources, group)
            case ["api", version]:
                found = discovery.resource_list(resources, version)
            case ["apis", group, version]:
                found = discovery.resource_list(resources, f"{group}/{version}")
            case _:
                return await self._resource(request)
        if found is None:
            raise errors.no_such_resource()
        return as_json(found)

    async def _resource(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.match_info["page"].split("/") if part]
        depth = 2 if parts[0] == "api" else 3
        if len(parts) <= depth or request.method == "HEAD":
            raise errors.no_such_resource()
        target = target_of(self._api.catalogue, "/".join(parts[1:depth]), parts[depth:])
        watching = request.method == "GET" and request.query.get("watch") in ("1", "true")
        self._authorize(request, target, watching=watching)
        if request.query.get("dryRun"):
            raise errors.bad_request("dry runs are not served by the sandbox")
        if watching and not target.subresource:
            return await self._verbs.watch(request, target)
        action = _ACTIONS.get((request.method, bool(target.name), _door(target)))
        if action is None:
            raise ApiError(
                405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
            )
        return await action(self._verbs, request, target)


_Action = Callable[[Verbs, web.Request, Target], Awaitable[web.StreamResponse]]
_ACTIONS: Mapping[tuple[str, bool, str], _Action] = {  # (method, an object is named, its door)
    ("GET", False, ""): Verbs.list,
    ("POST", False, ""): Verbs.create,
    ("DELETE", False, ""): Verbs.delete_collection,
    ("GET", True, ""): Verbs.read,
    ("PUT", True, ""): Verbs.replace,
    ("PATCH", True, ""): Verbs.patch,
    ("DELETE", True, ""): Verbs.delete,
    ("GET", True, "status"): Verbs.read,
    ("PUT", True, "status"): Verbs.replace,
    ("PATCH", True, "status"): Verbs.patch,
    ("GET", True, "scale"): Verbs.read_scale,
    ("PUT", True, "scale"): Verbs.replace_scale,
    ("PATCH", True, "scale"): Verbs.patch_scale,
    ("GET", True, "log"): Verbs.log_of_pod,
    ("POST", True, "binding"): Verbs.bind,
}
_POD_DOORS = ("log", "binding")


def _door(target: Target) -> str:
    """The subresource, when the resource has it."""
    wanted, resource = target.subresource, target.resource
    there = (
        not wanted
        or (wanted == "status" and resource.has_status)
        or (wanted == "scale" and resource.scale is not None)
        or (wanted in _POD_DOORS and resource.kind == kube.POD)
    )
    if not there:
        raise errors.no_such_resource()
    return wanted


@web.middleware
async def _refusals(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Errors as Status objects."""
    try:
        return await handler(request)
    except ApiError as error:
        return as_json(status_of(error), status=error.status)
    except web.HTTPRequestEntityTooLarge as error:
        too_large = ApiError(413, "RequestEntityTooLarge", error.text or "the request is too large")
        return as_json(status_of(too_large), status=413)
    except (web.HTTPException, ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        _log.exception("request failed", extra={"fields": {"method": request.method, "path": request.path}})
        bug = ApiError(500, "InternalError", "the sandbox's API server failed; its log says how")
        return as_json(status_of(bug), status=500)


def _static(document: Callable[[], Obj]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(request: web.Request) -> web.StreamResponse:
        return as_json(document())

    return handler


async def _healthy(request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok")


async def _nothing_here(request: web.Request) -> web.StreamResponse:
    raise errors.no_such_resource()


def _named_field(selector: str) -> str:
    """The one name that a field selector admits."""
    return next((part[14:] for part in selector.split(",") if part.startswith("metadata.name=")), "")
