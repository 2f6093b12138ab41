"""``moe-operator sandbox``: deployments on this machine, without Kubernetes."""

from __future__ import annotations

import sys
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from moe_operator.sandbox.session import Request


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Objects to apply, YAML; may be given several times.",
)
@click.option("--nodes", default=None, metavar="PRESET", help="The nodes to have; --nodes list shows them.")
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="NAME=COMMAND",
    help="What an image is on this machine; may be given several times.",
)
@click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="NAME=DIRECTORY",
    help="A PersistentVolumeClaim, as NAME or NAMESPACE/NAME, and its directory.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where files, logs and downloaded weights are kept. Default: a temporary directory.",
)
@click.option("--namespace", default="default", show_default=True, help="Of objects that name none.")
@click.option(
    "--config",
    "policy_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The operator's configuration (YAML).",
)
@click.option(
    "--api-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port of the API server; 0 takes a free one.",
)
@click.option(
    "--loopback-range",
    default="127.64.0.0/10",
    show_default=True,
    metavar="CIDR",
    help="Addresses that sandboxes of this machine share; each takes 4,096.",
)
@click.option(
    "--exit-after-ready",
    is_flag=True,
    help="End, successfully, when every deployment is Ready; with code 1 when one is Stalled.",
)
def sandbox(
    files: tuple[Path, ...],
    nodes: str | None,
    images: tuple[str, ...],
    claims: tuple[str, ...],
    state_dir: Path | None,
    namespace: str,
    policy_path: Path | None,
    api_port: int,
    loopback_range: str,
    exit_after_ready: bool,
) -> None:
    """Run deployments on this machine, without Kubernetes, until Ctrl-C.

    Starts an API server, fake GPU nodes and the operator; pods run as local processes, each on a
    loopback address of its own. Nothing is left behind when it ends, however it ends.

    \b
    Exit codes:
      0  stopped as told, or everything Ready with --exit-after-ready
      1  something could not be started or applied, or a deployment is Stalled
      2  bad arguments
    """
    if sys.platform != "linux":
        raise click.ClickException(
            "the sandbox needs Linux (127.0.0.0/8, pidfd, parent-death signals); "
            "elsewhere use a Linux virtual machine or a kind cluster"
        )
    from moe_operator.sandbox import session
    from moe_operator.sandbox.nodes import DEFAULT_PRESET, PRESETS

    if nodes == "list":
        for name, preset in PRESETS.items():
            mark = " (default)" if name == DEFAULT_PRESET else ""
            click.echo(f"{name:18} {preset.count} × {preset.machine.gpus} {preset.machine.product}{mark}")
        return
    chosen = nodes or DEFAULT_PRESET
    if chosen not in PRESETS:
        raise click.BadParameter(f"{chosen!r} is none of {', '.join(PRESETS)}", param_hint="--nodes")
    request: Request
    try:
        request = session.request(
            files=files,
            nodes=chosen,
            images=images,
            claims=claims,
            state_dir=state_dir,
            namespace=namespace,
            policy_path=policy_path,
            api_port=api_port,
            loopback=IPv4Network(loopback_range),
            exit_after_ready=exit_after_ready,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    raise SystemExit(session.run(request, click.echo))
