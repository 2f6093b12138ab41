"""``moe-operator``: run the operator, or a whole sandbox of it.

Only click is imported before a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

from pathlib import Path

import click

from moe_operator import __version__
from moe_operator.cli.lazy import LazyCommand, LazyGroup

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
USER_KUBECONFIG = Path("~/.kube/config")


LAZY_COMMANDS = {
    "sandbox": LazyCommand(
        "moe_operator.cli.sandbox", "sandbox", "Run deployments on this machine, without Kubernetes."
    ),
}


class Address(click.ParamType[tuple[str, int]]):
    """``HOST:PORT``; an IPv6 host stands in brackets."""

    name = "HOST:PORT"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Host and port; port 0 takes a free one."""
        host, colon, port = value.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is not HOST:PORT", param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


@click.group(cls=LazyGroup, lazy=LAZY_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(version)s")
def main() -> None:
    """Serve very large Mixture-of-Experts models on Kubernetes."""


@main.command()
@click.option(
    "--kubeconfig",
    envvar="KUBECONFIG",
    metavar="PATH",
    help="How to reach the API server. Default: the pod's service account, else ~/.kube/config.",
)
@click.option(
    "--namespace",
    "-n",
    "namespaces",
    multiple=True,
    metavar="NS",
    help="Serve only this namespace; may be given several times. Default: all.",
)
@click.option(
    "--config",
    "policy_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The admin's configuration (YAML): cache classes, allowed images, presets.",
)
@click.option(
    "--listen",
    type=Address(),
    default="0.0.0.0:8080",
    show_default=True,
    help="Where /healthz, /readyz and /metrics answer.",
)
@click.option(
    "--lease-namespace",
    metavar="NS",
    help="Hold a Lease here before acting, so that a standby may run. Default: no lease.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Deployments reconciled at the same time.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least level of the JSON lines on standard error.",
)
def run(
    kubeconfig: str | None,
    namespaces: tuple[str, ...],
    policy_path: Path | None,
    listen: tuple[str, int],
    lease_namespace: str | None,
    workers: int,
    log_level: str,
) -> None:
    """Run the operator until SIGTERM or SIGINT.

    \b
    Exit codes:
      0  stopped as told
      1  a watch or a worker ended; the log says why
      2  bad arguments or configuration, or no way to reach an API server
      3  the API server does not know MoEDeployment: install the CRD
      4  the lease was lost: another operator may act now
      5  the --listen address is taken
    """
    import asyncio

    from moe_operator.reconcile.decide import decide
    from moe_operator.reconcile.wants import wants
    from moe_operator.runtime import json_log
    from moe_operator.runtime.aio_kube import AioKube
    from moe_operator.runtime.app import Brain, Options, run_operator
    from moe_operator.runtime.policy_file import PolicyUnreadable, load_policy

    try:
        policy = load_policy(policy_path)
    except PolicyUnreadable as error:
        raise click.UsageError(str(error)) from error
    json_log.configure(log_level)
    options = Options(policy, _credentials(kubeconfig), namespaces, listen, lease_namespace, workers)
    raise SystemExit(asyncio.run(run_operator(options, Brain(wants, decide), AioKube.connect)))


def _credentials(kubeconfig: str | None) -> str | None:
    """The kubeconfig to use; None = the service account of this pod."""
    if kubeconfig:
        missing = [path for path in kubeconfig.split(":") if path and not Path(path).expanduser().is_file()]
        if missing:
            raise click.UsageError(f"kubeconfig {missing[0]} does not exist")
        return kubeconfig
    if SERVICE_ACCOUNT_TOKEN.exists():
        return None
    path = USER_KUBECONFIG.expanduser()
    if not path.is_file():
        raise click.UsageError("no API server: give --kubeconfig, or run in a pod with a service account")
    return str(path)
