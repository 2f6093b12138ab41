"""The command line: ``python -m e2e.cluster up | load IMAGE… | down | status | python-base``."""

from __future__ import annotations

import sys

import click

from e2e.cluster import lifecycle, topology
from e2e.cluster.command import CommandFailed
from e2e.cluster.host import CannotContinue
from e2e.cluster.nodes import NotInTime
from e2e.cluster.progress import Progress
from e2e.cluster.settings import ClusterSpec, Folders, Mount
from e2e.cluster.source import Source

_BOOTSTRAP = click.option(
    "--bootstrap", is_flag=True, help="Install missing Debian packages (root, disposable machine)."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A real Kubernetes cluster on this machine, with or without an image registry."""


@main.command()
@click.option(
    "--topology", "wanted", default="h20", show_default=True, help="Preset (h20, nvl72) or a YAML file."
)
@click.option(
    "--node-image", type=click.Choice(["auto", *Source]), default="auto", show_default=True,
    help="Pull the nodes' image, build it, or find out.",
)  # fmt: skip
@click.option(
    "--mount", "mounts", multiple=True, metavar="HOST:NODE", help="Folder every worker sees, read-only."
)
@_BOOTSTRAP
def up(wanted: str, node_image: str, mounts: tuple[str, ...], bootstrap: bool) -> None:
    """Make the cluster, or bring back the one there is."""
    try:
        spec = ClusterSpec(topology.load(wanted), tuple(Mount.parse(mount) for mount in mounts))
    except (ValueError, FileNotFoundError) as problem:
        raise click.UsageError(str(problem)) from problem
    asked = None if node_image == "auto" else Source(node_image)
    progress = Progress()
    with progress.step("up"):
        lifecycle.up(spec, asked, Folders.from_environment(), progress, bootstrap=bootstrap)


@main.command()
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
@click.option("--node", "only", multiple=True, help="Only this node; repeat for more.")
def load(images: tuple[str, ...], only: tuple[str, ...]) -> None:
    """Copy images from Docker into the nodes."""
    lifecycle.load(images, only, Folders.from_environment(), Progress())


@main.command()
@click.option("--purge", is_flag=True, help="Also remove the caches: the next `up` builds everything again.")
def down(purge: bool) -> None:
    """Remove everything that `up` made."""
    lifecycle.down(Folders.from_environment(), Progress(), purge=purge)


@main.command()
def status() -> None:
    """Say what there is; exit code 1 unless the cluster is healthy."""
    sys.exit(0 if lifecycle.status(Folders.from_environment(), Progress()) else 1)


@main.command("python-base")
@_BOOTSTRAP
def python_base(bootstrap: bool) -> None:
    """Build a Debian image with Python and print its reference; progress goes to standard error."""
    progress = Progress(write=lambda text: click.echo(text, err=True))
    click.echo(lifecycle.python_base(Folders.from_environment(), progress, bootstrap=bootstrap))


if __name__ == "__main__":
    try:
        main()
    except (CannotContinue, CommandFailed, NotInTime) as problem:
        click.echo(f"error: {problem}", err=True)
        sys.exit(1)
