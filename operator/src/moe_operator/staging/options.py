"""Command-line options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)


def options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, shown in the order given."""

    def add(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


bandwidth_option = click.option(
    "--bandwidth", type=click.IntRange(0), default=0, metavar="BYTES/S", help="Limit; 0 = none (default)."
)
concurrency_option = click.option(
    "--concurrency",
    type=click.IntRange(1, 64),
    help="Files at once. Default: twice the CPUs, at most 16.",
)
reserve_option = click.option(
    "--reserve-bytes",
    type=click.IntRange(0),
    help="Keep this much of the disk free. Default: 5 % of it, at most 50 GiB.",
)
budget_option = click.option(
    "--disk-budget", type=click.IntRange(0), help="Most bytes the store may hold. Default: the whole disk."
)
termination_option = click.option(
    "--termination-log", type=PATH, help="Leave the JSON termination message here."
)
listen_option = click.option(
    "--listen", metavar="HOST:PORT", help="Serve /progress, /metrics and /healthz here."
)
store_option = click.option("--store", type=PATH, required=True, help="The node's weight store.")
run_options = options(listen_option, termination_option)
source_options = options(
    click.option(
        "--source",
        required=True,
        help="https://…, hf://org/repo@revision, s3://bucket/prefix, gs://bucket/prefix, "
        "az://account/container/prefix, oci://registry/repository:tag or file:///directory.",
    ),
    click.option(
        "--credentials-dir",
        type=PATH,
        help="Mounted Secret with one file per key; docs/staging.md lists the keys of each source.",
    ),
    click.option(
        "--allow-host",
        multiple=True,
        metavar="PATTERN",
        help="Speak to these hosts only; *.example.com fits any subdomain. Repeatable. Default: any host.",
    ),
    click.option(
        "--allow-http-host",
        multiple=True,
        metavar="HOST[:PORT]",
        help="Permit plain http, loopback and link-local addresses for this host. Repeatable.",
    ),
    concurrency_option,
    bandwidth_option,
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
