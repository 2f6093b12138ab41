"""A pod's volumes as directories of this machine.

hostPath lies under one directory per node, so that each node has its own disk; a claim is the directory
it was mapped to; what comes from the API (ConfigMap, Secret, downward API, token) is written as a kubelet
does: into a new directory that one rename makes current, so that a reader sees all of the old or all of
the new, never a mixture.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from moe_operator.api import names
from moe_operator.runtime.kube import CONFIG_MAP, SECRET, Kube, Obj
from moe_operator.sandbox.environment import ConfigMissing, PodFacts, field_value, read_data
from moe_operator.sandbox.objects import Key, key_of

FROM_API = ("configMap", "secret", "projected", "downwardAPI")
TOKEN_VOLUME = "kube-api-access"


class VolumeNotReady(Exception):
    """A volume cannot be mounted yet; the text is the kubelet's FailedMount."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where things lie on this machine."""

    pod: Path
    node: Path
    claims: Mapping[Key, Path]
    token: str


class Volumes:
    """The volumes of one pod."""

    def __init__(self, pod: Obj, roots: Roots, kube: Kube, facts: PodFacts) -> None:
        self._pod = pod
        self._roots = roots
        self._kube = kube
        self._facts = facts
        self._by_name = {v["name"]: v for v in pod["spec"].get("volumes") or ()}

    async def prepare(self) -> None:
        """Make every volume; VolumeNotReady names the first that cannot be."""
        for name, volume in self._by_name.items():
            try:
                await self._make(name, volume)
            except ConfigMissing as error:
                raise VolumeNotReady(f'MountVolume.SetUp failed for volume "{name}" : {error}') from error
        if self._mounts_token():
            write_atomically(self._directory(TOKEN_VOLUME), self._token_files())

    async def refresh(self) -> None:
        """Write anew what comes from the API and has changed; what vanished stays as it was."""
        for name, volume in self._by_name.items():
            if any(source in volume for source in FROM_API):
                try:
                    await self._make(name, volume)
                except ConfigMissing:
                    continue  # as a kubelet: mounted files outlive their object

    def mounts(self, container: Obj) -> dict[str, str]:
        """Container path → path of this machine."""
        result = {}
        for mount in container.get("volumeMounts") or ():
            source = self._path(mount["name"]) / (mount.get("subPath") or "")
            result[mount["mountPath"].rstrip("/")] = str(source).rstrip("/")
        if self._mounts_token():
            result.setdefault(names.PATH_SERVICE_ACCOUNT, str(self._directory(TOKEN_VOLUME)))
        return result

    def _mounts_token(self) -> bool:
        return self._pod["spec"].get("automountServiceAccountToken") is not False

    def _directory(self, name: str) -> Path:
        return self._roots.pod / "volumes" / name

    def _path(self, name: str) -> Path:
        volume = self._by_name[name]
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return self._claim(volume)
        return self._directory(name)

    def _host_path(self, source: Obj) -> Path:
        return self._roots.node / str(source["path"]).lstrip("/")

    def _claim(self, volume: Obj) -> Path:
        key = Key(key_of(self._pod).namespace, volume["persistentVolumeClaim"]["claimName"])
        if key not in self._roots.claims:
            raise VolumeNotReady(
                f'claim "{key}" has no directory here; map it with --claim {key.name}=DIRECTORY'
            )
        return self._roots.claims[key]

    async def _make(self, name: str, volume: Obj) -> None:
        if "hostPath" in volume:
            _check_host_path(self._host_path(volume["hostPath"]), volume["hostPath"])
        elif "persistentVolumeClaim" in volume:
            if not self._claim(volume).is_dir():
                raise VolumeNotReady(f"{self._claim(volume)} is not a directory")
        elif "emptyDir" in volume:
            self._directory(name).mkdir(parents=True, exist_ok=True)
        elif any(source in volume for source in FROM_API):
            write_atomically(self._directory(name), await self._files(volume))
        else:
            kinds = ", ".join(sorted(volume.keys() - {"name"}))
            raise VolumeNotReady(f'volume "{name}": {kinds} does not exist in a sandbox')

    async def _files(self, volume: Obj) -> dict[str, bytes]:
        namespace = key_of(self._pod).namespace
        if "configMap" in volume:
            source = volume["configMap"]
            return _chosen(await read_data(self._kube, CONFIG_MAP, namespace, source), source)
        if "secret" in volume:
            source = volume["secret"]
            return _chosen(await read_data(self._kube, SECRET, namespace, source), source)
        if "downwardAPI" in volume:
            return {
                item["path"]: field_value(self._pod, item["fieldRef"]["fieldPath"], self._facts).encode()
                for item in volume["downwardAPI"].get("items") or ()
            }
        if "serviceAccountToken" in volume:
            return {volume["serviceAccountToken"]["path"]: self._roots.token.encode()}
        files: dict[str, bytes] = {}
        for part in volume["projected"]["sources"]:
            files |= await self._files(part)
        return files

    def _token_files(self) -> dict[str, bytes]:
        namespace = key_of(self._pod).namespace
        return {"token": self._roots.token.encode(), "namespace": namespace.encode()}


def _chosen(data: dict[str, bytes], source: Obj) -> dict[str, bytes]:
    """All keys under their own names, or those of ``items`` under theirs."""
    if not source.get("items"):
        return data
    missing = [i["key"] for i in source["items"] if i["key"] not in data]
    if missing and not source.get("optional"):
        raise ConfigMissing(f"references non-existent config key: {missing[0]}")
    return {i["path"]: data[i["key"]] for i in source["items"] if i["key"] in data}


def _check_host_path(path: Path, source: Obj) -> None:
    kind, shown = source.get("type") or "", source["path"]
    if kind in {"", "DirectoryOrCreate"}:
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    elif kind == "Directory" and not path.is_dir():
        raise VolumeNotReady(f"hostPath type check failed: {shown} is not a directory")
    elif kind == "File" and not path.is_file():
        raise VolumeNotReady(f"hostPath type check failed: {shown} is not a file")


def write_atomically(directory: Path, files: Mapping[str, bytes]) -> None:
    """Make ``directory`` show ``files``, all at once; nothing is touched when it does already.

    Layout of a kubelet: ``..data`` → ``..0001/``, and for each top name a link through ``..data``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    current = directory / "..data"
    if current.exists() and _read(current) == dict(files):
        return
    fresh = next(p for n in count(1) if not (p := directory / f"..{n:04d}").exists())
    for name, content in files.items():
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        (fresh / name).write_bytes(content)
    fresh.mkdir(exist_ok=True)
    old = current.resolve() if current.exists() else None
    swap = directory / "..data_tmp"
    swap.symlink_to(fresh.name)
    swap.rename(current)
    tops = {name.split("/")[0] for name in files}
    for link in directory.iterdir():
        if not link.name.startswith("..") and link.name not in tops:
            link.unlink()
    for top in tops:
        if not (directory / top).is_symlink():
            (directory / top).symlink_to(f"..data/{top}")
    if old:
        shutil.rmtree(old)


def _read(link: Path) -> dict[str, bytes]:
    directory = link.resolve()
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
