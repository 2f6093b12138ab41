"""What a running pull needs, said before it looks: so that nothing is collected under its hands.

``wanted/<view>.json`` lists a view's digests; whoever pulls that view holds a shared lock beside it for as
long as the process lives. Rule: a pull says what it wants before it looks whether a blob is there, and the
collector reads what is wanted again under the blob's lock before it deletes. So one of them always sees the
other, and a blob that was found stays until it is linked.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moe_operator.staging.durable import write_atomic
from moe_operator.staging.store import Store


@contextmanager
def in_use(store: Store, view: str) -> Iterator[None]:
    """Hold a view in use: it is not collected while the block runs. Writes nothing once its lock exists."""
    fd = _open(store, view)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


@contextmanager
def unused(store: Store, view: str) -> Iterator[bool]:
    """Whether nobody uses a view; while the block runs nobody can begin to."""
    fd = _open(store, view)
    try:
        free = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(fd)


def want(store: Store, view: str, digests: Iterable[str]) -> None:
    """Say which blobs a view needs. The caller holds the view in use."""
    write_atomic(_list(store, view), json.dumps(sorted(digests)).encode())


def wanted(store: Store, keep: Collection[str] = ()) -> set[str]:
    """Digests that running pulls need, and unfinished ones of the views in ``keep``."""
    needed: set[str] = set()
    for path in (store.root / "wanted").glob("[0-9a-f]*.json"):
        if path.stem in keep or _is_used(store, path.stem):
            with suppress(FileNotFoundError):  # collected since it was listed
                needed.update(json.loads(path.read_bytes()))
    return needed


def unwant(store: Store, view: str) -> None:
    """Forget what a view needed. The caller has made sure that it is unused."""
    _list(store, view).unlink(missing_ok=True)


def _is_used(store: Store, view: str) -> bool:
    with unused(store, view) as free:
        return not free


def _list(store: Store, view: str) -> Path:
    return store.root / "wanted" / f"{view}.json"


def _open(store: Store, view: str) -> int:
    path = store.lock(f"wanted-{view}")
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
