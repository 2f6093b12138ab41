"""What Docker leaves on the host when it is killed, and how to take it away.

Only marks that Docker alone makes are touched: chains called DOCKER*, rules that jump to them or name one of
its bridges, the bridges docker0 and br-<12 hex digits>, and mounts in its own folders. Never to be done while
a daemon lives.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_BRIDGE = r"(?:docker0|br-[0-9a-f]{12})"
_CHAIN = r"DOCKER[A-Z0-9-]*"
_DATA = "/var/lib/docker"
_OURS = re.compile(rf"-[io] {_BRIDGE}\b|-j {_CHAIN}(?:\s|$)|^-A {_CHAIN}\b")


def rule_removals(iptables_save: str) -> list[list[str]]:
    """iptables arguments that take Docker's rules out of a saved table: rules first, then emptied chains."""
    rules: list[list[str]] = []
    chains: list[list[str]] = []
    table = ""
    for line in iptables_save.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif match := re.match(rf":({_CHAIN}) ", line):
            chains.append(["-t", table, "-X", match[1]])
        elif line.startswith("-A") and _OURS.search(line):
            rules.append(["-t", table, "-D", *shlex.split(line)[1:]])
    return rules + chains


def leftover_bridges(interface_names: Iterable[str]) -> list[str]:
    """Docker's bridges among the host's interfaces."""
    return sorted(name for name in interface_names if re.fullmatch(_BRIDGE, name))


def mount_points(mountinfo: str) -> list[str]:
    """Docker's mounts, the innermost first.

    Docker also mounts its data folder on itself. A disk of its own at the same place is somebody's and stays:
    its mount shows the root of a file system, while a folder that is mounted on itself shows that folder.
    """
    places = [line.split()[3:5] for line in mountinfo.splitlines()]
    ours = [
        point
        for shown, point in places
        if point.startswith(("/run/docker/netns/", f"{_DATA}/")) or (point == _DATA and shown != "/")
    ]
    return ours[::-1]


def policy(iptables_save: str, chain: str) -> str:
    """The filter table's policy of a chain, ACCEPT or DROP; ACCEPT when the chain is not listed."""
    filter_table = iptables_save.partition("*filter\n")[2].partition("COMMIT")[0]
    found = re.search(rf"^:{chain} (\w+)", filter_table, re.MULTILINE)
    return found[1] if found else "ACCEPT"
