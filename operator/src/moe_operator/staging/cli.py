"""``moestage``: resolve, pull and verify the bytes of a model on a node.

Exit codes are ``api.manifest.StageExit``; 143 after SIGTERM with everything received on record.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from moe_operator.api.manifest import Manifest
    from moe_operator.staging.listen import Answer
    from moe_operator.staging.session import Session
    from moe_operator.staging.sources import Source
    from moe_operator.staging.transfer import Link

F = TypeVar("F", bound=Callable[..., Any])
MOST_THREADS = 16


def _options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


_DIRECTORY = click.Path(path_type=Path)
_source_options = _options(
    click.option("--source", required=True, help="https://…, hf://org/repo@revision or file:///directory."),
    click.option(
        "--credentials-dir",
        type=_DIRECTORY,
        help="Mounted Secret: a file named token, or username and password.",
    ),
    click.option(
        "--allow-http-host",
        multiple=True,
        metavar="HOST[:PORT]",
        help="Permit plain http, loopback and link-local addresses for this host. Repeatable.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(1, 64),
        help="Files at once. Default: twice the CPUs, at most 16.",
    ),
    click.option(
        "--bandwidth", type=click.IntRange(0), default=0, metavar="BYTES/S", help="Limit; 0 = none (default)."
    ),
    click.option(
        "--retries",
        type=click.IntRange(0),
        default=8,
        show_default=True,
        help="Attempts in a row that may bring nothing new.",
    ),
    click.option(
        "--retry-delay",
        type=click.FloatRange(0, min_open=True),
        default=0.5,
        show_default=True,
        help="Seconds before the first retry; doubles up to 30.",
    ),
    click.option(
        "--stall-timeout",
        type=click.FloatRange(0, min_open=True),
        default=60.0,
        show_default=True,
        help="Seconds without a byte before a connection counts as dead.",
    ),
)
_termination_option = click.option(
    "--termination-log", type=_DIRECTORY, help="Leave the JSON termination message here."
)
_run_options = _options(
    click.option("--listen", metavar="HOST:PORT", help="Serve /progress, /metrics and /healthz here."),
    _termination_option,
)
_store_option = click.option("--store", type=_DIRECTORY, required=True, help="The node's weight store.")


@click.group(context_settings={"auto_envvar_prefix": "MOESTAGE", "help_option_names": ["-h", "--help"]})
def main() -> None:
    """Resolve, pull and verify model weights. Every option can be set as MOESTAGE_COMMAND_OPTION."""


@main.command()
@_source_options
@_run_options
@click.option("--trust-remote-code", is_flag=True, help="Take *.py files too: the engine will run them.")
@click.option("--hash-cache", type=_DIRECTORY, help="Keep digests of hashed files here across restarts.")
def resolve(
    trust_remote_code: bool,
    hash_cache: Path | None,
    listen: str | None,
    termination_log: Path | None,
    **source: Any,
) -> None:
    """Read a model's facts from its source.

    Prints the manifest, or with --listen serves it at /manifest until ended.
    """
    from moe_operator.staging import resolve as resolving
    from moe_operator.staging.session import Session

    known: list[Manifest] = []
    session = Session(
        listen,
        termination_log,
        scheme=_scheme(source["source"]),
        routes={"/manifest": _manifest_route(known)},
    )

    def act() -> None:
        threads = source["concurrency"] or _threads()
        options = resolving.Options(trust_remote_code, threads, hash_cache)
        known.append(resolving.resolve(_source(session, source), _link(session, threads, source), options))
        session.progress.enter("Resolved", f"{len(known[0].files)} files")
        if listen is None:
            click.echo(known[0].model_dump_json(by_alias=True))
        else:
            session.stop.wait_for_signal()

    sys.exit(session.run(act))


@main.command()
@_source_options
@_run_options
@_store_option
@click.option("--manifest", type=_DIRECTORY, required=True, help="The manifest, .json or .json.gz.")
@click.option(
    "--verify",
    type=click.Choice(["fast", "full"]),
    default="fast",
    show_default=True,
    help="Trust files that are unchanged since they were verified, or hash them again.",
)
@click.option(
    "--reserve-bytes",
    type=click.IntRange(0),
    help="Keep this much free. Default: 5 % of the disk, at most 50 GiB.",
)
@click.option(
    "--lock-timeout",
    type=click.FloatRange(0),
    default=900.0,
    show_default=True,
    help="Seconds to wait for another stager of this node that brings nothing new.",
)
@click.option(
    "--journal-bytes",
    type=click.IntRange(16 << 10),
    default=256 << 20,
    show_default=True,
    help="Most bytes of a file that a crash may cost.",
)
def pull(
    manifest: Path,
    store: Path,
    verify: Any,
    reserve_bytes: int | None,
    lock_timeout: float,
    journal_bytes: int,
    listen: str | None,
    termination_log: Path | None,
    **source: Any,
) -> None:
    """Bring a manifest's files into the store and publish them as a view. Prints the view's directory."""
    from moe_operator.staging import pull as pulling
    from moe_operator.staging.manifest_file import read_manifest
    from moe_operator.staging.session import Session
    from moe_operator.staging.store import Store, open_store

    session = Session(listen, termination_log, scheme=_scheme(source["source"]), store=Store(store))

    def act() -> None:
        threads = source["concurrency"] or _threads()
        wanted = read_manifest(manifest)
        options = pulling.Options(threads, verify, reserve_bytes, lock_timeout, journal_bytes)
        view = pulling.pull(
            wanted,
            lambda: _source(session, source, resolved=wanted.resolved),
            open_store(store),
            _link(session, threads, source, journal_bytes),
            options,
        )
        click.echo(str(view))

    sys.exit(session.run(act))


@main.command()
@_store_option
@_termination_option
@click.option("--view", required=True, metavar="DIGEST", help="The view's digest.")
@click.option("--full", is_flag=True, help="Hash every byte instead of comparing what was noted.")
def verify(store: Path, view: str, full: bool, termination_log: Path | None) -> None:
    """Prove that a published view is complete and unaltered."""
    import json

    from moe_operator.staging.session import Session
    from moe_operator.staging.store import open_store
    from moe_operator.staging.view import verify as verify_view

    session = Session(termination_log=termination_log, shown=False)

    def act() -> None:
        files = verify_view(open_store(store), view, full=full, stop=session.stop)
        total = sum(file.size for file in files)
        click.echo(json.dumps({"view": view, "files": len(files), "bytes": total, "full": full}))

    sys.exit(session.run(act))


@main.command("init-store")
@_store_option
def init_store(store: Path) -> None:
    """Prepare a mounted disk as a weight store, once. Prints the store's id."""
    from moe_operator.staging import store as stores
    from moe_operator.staging.session import Session

    sys.exit(Session(shown=False).run(lambda: click.echo(stores.init_store(store))))


