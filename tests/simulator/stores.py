"""The disks of all nodes: which files are on them, and where those came from.

A disk belongs to a node's UID: a node that comes back under its old name with another UID has an empty one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from moe_operator.api.manifest import Manifest, ManifestFile, select_files, view_digest
from moe_operator.resources.manifest_config_map import manifest_of
from moe_operator.runtime.kube import CONFIG_MAP, NODE
from moe_operator.sandbox.api import MemoryApi

Obj = dict[str, Any]


@dataclass
class Disk:
    blobs: dict[str, int] = field(default_factory=dict)  # sha256 → size
    views: dict[str, set[str]] = field(default_factory=dict)  # digest → blobs
    rotten: set[str] = field(default_factory=set)  # blobs whose bytes the disk has altered
    aside: dict[str, int] = field(default_factory=dict)  # blobs that a scrub put away → size

    @property
    def used(self) -> int:
        return sum(self.blobs.values())


@dataclass
class NodeStores:
    api: MemoryApi
    disks: dict[str, Disk] = field(default_factory=dict)  # node UID → disk
    capacity: dict[str, int] = field(default_factory=dict)  # node → bytes; absent = enough
    unmounted: set[str] = field(default_factory=set)  # nodes whose store is not there
    origin: Counter[str] = field(default_factory=Counter)  # source → bytes that were read from it
    from_peers: int = 0
    late: list[str] = field(default_factory=list)  # engine pods whose own stager had to pull
    scrubbed: list[tuple[str, str]] = field(default_factory=list)  # node that was read, and when
    fetched: dict[str, list[int]] = field(default_factory=dict)  # pod UID → bytes it got, those from peers

    def disk(self, node: str) -> Disk:
        uid = self.api.get(NODE, None, node)["metadata"]["uid"]
        return self.disks.setdefault(uid, Disk())

    def pull(self, pod: Obj, container: Obj, peers: Iterable[str], share: float = 1.0) -> Obj:
        """What ``moestage pull`` leaves in its termination log; ``peers``: nodes whose servers it may ask.

        With a ``share`` below 1 it is not done yet: so much of its files is there, and no view.
        """
        node = pod["spec"]["nodeName"]
        if node in self.unmounted:
            return {"code": 21, "reason": "STORE_UNUSABLE", "message": "no STORE_ID: is the disk mounted?"}
        manifest, files = self._wanted(pod, container["args"])
        disk = self.disk(node)
        blobs = {f.sha256: f.size for f in files}
        missing = {sha: size for sha, size in blobs.items() if sha not in disk.blobs}
        need, room = sum(missing.values()), self.capacity.get(node)
        if room is not None and need > room - disk.used:
            short = need - (room - disk.used)
            return {
                "code": 20,
                "reason": "INSUFFICIENT_DISK",
                "message": f"{short} bytes too few",
                "bytes_done": 0,
            }
        held = [self.disk(peer) for peer in peers]
        due = {f.sha256: f.size for f in files[: int(share * len(files))] if f.sha256 in missing}
        handed = sum(size for sha, size in due.items() if any(sha in other.blobs for other in held))
        self.from_peers += handed
        self.origin[manifest.source] += sum(due.values()) - handed
        disk.blobs |= due
        own = self.fetched.setdefault(pod["metadata"]["uid"], [0, 0])
        own[:] = own[0] + sum(due.values()), own[1] + handed
        if share >= 1.0:
            disk.views[view_digest(files)] = set(blobs)
        total = sum(blobs.values())
        return {
            "code": 0,
            "reason": "OK",
            "bytesDone": total,
            "bytesTotal": total,
            "bytesReused": total - own[0],
            "bytesFromPeers": own[1],
        }

    def free(self, pod: Obj, keep: Collection[str]) -> Obj:
        """What ``moestage gc`` leaves in its termination log."""
        node = pod["spec"]["nodeName"]
        if node in self.unmounted:
            return {"code": 21, "reason": "STORE_UNUSABLE", "message": "no STORE_ID: is the disk mounted?"}
        disk = self.disk(node)
        disk.views = {view: blobs for view, blobs in disk.views.items() if view in keep}
        needed = {sha for blobs in disk.views.values() for sha in blobs}
        disk.blobs = {sha: size for sha, size in disk.blobs.items() if sha in needed}
        return {"code": 0, "reason": "OK"}

    def scrub(self, pod: Obj) -> Obj:
        """What ``moestage scrub`` leaves in its termination log."""
        node = pod["spec"]["nodeName"]
        if node in self.unmounted:
            return {"code": 21, "reason": "STORE_UNUSABLE", "message": "no STORE_ID: is the disk mounted?"}
        self.scrubbed.append((node, self.api.now()))
        disk = self.disk(node)
        disk.aside |= {sha: disk.blobs.pop(sha) for sha in disk.rotten & disk.blobs.keys()}
        disk.rotten.clear()
        needed = {sha for blobs in disk.views.values() for sha in blobs}
        corrupt = {sha: size for sha, size in disk.aside.items() if sha in needed - disk.blobs.keys()}
        if not corrupt:
            return {"code": 0, "reason": "OK"}
        return {
            "code": 30,
            "reason": "CHECKSUM_MISMATCH",
            "message": f"{len(corrupt)} blobs are corrupt",
            "corrupt": sorted(corrupt),
            "bytesCorrupt": sum(corrupt.values()),
        }

    def _wanted(self, pod: Obj, args: list[str]) -> tuple[Manifest, list[ManifestFile]]:
        volume = next(v for v in pod["spec"]["volumes"] if v["name"] == "manifest")
        config_map = self.api.get(CONFIG_MAP, pod["metadata"]["namespace"], volume["configMap"]["name"])
        manifest = manifest_of(config_map)
        return manifest, select_files(manifest.files, values_of(args, "--only"))


def values_of(args: list[str], flag: str) -> list[str]:
    return [args[i + 1] for i, arg in enumerate(args) if arg == flag]
