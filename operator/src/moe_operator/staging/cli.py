"""``moestage``: bring the bytes of a model to a node, prove them, share them and clean up.

Exit codes are ``api.manifest.StageExit``; 143 after SIGTERM with everything received on record.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moe_operator.staging import store_commands
from moe_operator.staging.options import (
    PATH,
    budget_option,
    concurrency_option,
    reserve_option,
    run_options,
    source_options,
    store_option,
)

if TYPE_CHECKING:
    from moe_operator.api.manifest import Manifest
    from moe_operator.staging.listen import Answer
    from moe_operator.staging.session import Session
    from moe_operator.staging.sources import Source
    from moe_operator.staging.transfer import Link

MOST_THREADS = 16


@click.group(context_settings={"auto_envvar_prefix": "MOESTAGE", "help_option_names": ["-h", "--help"]})
def main() -> None:
    """Stage model weights on nodes. Every option can be set as MOESTAGE_COMMAND_OPTION."""


@main.command()
@source_options
@run_options
@click.option("--trust-remote-code", is_flag=True, help="Take *.py files too: the engine will run them.")
@click.option("--hash-cache", type=PATH, help="Keep digests of hashed files here across restarts.")
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
@source_options
@run_options
@store_option
@click.option("--manifest", type=PATH, required=True, help="The manifest, .json or .json.gz.")
@click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Publish a partial view with these .safetensors files only. Repeatable.",
)
@click.option("--selection", type=PATH, help="File with one such pattern per line.")
@click.option(
    "--peer",
    multiple=True,
    metavar="URL",
    help="http://HOST:PORT of another node's `moestage serve`, asked before the source. Repeatable.",
)
@click.option("--peer-token-file", type=PATH, help="Token that the peers ask for.")
@click.option(
    "--verify",
    type=click.Choice(["fast", "full"]),
    default="fast",
    show_default=True,
    help="Trust files that are unchanged since they were verified, or hash them again.",
)
@reserve_option
@budget_option
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
    only: tuple[str, ...],
    selection: Path | None,
    peer: tuple[str, ...],
    peer_token_file: Path | None,
    verify: Any,
    reserve_bytes: int | None,
    disk_budget: int | None,
    lock_timeout: float,
    journal_bytes: int,
    listen: str | None,
    termination_log: Path | None,
    **source: Any,
) -> None:
    """Bring a manifest's files into the store and publish them as a view. Prints the view's directory."""
    from moe_operator.staging import pull as pulling
    from moe_operator.staging.fetch import FetchOptions
    from moe_operator.staging.manifest_file import read_lines, read_manifest
    from moe_operator.staging.peers import Peers
    from moe_operator.staging.room import Limits
    from moe_operator.staging.session import Session
    from moe_operator.staging.store import Store, open_store

    session = Session(listen, termination_log, scheme=_scheme(source["source"]), store=Store(store))

    def act() -> None:
        threads = source["concurrency"] or _threads()
        wanted = read_manifest(manifest)
        options = pulling.Options(
            FetchOptions(threads, verify, lock_timeout, journal_bytes),
            Limits(reserve_bytes, disk_budget),
            (*only, *(read_lines(selection) if selection else ())),
        )
        view = pulling.pull(
            wanted,
            lambda: _source(session, source, resolved=wanted.resolved),
            open_store(store),
            _link(session, threads, source, journal_bytes),
            options,
            Peers(peer, peer_token_file, session.stop, stall_seconds=source["stall_timeout"]),
        )
        click.echo(str(view))

    sys.exit(session.run(act))


@main.command("slice")
@click.option("--model", type=PATH, required=True, help="Directory of the model: a view, or a mounted claim.")
@click.option("--out", type=PATH, required=True, help="Directory to make; it appears when it is complete.")
@click.option("--groups", type=click.IntRange(1), required=True, help="Groups of experts to cut into.")
@click.option(
    "--shard-bytes",
    type=click.IntRange(1),
    default=16 << 30,
    show_default=True,
    help="Most bytes of tensors in one file.",
)
@concurrency_option
@reserve_option
@run_options
def slice_command(
    model: Path,
    out: Path,
    groups: int,
    shard_bytes: int,
    concurrency: int | None,
    reserve_bytes: int | None,
    listen: str | None,
    termination_log: Path | None,
) -> None:
    """Re-pack a model so that a node needs only its experts' files. CPU only; goes on after a crash."""
    from moe_operator.staging.session import Session
    from moe_operator.staging.slice import SliceOptions, slice_model

    session = Session(listen, termination_log, scheme="slice")

    def act() -> None:
        options = SliceOptions(groups, shard_bytes, concurrency or _threads(), reserve_bytes or 0)
        click.echo(str(slice_model(model, out.absolute(), options, session.progress, session.stop)))

    sys.exit(session.run(act))


for command in store_commands.COMMANDS:
    main.add_command(command)


def _threads() -> int:
    return min(MOST_THREADS, 2 * (os.cpu_count() or 1))


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def _source(session: Session, given: dict[str, Any], resolved: str = "") -> Source:
    from moe_operator.staging.credentials import Credentials
    from moe_operator.staging.hosts import HostPolicy
    from moe_operator.staging.sources import source_for
    from moe_operator.staging.transport import Transport

    policy = HostPolicy.of(given["allow_http_host"], given["allow_host"])
    transport = Transport(policy, session.stop, stall_seconds=given["stall_timeout"])
    credentials = Credentials(given["credentials_dir"])
    return source_for(
        given["source"],
        transport,
        credentials,
        resolved=resolved,
        hub=os.environ.get("HF_ENDPOINT", ""),
        endpoint=os.environ.get("AWS_ENDPOINT_URL", ""),
    )


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
