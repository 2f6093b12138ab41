"""Re-pack a checkpoint into common files and groups of experts: ``moestage slice``.

One pass: every source file is read once, front to back, hashed on the way and scattered to where its
tensors go; memory is one buffer per thread. Crash safety: the result is made in a hidden directory beside
the target and appears there by one rename; a source file counts as done only after what it wrote was forced
to disk, so a restart goes on with the first file that was not. Every file written is read again for its
digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_operator.api.manifest import SHARD_SUFFIX, ManifestFile, StageExit
from moe_operator.staging.checksums import LIST_BYTES, parse_checksums
from moe_operator.staging.digest import file_sha256
from moe_operator.staging.directory import DirectorySource
from moe_operator.staging.durable import sync_dir, write_all, write_atomic, write_new
from moe_operator.staging.failure import StageError, store_faults
from moe_operator.staging.progress import Progress
from moe_operator.staging.selection import CHECKSUM_LISTS, INDEX, model_files
from moe_operator.staging.slice_plan import SlicePlan, Tensor, plan_slices, tensors_of
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import VIEW_FILE
from moe_operator.staging.weights import LENGTH_BYTES, header_length, parse_header, parse_index, parse_object
from moe_operator.staging.workers import for_each

READ_BYTES = 1 << 20
SHARD_BYTES = 16 << 30
SMALL_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class SliceOptions:
    """``groups`` of experts, at most ``shard_bytes`` of tensors per file, ``reserve`` bytes left free."""

    groups: int
    shard_bytes: int = SHARD_BYTES
    threads: int = 2
    reserve: int = 0


def slice_model(model: Path, out: Path, options: SliceOptions, progress: Progress, stop: Stop) -> Path:
    """Write the sliced model to ``out``; a finished one of the same plan is left as it is."""
    source = DirectorySource(model.absolute().as_uri())
    progress.enter("Pending", f"reading headers of {model}")
    entries = source.list().entries
    shards = _shards(source, entries)
    tensors = [tensor for shard in shards for tensor in _tensors(source, shard)]
    plan = plan_slices(tensors, options.groups, options.shard_bytes)
    others = [p for p in model_files(entries, (), trust_remote_code=True) if p != INDEX]
    with store_faults(out.parent):
        if _is_finished(out, plan):
            progress.enter("Ready", "it was sliced already")
            return out
        work = _Work(source, _digests(source, entries, model), plan, out, progress, stop)
        work.prepare(options.reserve)
        work.scatter(shards, entries, options.threads)
        work.finish(others, options.threads)
    progress.enter("Ready")
    return out


class _Work:
    """One result in the making."""

    def __init__(
        self,
        source: DirectorySource,
        digests: Mapping[str, str],
        plan: SlicePlan,
        out: Path,
        progress: Progress,
        stop: Stop,
    ) -> None:
        self._source = source
        self._digests = digests
        self._plan = plan
        self._out = out
        self._progress = progress
        self._stop = stop
        self._at = out.with_name(f".{out.name}.slicing")
        self._done_file = self._at / ".done"
        self._lock = threading.Lock()

    def prepare(self, reserve: int) -> None:
        """Make the files at their full length, or find those of an interrupted run of the same plan."""
        if self._out.exists() and any(self._out.iterdir()):
            raise StageError(
                StageExit.LAYOUT_INCOMPATIBLE,
                f"{self._out} is not empty and not this result",
                hint="give --out a new directory",
            )
        mark = self._at / ".plan"
        if self._at.exists() and (not mark.exists() or mark.read_text() != self._plan.digest):
            shutil.rmtree(self._at)
        self._at.mkdir(parents=True, exist_ok=True)
        held = sum(path.stat().st_blocks * 512 for path in self._at.iterdir())
        disk = os.statvfs(self._at)
        free, missing = disk.f_bavail * disk.f_frsize, max(self._plan.total_bytes - held, 0)
        if missing + reserve > free:
            raise StageError(
                StageExit.INSUFFICIENT_DISK,
                f"{self._out.parent} has {free} bytes free, {missing + reserve - free} too few",
                expected=f"{missing} bytes to write + {reserve} bytes in reserve",
                actual=f"{free} bytes free",
                hint="a sliced copy is as large as the model",
            )
        for file in self._plan.files:
            path = self._at / file.name
            if not path.exists() or path.stat().st_size != file.size:
                path.write_bytes(file.header)
                with path.open("r+b") as made:
                    os.posix_fallocate(made.fileno(), 0, file.size)
                    os.fdatasync(made.fileno())
        if not mark.exists():
            write_atomic(mark, self._plan.digest.encode())

    def scatter(self, shards: list[str], entries: Mapping[str, Any], threads: int) -> None:
        """Bring the tensors of every source file to their places."""
        done = self._done()
        self._progress.expect(sum(entries[shard].size or 0 for shard in shards))
        self._progress.reuse(sum(entries[shard].size or 0 for shard in shards if shard in done))
        self._progress.enter("Pulling")
        targets: dict[str, list[tuple[int, int, int, str]]] = {shard: [] for shard in shards}
        for file in self._plan.files:
            for tensor, at in file.tensors:
                if tensor.length:
                    targets[tensor.path].append((tensor.begin, tensor.length, at, file.name))
        with ExitStack() as files:
            fds = {}
            for file in self._plan.files:
                fds[file.name] = os.open(self._at / file.name, os.O_WRONLY | os.O_NOFOLLOW)
                files.callback(os.close, fds[file.name])

            def one(shard: str) -> None:
                self._scatter_one(shard, sorted(targets[shard]), fds)

            for_each([shard for shard in shards if shard not in done], one, threads, self._stop)

    def _scatter_one(self, shard: str, targets: list[tuple[int, int, int, str]], fds: dict[str, int]) -> None:
        sha256, buffer, position, turn = hashlib.sha256(), memoryview(bytearray(READ_BYTES)), 0, 0
        touched: set[str] = set()
        with closing(self._source.open(shard)) as stream:
            while count := stream.readinto(buffer):
                self._stop.check()
                sha256.update(buffer[:count])
                while turn < len(targets) and targets[turn][0] < position + count:
                    begin, length, at, name = targets[turn]
                    start, end = max(begin, position), min(begin + length, position + count)
                    write_all(fds[name], buffer[start - position : end - position], at + start - begin)
                    touched.add(name)
                    if begin + length > position + count:
                        break  # the rest of this tensor is in the next chunk
                    turn += 1
                position += count
                self._progress.receive(count)
        if turn < len(targets):
            raise _differs(shard, f"{targets[-1][0] + targets[-1][1]} bytes", f"{position} bytes")
        if self._digests.get(shard, sha256.hexdigest()) != sha256.hexdigest():
            raise _differs(shard, self._digests[shard], sha256.hexdigest())
        for name in touched:
            os.fdatasync(fds[name])
            os.posix_fadvise(fds[name], 0, 0, os.POSIX_FADV_DONTNEED)
        with self._lock, self._done_file.open("a") as done:
            done.write(shard + "\n")
            done.flush()
            os.fdatasync(done.fileno())

    def finish(self, others: list[str], threads: int) -> None:
        """Add the small files, the index and the checksum list, then let the directory appear."""
        self._progress.enter("Verifying", "hashing what was written")
        digests: dict[str, ManifestFile] = {}

        def prove(file: Any) -> None:
            sha256 = file_sha256(self._at / file.name, self._stop)
            digests[file.name] = ManifestFile(path=file.name, size=file.size, sha256=sha256)

        for_each(self._plan.files, prove, threads, self._stop)
        for path in others:
            digests[path] = self._write(path, _small(self._source, path), self._digests.get(path))
        digests[INDEX] = self._write(INDEX, self._plan.index(), None)
        self._progress.enter("Publishing")
        _write_over(self._at / CHECKSUM_LISTS[0], _checksum_list(self._plan, digests))
        self._done_file.unlink()
        (self._at / ".plan").unlink()
        for directory in [p for p in self._at.rglob("*") if p.is_dir()] + [self._at]:
            sync_dir(directory)
        if self._out.exists():
            self._out.rmdir()
        self._at.rename(self._out)
        sync_dir(self._out.parent)

    def _write(self, path: str, data: bytes, expected: str | None) -> ManifestFile:
        sha256 = hashlib.sha256(data).hexdigest()
        if expected not in (None, sha256):
            raise _differs(path, str(expected), sha256)
        (self._at / path).parent.mkdir(parents=True, exist_ok=True)
        _write_over(self._at / path, data)
        return ManifestFile(path=path, size=len(data), sha256=sha256)

    def _done(self) -> set[str]:
        try:
            lines = self._done_file.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return set()
        return {line.rstrip("\n") for line in lines if line.endswith("\n")}


def _shards(source: DirectorySource, entries: Mapping[str, Any]) -> list[str]:
    named = parse_index(_small(source, INDEX)).shards if INDEX in entries else None
    missing = sorted((named or frozenset()) - set(entries))
    if missing:
        raise StageError(StageExit.NOT_FOUND, f"{missing[0]} is named by {INDEX} but absent", file=missing[0])
    return [p for p in model_files(entries, named, trust_remote_code=False) if p.endswith(SHARD_SUFFIX)]


def _tensors(source: DirectorySource, shard: str) -> list[Tensor]:
    with closing(source.open(shard)) as stream:
        length = header_length(_exactly(stream, LENGTH_BYTES), shard)
        raw = _exactly(stream, length)
        if parse_header(raw, shard).file_bytes != stream.total:
            raise _differs(shard, f"{parse_header(raw, shard).file_bytes} bytes", f"{stream.total} bytes")
    return tensors_of(shard, parse_object(raw, shard), LENGTH_BYTES + length)


def _digests(source: DirectorySource, entries: Mapping[str, Any], model: Path) -> dict[str, str]:
    """What the model's own list, or the view's description, says the files are."""
    for name in CHECKSUM_LISTS:
        if name in entries:
            listed = parse_checksums(_small(source, name, LIST_BYTES), name)
            return {path: entry.sha256 for path, entry in listed.items() if entry.sha256}
    try:
        described = json.loads((model / VIEW_FILE).read_bytes())
        return {str(file["path"]): str(file["sha256"]) for file in described["files"]}
    except FileNotFoundError:
        return {}


def _small(source: DirectorySource, path: str, limit: int = SMALL_BYTES) -> bytes:
    with closing(source.open(path)) as stream:
        if stream.total is None or stream.total > limit:
            raise StageError(StageExit.BAD_MANIFEST, f"{path} is implausibly large", file=path)
        return _exactly(stream, stream.total)


def _exactly(stream: Any, count: int) -> bytes:
    data = bytearray(count)
    view, at = memoryview(data), 0
    while at < count and (read := stream.readinto(view[at:])):
        at += read
    return bytes(data[:at])


def _is_finished(out: Path, plan: SlicePlan) -> bool:
    try:
        said = json.loads((out / CHECKSUM_LISTS[0]).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(said, dict) and said.get("plan") == plan.digest


def _checksum_list(plan: SlicePlan, files: Mapping[str, ManifestFile]) -> bytes:
    listed = [files[path].model_dump(by_alias=True) for path in sorted(files)]
    groups = {"experts": plan.experts, "slices": plan.groups}
    return json.dumps({"plan": plan.digest, "groups": groups, "files": listed}, indent=1).encode()


def _write_over(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    write_new(path, data)


def _differs(path: str, expected: str, actual: str) -> StageError:
    return StageError(
        StageExit.CHECKSUM_MISMATCH,
        f"{path} is not the file it should be",
        file=path,
        expected=expected,
        actual=actual,
        hint="the model on this disk is damaged; pull it again",
    )
