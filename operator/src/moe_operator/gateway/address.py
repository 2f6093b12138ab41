"""Where a socket listens or an interface answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Address:
    """A host, by name or IP, and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """``host:port`` or ``[v6]:port``; ValueError names what is wrong."""
        host, separator, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not separator or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(host, int(port))

    @property
    def envoy(self) -> dict[str, Any]:
        """As Envoy's ``core.v3.Address``."""
        return {"socket_address": {"address": self.host, "port_value": self.port}}

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
