"""The admin port: look at the stub and cure or break it while it "hangs"; never part of the engine's surface.

``GET /_stub/state`` · ``GET /_stub/faults`` · ``POST /_stub/faults`` (a list replaces, an object adds) ·
``DELETE /_stub/faults``.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Callable
from typing import Any

from .faults import MENU, Fault, Faults, parse_faults
from .http_server import Request, Response, Server, json_response


class Admin:
    """Serves the admin port. ``state`` is asked at each look."""

    def __init__(self, faults: Faults, state: Callable[[], dict[str, Any]]) -> None:
        self.faults = faults
        self.state = state
        self.server = Server(self._answer, lambda request, status: None, name="engine-stub")

    async def listen(self, host: str, port: int) -> None:
        """Open the port; OSError when it is taken."""
        await self.server.listen(bound_socket(host, port))

    async def _answer(self, request: Request) -> Response:
        match request.method, request.path:
            case "GET", "/_stub/state":
                return json_response(self.state())
            case "GET", "/_stub/faults":
                return json_response({"faults": [_shown(one) for one in self.faults.listed], "menu": MENU})
            case "POST", "/_stub/faults":
                return self._add(request.body)
            case "DELETE", "/_stub/faults":
                self.faults.replace(())
                return json_response({"faults": []})
        return json_response({"error": "not found"}, 404)

    def _add(self, body: bytes) -> Response:
        try:
            if body.lstrip().startswith(b"["):
                self.faults.replace(parse_faults(body))
            else:
                self.faults.replace((*self.faults.listed, Fault.parse(json.loads(body))))
        except ValueError as error:
            return json_response({"error": str(error)}, 400)
        return json_response({"faults": [_shown(one) for one in self.faults.listed]})


def bound_socket(host: str, port: int) -> socket.socket:
    """A TCP socket bound to an address but not listening yet, as uvicorn's callers make it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def _shown(fault: Fault) -> dict[str, Any]:
    value = dataclasses.asdict(fault)
    value["ranks"] = sorted(fault.ranks) if fault.ranks is not None else None
    value["counter_file"] = str(fault.counter_file) if fault.counter_file else None
    return value
