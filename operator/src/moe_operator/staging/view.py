"""A view: one model's files as an engine wants to see them, made of hard links to blobs.

Invariants: a view appears by one rename, complete and verified, or not at all. Every file of a view is
the very inode that was verified under its digest. A damaged view is mended file by file, each by one
rename, so an engine that reads it never finds a name missing. A view is named after the files at the
source; a partial one holds a filtered index in the place of the publisher's.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moe_operator.api.manifest import ManifestFile, StageExit, view_digest
from moe_operator.staging.digest import file_sha256
from moe_operator.staging.durable import sync_dir, write_atomic, write_new
from moe_operator.staging.failure import StageError
from moe_operator.staging.filtered_index import PUBLISHERS_INDEX
from moe_operator.staging.selection import INDEX
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import VIEW_FILE, Identity, Store


@dataclass(frozen=True, slots=True)
class View:
    """What a view holds. ``index`` is the filtered index of a partial view, None where there is none."""

    source: str
    resolved: str
    files: tuple[ManifestFile, ...]  # at the source
    index: ManifestFile | None = None

    @property
    def digest(self) -> str:
        """The view's name."""
        return view_digest(self.files)

    @property
    def links(self) -> tuple[ManifestFile, ...]:
        """The files of the directory, each a link to the blob of its digest."""
        if self.index is None:
            return self.files
        kept = (
            file.model_copy(update={"path": PUBLISHERS_INDEX}) if file.path == INDEX else file
            for file in self.files
        )
        return (*kept, self.index)

    def described(self) -> bytes:
        """What ``.moe-view.json`` says."""
        described = {
            "schema": "moe.view/v1",
            "viewDigest": self.digest,
            "source": self.source,
            "resolved": self.resolved,
            "files": [file.model_dump(by_alias=True) for file in self.files],
            "filteredIndex": None if self.index is None else self.index.model_dump(by_alias=True),
        }
        return json.dumps(described, indent=1).encode()


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it should be."""

    path: str
    expected: str
    actual: str


def damages(store: Store, view: View, *, full: bool, stop: Stop) -> list[Damage]:
    """What is wrong with a published view.

    Fast: every file is the inode that was verified (length, mtime, inode). Full: its bytes are hashed
    too. Files that do not belong are damage as well: engines load by pattern.
    """
    root = store.view(view.digest)
    wrong = [damage for file in view.links if (damage := _damage(store, root, file, full, stop)) is not None]
    known = {file.path for file in view.links} | {VIEW_FILE}
    wrong += [
        Damage(path, "no such file", "a file") for path in sorted(_files_below(root)) if path not in known
    ]
    return wrong


def _damage(store: Store, root: Path, file: ManifestFile, full: bool, stop: Stop) -> Damage | None:
    try:
        facts = (root / file.path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Damage(file.path, f"{file.size} bytes", "absent")
    if facts.st_size != file.size:
        return Damage(file.path, f"{file.size} bytes", f"{facts.st_size} bytes")
    if full:
        actual = file_sha256(root / file.path, stop)
        return None if actual == file.sha256 else Damage(file.path, file.sha256, actual)
    if Identity.of(facts) != store.identity(file.sha256):
        return Damage(file.path, "the file that was verified", "another file or another modification time")
    return None


def _files_below(root: Path) -> Iterator[str]:
    return (str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or not path.is_dir())


def is_intact(store: Store, digest: str, stop: Stop) -> bool:
    """Whether the view is published and every file is the one that was verified."""
    try:
        view = read_description(store, digest)
    except StageError:
        return False
    return not damages(store, view, full=False, stop=stop)


def publish(store: Store, view: View, stop: Stop) -> Path:
    """Make the view of blobs that are all here; mends one that is published already.

    The caller holds the view's lock, so what an earlier attempt left behind can be cleared.
    """
    path = store.view(view.digest)
    for stale in path.parent.glob(f".tmp-{view.digest}-*"):
        shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
    if not path.exists():
        _build(store, view)
    _mend(store, view, stop)
    if not is_intact(store, view.digest, stop):
        raise StageError(
            StageExit.STORE_UNUSABLE,
            f"view {view.digest} changes while it is being published",
            file=str(path),
            hint="something else writes into the store; only moestage may",
        )
    return path


def _build(store: Store, view: View) -> None:
    views = store.root / "views"
    temporary = views / f".tmp-{view.digest}-{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        for file in view.links:
            _link(store, file, temporary / file.path)
        write_new(temporary / VIEW_FILE, view.described())
        for directory in sorted((p for p in temporary.rglob("*") if p.is_dir()), reverse=True):
            sync_dir(directory)
        sync_dir(temporary)
        temporary.rename(store.view(view.digest))
        sync_dir(views)
    except BaseException:
        shutil.rmtree(temporary)
        raise


def _link(store: Store, file: ManifestFile, name: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.hardlink_to(store.blob(file.sha256))


def _mend(store: Store, view: View, stop: Stop) -> None:
    path = store.view(view.digest)
    by_path = {file.path: file for file in view.links}
    for damage in damages(store, view, full=False, stop=stop):
        name = path / damage.path
        if damage.path not in by_path:
            name.rename(store.root / "trash" / f"{view.digest[:16]}-{secrets.token_hex(4)}")
            continue
        fresh = path.parent / f".tmp-{view.digest}-{secrets.token_hex(4)}"
        _link(store, by_path[damage.path], fresh)
        name.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(name)
        sync_dir(name.parent)
    if not _says(path / VIEW_FILE, view):
        write_atomic(path / VIEW_FILE, view.described())


def _says(path: Path, view: View) -> bool:
    """Whether a description names the same links; its source may have been another one."""
    try:
        return _parsed(path).links == view.links
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _parsed(path: Path) -> View:
    described = json.loads(path.read_bytes())
    index = described.get("filteredIndex")
    return View(
        str(described["source"]),
        str(described["resolved"]),
        tuple(ManifestFile.model_validate(file) for file in described["files"]),
        None if index is None else ManifestFile.model_validate(index),
    )


def read_description(store: Store, digest: str) -> View:
    """What a published view says it holds; NOT_FOUND, or CHECKSUM_MISMATCH when it is not that view."""
    path = store.view(digest) / VIEW_FILE
    try:
        view = _parsed(path)
    except FileNotFoundError as fault:
        raise StageError(
            StageExit.NOT_FOUND,
            f"view {digest} is not published in {store.root}",
            file=str(path),
            hint="moestage pull publishes it",
        ) from fault
    except (ValueError, KeyError, TypeError) as fault:
        raise StageError(StageExit.CHECKSUM_MISMATCH, f"{path} is unreadable", file=str(path)) from fault
    if view.digest != digest:
        raise StageError(
            StageExit.CHECKSUM_MISMATCH,
            f"{path} describes another view",
            file=str(path),
            expected=digest,
            actual=view.digest,
        )
    return view


def verify(store: Store, digest: str, *, full: bool, stop: Stop) -> View:
    """Prove a published view; CHECKSUM_MISMATCH with the first thing that is wrong."""
    view = read_description(store, digest)
    wrong = damages(store, view, full=full, stop=stop)
    if wrong:
        first = wrong[0]
        raise StageError(
            StageExit.CHECKSUM_MISMATCH,
            f"{len(wrong)} files of view {digest} are not what was published, the first is {first.path}",
            file=first.path,
            expected=first.expected,
            actual=first.actual,
            hint="moestage pull fetches and replaces damaged files",
        )
    return view
