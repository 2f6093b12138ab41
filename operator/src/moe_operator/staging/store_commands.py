"""Commands of ``moestage`` that work on a node's store and need no source."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from moe_operator.staging.options import (
    PATH,
    bandwidth_option,
    run_options,
    store_option,
    termination_option,
)


@click.command()
@store_option
@termination_option
@click.option("--view", required=True, metavar="DIGEST", help="The view's digest.")
@click.option("--full", is_flag=True, help="Hash every byte instead of comparing what was noted.")
def verify(store: Path, view: str, full: bool, termination_log: Path | None) -> None:
    """Prove that a published view is complete and unaltered."""
    from moe_operator.staging.session import Session
    from moe_operator.staging.store import open_store
    from moe_operator.staging.view import verify as verify_view

    session = Session(termination_log=termination_log, shown=False)

    def act() -> None:
        links = verify_view(open_store(store), view, full=full, stop=session.stop).links
        total = sum(file.size for file in links)
        click.echo(json.dumps({"view": view, "files": len(links), "bytes": total, "full": full}))

    sys.exit(session.run(act))


@click.command()
@store_option
@run_options
@bandwidth_option
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="Leave alone what was proved since. Default: hash everything.",
)
def scrub(
    store: Path, bandwidth: int, older_than: float, listen: str | None, termination_log: Path | None
) -> None:
    """Hash the store's blobs again, oldest proof first; set corrupt ones aside and end with 30."""
    from moe_operator.staging import scrub as scrubbing
    from moe_operator.staging.failure import store_faults
    from moe_operator.staging.pace import Bucket
    from moe_operator.staging.session import Session
    from moe_operator.staging.store import Store, open_store

    session = Session(listen, termination_log, scheme="store", store=Store(store))

    def act() -> None:
        opened, bucket = open_store(store), Bucket(bandwidth)
        with store_faults(store):
            opened.lay_out()
            done = scrubbing.scrub(opened, older_than, bucket, session.progress, session.stop)
            click.echo(json.dumps(done.summary(opened)))
        if done.corrupt:
            raise scrubbing.corruption(done)

    sys.exit(session.run(act))


@click.command()
@store_option
@termination_option
@click.option("--listen", metavar="HOST:PORT", required=True, help="Where other nodes ask.")
@click.option("--token-file", type=PATH, required=True, help="Token that they must bring.")
@click.option(
    "--connections",
    type=click.IntRange(1, 1024),
    default=128,
    show_default=True,
    help="Answers at once; beyond it 503.",
)
@bandwidth_option
def serve(
    store: Path,
    listen: str,
    token_file: Path,
    connections: int,
    bandwidth: int,
    termination_log: Path | None,
) -> None:
    """Give verified blobs to other nodes until ended. Reads the store only."""
    from moe_operator.staging.pace import Bucket
    from moe_operator.staging.serve import Seed, serving
    from moe_operator.staging.session import Session
    from moe_operator.staging.store import Store, open_store

    session = Session(termination_log=termination_log, shown=False, scheme="store", store=Store(store))

    def act() -> None:
        seed = Seed(
            open_store(store),
            token_file,
            connections,
            Bucket(bandwidth),
            session.progress,
            session.stop,
            session.port_routes(),
        )
        with serving(listen, seed) as address:
            session.say_listening(address)
            session.stop.wait_for_signal()

    sys.exit(session.run(act))


@click.command()
@store_option
@termination_option
@click.option("--keep", multiple=True, metavar="VIEW", help="Digest of a view to keep. Repeatable.")
@click.option("--keep-file", type=PATH, help="File with one such digest per line.")
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="Leave alone what is younger.",
)
@click.option(
    "--partial-age",
    type=click.FloatRange(0),
    default=7 * 24 * 3600.0,
    show_default=True,
    metavar="SECONDS",
    help="The same for unfinished downloads of kept views and for corrupt files.",
)
@click.option(
    "--reserve-bytes", type=click.IntRange(0), default=0, help="Bytes that must be free afterwards."
)
@click.option("--disk-budget", type=click.IntRange(0), help="Most bytes that may be held afterwards.")
@click.option("--dry-run", is_flag=True, help="Say what would be freed.")
def gc(
    store: Path,
    keep: tuple[str, ...],
    keep_file: Path | None,
    grace: float,
    partial_age: float,
    reserve_bytes: int,
    disk_budget: int | None,
    dry_run: bool,
    termination_log: Path | None,
) -> None:
    """Free views that nobody keeps or uses, and blobs that no view needs.

    Ends with 20 when the store is then still above its budget or the disk below its reserve.
    """
    from moe_operator.staging import collect as collecting
    from moe_operator.staging.failure import store_faults
    from moe_operator.staging.manifest_file import read_lines
    from moe_operator.staging.room import Limits, no_room, shortage
    from moe_operator.staging.session import Session
    from moe_operator.staging.store import open_store

    session = Session(termination_log=termination_log, shown=False)

    def act() -> None:
        opened = open_store(store)
        kept = collecting.checked_views([*keep, *(read_lines(keep_file) if keep_file else ())])
        rules = collecting.Rules(grace, partial_age, dry_run)
        with store_faults(store):
            opened.lay_out()
            freed = collecting.collect_alone(opened, kept, rules, session.stop)
            left, free = collecting.held_bytes(opened), collecting.free_bytes(opened)
            click.echo(
                json.dumps(
                    {
                        "views": freed.views,
                        "blobs": freed.blobs,
                        "partials": freed.partials,
                        "bytesFreed": freed.bytes_freed,
                        "bytesKept": left,
                        "freeBytes": free,
                        "dryRun": dry_run,
                    }
                )
            )
            found = shortage(opened, 0, Limits(reserve_bytes, disk_budget))
        if found.short and not dry_run:
            raise no_room(opened, found)

    sys.exit(session.run(act))


@click.command("init-store")
@store_option
def init_store(store: Path) -> None:
    """Prepare a mounted disk as a weight store, once. Prints the store's id."""
    from moe_operator.staging import store as stores
    from moe_operator.staging.session import Session

    sys.exit(Session(shown=False).run(lambda: click.echo(stores.init_store(store))))


COMMANDS = (verify, scrub, serve, gc, init_store)
