"""``kubectl moe``: what a person asks of a MoEDeployment from the command line."""

from __future__ import annotations

import click

from moe_operator import __version__
from moe_operator.cli.lazy import LazyCommand, LazyGroup

COMMANDS = {
    "keys": LazyCommand(
        "moe_operator.cli.keys", "keys", "Make, list, revoke and refresh API keys of a gateway."
    ),
    "plan": LazyCommand(
        "moe_operator.cli.plan", "plan", "Say whether a model fits GPUs, and how, before any pod exists."
    ),
    "weights": LazyCommand(
        "moe_operator.cli.weights", "weights", "Show how far each node is with a model's files."
    ),
}


@click.group(
    cls=LazyGroup, lazy=COMMANDS, name="moe", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, message="%(version)s")
def main() -> None:
    """Look after MoEDeployments."""
