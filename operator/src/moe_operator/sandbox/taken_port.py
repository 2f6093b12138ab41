"""Who holds a port: the text of a clear error instead of ``EADDRINUSE``.

A listener on ``0.0.0.0`` takes its port on every loopback address, so a server of the user's own can be
in a pod's way. The holder is read from /proc; processes of other users cannot be told by name.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

LISTEN = "0A"  # include/net/tcp_states.h


@dataclass(frozen=True, slots=True)
class Holder:
    """A listening socket, and its process where this user may see it."""

    address: str
    port: int
    pid: int | None
    command: str

    def __str__(self) -> str:
        who = f"{self.command} (pid {self.pid})" if self.pid else "a process of another user"
        return f"{who}, listening on {self.address}:{self.port}"


class PortTaken(Exception):
    """An address that is needed cannot be bound; the message says who holds it and what to do."""

    def __init__(self, address: str, port: int, holder: Holder | None) -> None:
        who = str(holder) if holder else "another process"
        super().__init__(
            f"{address}:{port} is taken by {who}. Stop it or let it listen on one address only, "
            "then this is tried again."
        )
        self.holder = holder


def is_taken(address: str, port: int) -> bool:
    """Whether nothing could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False


def holder_of(address: str, port: int) -> Holder | None:
    """The socket that listens on ``address:port`` or on that port of every address."""
    for found, inode in _listeners(port):
        if found in {address, "0.0.0.0", "::"}:
            pid = _process_with_socket(inode)
            return Holder(found, port, pid, _command(pid) if pid else "")
    return None


def _listeners(port: int) -> list[tuple[str, str]]:
    """(address, inode) of every TCP listener on ``port``."""
    found = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue  # a kernel without IPv6
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            host, _, hex_port = fields[1].partition(":")
            if fields[3] == LISTEN and int(hex_port, 16) == port:
                found.append((_address(host), fields[9]))
    return found


def _address(hexadecimal: str) -> str:
    if len(hexadecimal) > 8:
        return "::" if set(hexadecimal) == {"0"} else hexadecimal
    return socket.inet_ntoa(int(hexadecimal, 16).to_bytes(4, "little"))


def _process_with_socket(inode: str) -> int | None:
    wanted = f"socket:[{inode}]"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) == wanted for fd in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:
            continue  # ended meanwhile, or of another user
    return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return "a process that just ended"
