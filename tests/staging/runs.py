"""Runs of the stager inside the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from moe_operator.api.manifest import Manifest
from moe_operator.staging import pull as pulling
from moe_operator.staging import resolve as resolving
from moe_operator.staging.credentials import Credentials
from moe_operator.staging.failure import StageError
from moe_operator.staging.fetch import FetchOptions
from moe_operator.staging.hosts import HostPolicy
from moe_operator.staging.pace import Backoff, Bucket, Gate
from moe_operator.staging.peers import Peers
from moe_operator.staging.progress import Progress
from moe_operator.staging.room import Limits
from moe_operator.staging.sources import Source, source_for
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store
from moe_operator.staging.transfer import Link
from moe_operator.staging.transport import Transport

from tests.staging.model import Model

STALL = 2.0  # seconds; short for the tests that wait for it, long for a machine that is busy


def link(*, threads: int = 4, retries: int = 4, bandwidth: int = 0, chunk: int = 16 << 10) -> Link:
    return Link(
        Stop(), Progress(), Gate(threads), Bucket(bandwidth), Backoff(first=0.01, most=0.05), retries, chunk
    )


def source(
    url: str,
    shared: Link,
    *,
    allow: Sequence[str] = ("127.40.0.1",),
    credentials: Path | None = None,
    resolved: str = "",
    hub: str = "",
    stall: float = STALL,
) -> Source:
    transport = Transport(HostPolicy.of(tuple(allow)), shared.stop, stall_seconds=stall)
    return source_for(url, transport, Credentials(credentials), resolved=resolved, hub=hub)


def resolve(url: str, *, shared: Link | None = None, **options: Any) -> Manifest:
    shared = shared or link()
    kinds = {k: options.pop(k) for k in ("trust_remote_code", "threads", "hash_cache") if k in options}
    return resolving.resolve(source(url, shared, **options), shared, resolving.Options(**kinds))


def pull(manifest: Manifest, store: Store, *, shared: Link | None = None, **options: Any) -> Path:
    shared = shared or link()
    url = options.pop("url", manifest.source)
    allow = options.pop("allow", ("127.40.0.1",))
    found = Peers(options.pop("peers", ()), options.pop("token_file", None), shared.stop, stall_seconds=STALL)
    limits = Limits(options.pop("reserve_bytes", 0), options.pop("budget", None))
    patterns = tuple(options.pop("patterns", ()))
    opener = options.pop("opener", None)
    fetching = FetchOptions(**{"threads": 4, **options})
    return pulling.pull(
        manifest,
        opener or (lambda: source(url, shared, resolved=manifest.resolved, allow=allow)),
        store,
        shared,
        pulling.Options(fetching, limits, patterns),
        found,
    )


def failure(act: Callable[[], object]) -> StageError:
    """The StageError that ``act`` ends with."""
    try:
        act()
    except StageError as fault:
        return fault
    raise AssertionError("it should have failed")


def contents(view: Path) -> dict[str, bytes]:
    """What an engine finds in a view."""
    return {
        str(path.relative_to(view)): path.read_bytes()
        for path in view.rglob("*")
        if path.is_file() and not path.name.startswith(".moe-")
    }


def assert_published(view: Path, model: Model) -> None:
    assert contents(view) == model.files
