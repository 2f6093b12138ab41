"""What a container's text becomes on a machine without namespaces (docs/interfaces.md, "The sandbox").

First ``$(VAR)`` is expanded as a kubelet does; then, in one pass over what the container would have
seen, mount paths become directories of this machine, a pod's own hosts become its address, and cluster
names become addresses. One pass: what a replacement brought in is never replaced again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

OWN_HOSTS = ("0.0.0.0", "127.0.0.1", "localhost")

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_CLUSTER_NAME = rf"(?:{_LABEL}\.){{2,3}}svc(?:\.cluster\.local)?\.?"
_HOST = rf"(?<![\w.-])(?P<host>{'|'.join(map(re.escape, OWN_HOSTS))}|{_CLUSTER_NAME})(?![\w-]|\.\w)"


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand ``$(VAR)``; ``$$`` is one ``$`` and a variable that is not defined stays as written."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else variables.get(name, match.group(0))

    return _REFERENCE.sub(value, text)


@dataclass(frozen=True, slots=True)
class Rewriter:
    """The rewriting rules of one container.

    ``mounts`` maps container paths to paths of this machine; ``resolve`` maps a name below ``.svc``
    (as labels, e.g. ``("pod-0", "group", "default")``) to an address, None when nothing has that name.
    """

    pod_ip: str
    mounts: Mapping[str, str] = field(default_factory=dict)
    resolve: Callable[[tuple[str, ...]], str | None] = lambda _: None

    def text(self, text: str) -> str:
        """``text`` as a process on this machine must see it."""
        return self._pattern().sub(self._replacement, text)

    def argv(self, words: Sequence[str]) -> list[str]:
        """Every word of a command line."""
        return [self.text(word) for word in words]

    def path(self, container_path: str) -> str | None:
        """Where a path of the container lies on this machine; None outside every mount."""
        for mount in sorted(self.mounts, key=len, reverse=True):
            if container_path == mount or container_path.startswith(f"{mount.rstrip('/')}/"):
                return self.mounts[mount] + container_path[len(mount.rstrip("/")) :]
        return None

    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.mounts, key=len, reverse=True)
        paths = "|".join(re.escape(mount) for mount in longest_first)
        # A path starts a word or follows the authority of a file URL; it ends at a path boundary.
        path = rf"(?:(?<=file://)|(?<![\w./-]))(?P<path>{paths})(?![\w.-])|" if paths else ""
        return re.compile(path + _HOST)

    def _replacement(self, match: re.Match[str]) -> str:
        groups = match.groupdict()
        if groups.get("path"):
            return self.mounts[groups["path"]]
        host = groups["host"]
        if host in OWN_HOSTS:
            return self.pod_ip
        labels = host.rstrip(".").removesuffix(".cluster.local").removesuffix(".svc").split(".")
        return self.resolve(tuple(labels)) or host