def _threads() -> int:
    return min(MOST_THREADS, 2 * (os.cpu_count() or 1))


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def _source(session: Session, given: dict[str, Any], resolved: str = "") -> Source:
    from moe_operator.staging.credentials import Credentials
    from moe_operator.staging.hosts import HostPolicy
    from moe_operator.staging.sources import source_for
    from moe_operator.staging.transport import Transport

    transport = Transport(
        HostPolicy.of(given["allow_http_host"]), session.stop, stall_seconds=given["stall_timeout"]
    )
    credentials = Credentials(given["credentials_dir"])
    hub = os.environ.get("HF_ENDPOINT", "")
    return source_for(given["source"], transport, credentials, resolved=resolved, hub=hub)


def _link(session: Session, threads: int, given: dict[str, Any], journal: int = 256 << 20) -> Link:
    return session.link(
        threads,
        bandwidth=given["bandwidth"],
        retries=given["retries"],
        retry_delay=given["retry_delay"],
        journal=journal,
    )


def _manifest_route(known: list[Manifest]) -> Callable[[], Answer]:
    from http import HTTPStatus

    from moe_operator.staging.listen import Answer

    def answer() -> Answer:
        if not known:
            return Answer(b'{"error":"not resolved yet"}', status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Answer(known[0].model_dump_json(by_alias=True).encode())

    return answer
