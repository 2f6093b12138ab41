"""A view: one model's files as an engine wants to see them, made of hard links to blobs.

Invariants: a view appears by one rename, complete and verified, or not at all. Every file of a view is
the very inode that was verified under its digest. A damaged view is mended file by file, each by one
rename, so an engine that reads it never finds a name missing.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from moe_operator.api.manifest import Manifest, ManifestFile, StageExit, view_digest
from moe_operator.staging.digest import file_sha256
from moe_operator.staging.durable import sync_dir, write_atomic, write_new
from moe_operator.staging.failure import StageError
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import VIEW_FILE, Identity, Store


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it should be."""

    path: str
    expected: str
    actual: str


def damages(
    store: Store, digest: str, files: Sequence[ManifestFile], *, full: bool, stop: Stop
) -> list[Damage]:
    """What is wrong with a published view.

    Fast: every file is the inode that was verified (length, mtime, inode). Full: its bytes are hashed
    too. Files that do not belong are damage as well: engines load by pattern.
    """
    root = store.view(digest)
    wrong = [damage for file in files if (damage := _damage(store, root, file, full, stop)) is not None]
    known = {file.path for file in files} | {VIEW_FILE}
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


def is_intact(store: Store, digest: str, files: Sequence[ManifestFile], stop: Stop) -> bool:
    """Whether the view is published and every file is the one that was verified."""
    if not (store.view(digest) / VIEW_FILE).is_file():
        return False
    return not damages(store, digest, files, full=False, stop=stop)


def publish(store: Store, digest: str, manifest: Manifest, stop: Stop) -> Path:
    """Make the view of blobs that are all here; mends one that is published already.

    The caller holds the view's lock, so what an earlier attempt left behind can be cleared.
    """
    view = store.view(digest)
    for stale in view.parent.glob(f".tmp-{digest}-*"):
        shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
    if not view.exists():
        _build(store, digest, manifest)
    _mend(store, digest, manifest, stop)
    if not is_intact(store, digest, manifest.files, stop):
        raise StageError(
            StageExit.STORE_UNUSABLE,
            f"view {digest} changes while it is being published",
            file=str(view),
            hint="something else writes into the store; only moestage may",
        )
    return view


def _build(store: Store, digest: str, manifest: Manifest) -> None:
    views = store.root / "views"
    temporary = views / f".tmp-{digest}-{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        for file in manifest.files:
            _link(store, file, temporary / file.path)
        write_new(temporary / VIEW_FILE, _description(digest, manifest))
        for directory in sorted((p for p in temporary.rglob("*") if p.is_dir()), reverse=True):
            sync_dir(directory)
        sync_dir(temporary)
        temporary.rename(store.view(digest))
        sync_dir(views)
    except BaseException:
        shutil.rmtree(temporary)
        raise


def _link(store: Store, file: ManifestFile, name: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.hardlink_to(store.blob(file.sha256))


def _mend(store: Store, digest: str, manifest: Manifest, stop: Stop) -> None:
    view = store.view(digest)
    by_path = {file.path: file for file in manifest.files}
    for damage in damages(store, digest, manifest.files, full=False, stop=stop):
        name = view / damage.path
        if damage.path not in by_path:
            name.rename(store.root / "trash" / f"{digest[:16]}-{secrets.token_hex(4)}")
            continue
        fresh = view.parent / f".tmp-{digest}-{secrets.token_hex(4)}"
        _link(store, by_path[damage.path], fresh)
        name.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(name)
        sync_dir(name.parent)
    if not (view / VIEW_FILE).is_file():
        write_atomic(view / VIEW_FILE, _description(digest, manifest))


def _description(digest: str, manifest: Manifest) -> bytes:
    described = {
        "schema": "moe.view/v1",
        "viewDigest": digest,
        "source": manifest.source,
        "resolved": manifest.resolved,
        "files": [file.model_dump(by_alias=True) for file in manifest.files],
    }
    return json.dumps(described, indent=1).encode()


def read_description(store: Store, digest: str) -> list[ManifestFile]:
    """The files a published view says it holds; NOT_FOUND, or CHECKSUM_MISMATCH when it is not that view."""
    path = store.view(digest) / VIEW_FILE
    try:
        described = json.loads(path.read_bytes())
        files = [ManifestFile.model_validate(file) for file in described["files"]]
    except FileNotFoundError as fault:
        raise StageError(
            StageExit.NOT_FOUND,
            f"view {digest} is not published in {store.root}",
            file=str(path),
            hint="moestage pull publishes it",
        ) from fault
    except (ValueError, KeyError, TypeError, ValidationError) as fault:
        raise StageError(StageExit.CHECKSUM_MISMATCH, f"{path} is unreadable", file=str(path)) from fault
    if (actual := view_digest(files)) != digest:
        raise StageError(
            StageExit.CHECKSUM_MISMATCH,
            f"{path} describes another view",
            file=str(path),
            expected=digest,
            actual=actual,
        )
    return files


def verify(store: Store, digest: str, *, full: bool, stop: Stop) -> list[ManifestFile]:
    """Prove a published view; CHECKSUM_MISMATCH with the first thing that is wrong."""
    files = read_description(store, digest)
    wrong = damages(store, digest, files, full=full, stop=stop)
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
    return files
