"""Which hosts a stager may talk to.

Rules: with an allow-list, no host that is not on it, at any hop; TLS always, and no loopback, link-local or
metadata address, except for hosts the admin named. Addresses are judged after name resolution and the
connection goes to the very address that was judged, so a name cannot point elsewhere a moment later.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from moe_operator.api.manifest import StageExit
from moe_operator.staging.failure import StageError, Transient

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# Metadata services outside the link-local range, from the clouds' own documentation.
METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure host agent
        "192.0.0.192",  # Oracle Cloud
        "fd00:ec2::254",  # AWS over IPv6
        "fd20:ce::254",  # Google Cloud over IPv6
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_USER = re.compile(r"//[^/]*@")
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Target:
    """Where one request goes."""

    scheme: str
    host: str
    port: int
    path: str  # path and query, as sent

    @property
    def origin(self) -> tuple[str, str, int]:
        """Credentials never leave this."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        # Queries carry signatures: they are never shown.
        return f"{self.scheme}://{self.authority}{self.path.partition('?')[0]}"


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """``named`` holds the admin's exceptions as HOST or HOST:PORT, ``only`` the allow-list (``*.`` for any
    subdomain; empty = any host), all in lower case."""

    named: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()

    @classmethod
    def of(cls, named: Iterable[str], only: Iterable[str] = ()) -> HostPolicy:
        """Build from what was given on the command line."""
        bare = (text.strip().lower().replace("[", "").replace("]", "") for text in named)
        return cls(frozenset(bare), tuple(text.strip().lower() for text in only))

    def lists(self, host: str, port: int) -> bool:
        """Whether the allow-list has this host; a host named as an exception is on it."""
        return not self.only or self.excepts(host, port) or any(_fits(host, pattern) for pattern in self.only)

    def names(self, host: str) -> bool:
        """Whether the admin wrote this very host into a list, not only a pattern that fits it."""
        return host in self.only or any(text.partition(":")[0] == host for text in self.named)

    def excepts(self, host: str, port: int) -> bool:
        """Whether the admin named this host."""
        return host in self.named or f"{host}:{port}" in self.named

    def target(self, url: str) -> Target:
        """Judge a URL; BAD_MANIFEST when it may not be asked."""
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as fault:
            raise _refused(url, str(fault)) from fault
        host = (parts.hostname or "").lower()
        if parts.scheme not in _PORTS or not host:
            raise _refused(url, "only https:// is spoken")
        if parts.username is not None or parts.password is not None:
            raise _refused(url, "credentials do not belong in a URL; use --credentials-dir")
        if not self.lists(host, port):
            raise _refused(url, f"{host} is not on the list of allowed hosts ({', '.join(self.only)})")
        if parts.scheme == "http" and not self.excepts(host, port):
            raise _refused(
                url, f"plain http is spoken only to hosts named by --allow-http-host {host}:{port}"
            )
        return Target(parts.scheme, host, port, urlunsplit(("", "", parts.path or "/", parts.query, "")))

    def addresses(self, target: Target) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
        """Resolve a host; refuse it when any of its addresses is forbidden."""
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as fault:
            raise Transient(
                "dns", f"{target.host} cannot be resolved: {fault}", hint="check the host name and DNS"
            ) from fault
        if not self.excepts(target.host, target.port):
            for _family, _type, _proto, _name, address in found:
                if (why := forbidden(str(address[0]))) is not None:
                    raise _refused(
                        str(target),
                        f"{address[0]} is {why}; --allow-http-host {target.host}:{target.port} permits it",
                    )
        return [(family, address) for family, _type, _proto, _name, address in found]


def _fits(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def forbidden(text: str) -> str | None:
    """Why an address may not be asked, None when it may."""
    address = _embedded(ipaddress.ip_address(text.partition("%")[0]))
    reasons = (
        (address.is_loopback, "a loopback address"),
        (address.is_link_local, "a link-local address"),
        (address.is_unspecified, "the unspecified address"),
        (address.is_multicast, "a multicast address"),
        (address in METADATA, "a cloud's metadata address"),
    )
    return next((why for holds, why in reasons if holds), None)


def _embedded(address: IPAddress) -> IPAddress:
    """The IPv4 address that an IPv6 spelling stands for."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def shown(url: str) -> str:
    """A URL as it may be shown: without user, password and query."""
    return _USER.sub("//", url.partition("?")[0])[:300]


def _refused(url: str, why: str) -> StageError:
    return StageError(StageExit.BAD_MANIFEST, f"{shown(url)} is refused: {why}")
