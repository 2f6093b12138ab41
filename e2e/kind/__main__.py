"""The command line: ``python -m e2e.kind prepare | up | demo``."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from e2e.cluster.command import CommandFailed
from e2e.cluster.host import CannotContinue
from e2e.cluster.nodes import NotInTime
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.kind.bring_up import bring_up, prepare
from e2e.kind.demo import kind_demo
from e2e.scenarios.demo import run

_BOOTSTRAP = click.option(
    "--bootstrap", is_flag=True, help="Install missing Debian packages (root, disposable machine)."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The product on a real cluster of this machine."""


@main.command("prepare")
@_BOOTSTRAP
def prepare_all(bootstrap: bool) -> None:
    """Everything that takes long the first time, and no cluster yet."""
    progress = Progress()
    with progress.step("what a cluster needs"):
        prepare(Folders.from_environment(), progress, bootstrap=bootstrap)


@main.command()
@_BOOTSTRAP
def up(bootstrap: bool) -> None:
    """Cluster, images and the chart's release; what is there already is kept."""
    progress = Progress()
    with progress.step("moe-operator on kind"):
        site = bring_up(Folders.from_environment(), progress, bootstrap=bootstrap)
    progress.say(f"operator {site.images.operator} serves; engine stub: {site.images.stub_of('0.33.0')}")


@main.command()
@click.option("--clients", default=20, show_default=True, help="Clients that stream during the change.")
@click.option("--requests", default=0, show_default=True, help="Send at least so many during the change.")
@_BOOTSTRAP
def demo(clients: int, requests: int, bootstrap: bool) -> None:
    """Serve a multi-node MoE and replace its revision under load; everything stays up."""
    folders = Folders.from_environment()
    site = bring_up(folders, Progress(), bootstrap=bootstrap)
    sys.exit(run(kind_demo(site, folders, clients, requests), Console(highlight=False), keep=False))


if __name__ == "__main__":
    try:
        main()
    except (CannotContinue, CommandFailed, NotInTime) as problem:
        click.echo(f"error: {problem}", err=True)
        sys.exit(1)
