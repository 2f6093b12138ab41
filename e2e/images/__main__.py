"""The command line: ``python -m e2e.images build [operator] [envoy] [stub] --base IMAGE``."""

from __future__ import annotations

import sys

import click

from e2e.cluster.command import CommandFailed
from e2e.cluster.host import CannotContinue
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.images.build import build as build_image
from e2e.images.recipes import RECIPES

MEGABYTE = 1_000_000


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The images of this repository."""


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(list(RECIPES)))
@click.option(
    "--base", required=True, metavar="IMAGE",
    help="Debian with Python 3.11 or later, such as python:3.13-slim-trixie. Where there is no registry: "
    "what `python -m e2e.cluster python-base` prints.",
)  # fmt: skip
def build(names: tuple[str, ...], base: str) -> None:
    """Build images (all, or those named) and print a line with reference and size for each."""
    progress = Progress(write=lambda text: click.echo(text, err=True))
    for name in names or RECIPES:
        image = build_image(RECIPES[name], base, Folders.from_environment(), progress)
        click.echo(f"{image.reference} {image.size / MEGABYTE:.0f} MB")


if __name__ == "__main__":
    try:
        main()
    except (CannotContinue, CommandFailed) as problem:
        click.echo(f"error: {problem}", err=True)
        sys.exit(1)
